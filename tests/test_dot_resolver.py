"""DoT towards resolvers, on real sockets with certificates of the rig's own authority."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.loopback import (
    HOST,
    Link,
    Shell,
    TcpPeer,
    UdpPeer,
    closed_port,
    on_loop,
    serve_nothing,
    settle,
    until,
)
from tests.rig.certs import HOST as NAME
from tests.rig.certs import Authority, Certificate
from tests.rig.wire import SERVFAIL, query_wire, reply_of_size, reply_wire
from workers.settings import ResolverEntry
from workers.transports import dial, tls
from workers.transports.channel import TlsChannel

NOERROR = 0


def dot(
    peer: TcpPeer,
    authority: Authority | None = None,
    *,
    server_name: str = NAME,
    insecure: bool = False,
) -> ResolverEntry:
    host, port = peer.address[:2]
    return ResolverEntry(
        0,
        "dot",
        host,
        port,
        f"dot://{NAME}",
        server_name=server_name,
        ca_file=str(authority.file) if authority else "",
        insecure=insecure,
    )


def channel(shell: Shell) -> TlsChannel:
    (connection,) = shell.stream()._connections
    assert isinstance(connection.channel, TlsChannel)
    return connection.channel


def only(certificate: Certificate, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = certificate.context()
    context.minimum_version = context.maximum_version = version
    return context


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]

# -- asking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_dot_resolver_answering_out_of_order_answers_each_client_its_own(
    version: ssl.TLSVersion, authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with (
            TcpPeer(serve_nothing, tls=only(good, version)) as peer,
            Shell(dot(peer, authority)) as shell,
        ):
            asked = [shell.ask(query_wire(f"q{n}.t.example", message_id=7)) for n in range(50)]
            for wire in reversed(await peer.wait(50)):
                peer.links[0].say(reply_wire(wire))
            for each in asked:
                reply = await each.reply()
                assert reply[:2] == b"\0\7"
                assert reply[12 : len(each.wire)] == each.wire[12:]
            assert len(peer.links) == 1

    run()


def test_dot_resolver_with_the_largest_replies_passes_them(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        serve = lambda link, wire: link.say(reply_of_size(wire, 65_535))  # noqa: E731
        async with (
            TcpPeer(serve, tls=good.context()) as peer,
            Shell(dot(peer, authority)) as shell,
        ):
            asked = [shell.ask(stream=True) for _ in range(20)]
            assert {len(await each.reply()) for each in asked} == {65_535}

    run()


def test_dot_reply_too_large_for_a_udp_client_is_truncated(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        serve = lambda link, wire: link.say(reply_of_size(wire, 4_000))  # noqa: E731
        async with (
            TcpPeer(serve, tls=good.context()) as peer,
            Shell(dot(peer, authority)) as shell,
        ):
            reply = await shell.ask().reply()
            assert len(reply) <= 512
            assert reply[2] & 0x02

    run()


def test_queries_of_one_wake_up_leave_in_one_record(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with (
            TcpPeer(tls=good.context()) as peer,
            Shell(dot(peer, authority)) as shell,
        ):
            await shell.ask().reply()
            written: list[int] = []
            tls = channel(shell)
            write = tls.write
            tls.write = lambda data: (written.append(len(data)), write(data))[1]  # type: ignore
            attempts = [
                shell.engine.query(monotonic(), peer_client, None, query_wire("q.t"))
                for peer_client in [_Nobody()] * 30
            ]
            for attempt in attempts:
                assert attempt is not None
                attempt.resolver.transport.send(attempt)
            assert written == []
            shell.pool.flush()
            assert len(written) == 1
            await peer.wait(31)

    run()


class _Nobody:
    is_stream = False

    def reply(self, query: object) -> None:
        pass


# -- handshakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_next_connection_resumes_the_session_of_the_last(
    version: ssl.TLSVersion, authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with (
            TcpPeer(tls=only(good, version)) as peer,
            Shell(dot(peer, authority)) as shell,
        ):
            for number in range(4):
                assert await shell.ask().rcode() == NOERROR
                assert channel(shell).resumed is (number > 0)
                peer.links[-1].close()
                await until(lambda: not shell.stream()._connections)

    run()


def test_server_that_forgot_the_session_is_shaken_hands_with_in_full(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with TcpPeer(tls=good.context()) as peer, Shell(dot(peer, authority)) as shell:
            assert await shell.ask().rcode() == NOERROR
            port = peer.address[1]
            peer._server.close()
            peer.links[0].close()
            await until(lambda: not shell.stream()._connections)
            async with TcpPeer(tls=good.context(), port=port):
                assert await shell.ask().rcode() == NOERROR
                assert not channel(shell).resumed
        assert shell.blames() == (0, 0)

    run()


def test_handshake_of_a_second_is_one_for_fifty_queries_and_no_latency(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        hellos: list[Link] = []
        async with TcpPeer(tls=good.context()) as peer:
            slow = await _slow_gate(peer.address, 1.0, hellos)
            entry = dot(peer, authority)
            host, port = slow.sockets[0].getsockname()[:2]
            entry = ResolverEntry(
                0, "dot", host, port, "slow", server_name=NAME, ca_file=entry.ca_file
            )
            async with Shell(entry) as shell:
                asked = [shell.ask() for _ in range(25)]
                await asyncio.sleep(0.5)
                asked += [shell.ask() for _ in range(25)]
                assert [await each.rcode() for each in asked] == [NOERROR] * 50
                assert len(hellos) == 1
                assert shell.stream().dials == 1
                assert shell.resolver().rtt_sum_s < 50 * 0.3
                assert shell.blames() == (0, 0)
            slow.close()

    run()


async def _slow_gate(
    server: tuple[str, int], delay_s: float, accepted: list[Link]
) -> asyncio.Server:
    """Listen before a server, and keep the first bytes of every connection for a while."""
    loop = asyncio.get_running_loop()
    pumps: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)  # type: ignore[arg-type]
        await asyncio.sleep(delay_s)
        far_reader, far_writer = await asyncio.open_connection(*server[:2])
        for task in (
            loop.create_task(pump(reader, far_writer)),
            loop.create_task(pump(far_reader, writer)),
        ):
            pumps.add(task)
            task.add_done_callback(pumps.discard)

    return await asyncio.start_server(carry, HOST, 0)


# -- faults of handshakes -----------------------------------------------------------------------


async def fault_of(entry: ResolverEntry) -> tuple[str, tuple[int, int], int]:
    """Ask a resolver that is not to be trusted beside a good one; return what is said of it."""
    async with UdpPeer() as other, Shell(entry, other.udp) as shell:
        assert await shell.ask().rcode() == NOERROR
        await until(lambda: shell.reasons)
        return shell.reasons[-1], shell.blames(), len(shell.reasons)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        ("expired", "the certificate has expired"),
        ("elsewhere", "the certificate is for another host than dns.rig"),
        ("stranger", "the certificate is not signed by a trusted authority"),
    ],
)
def test_certificate_that_is_not_good_is_a_fault_with_its_reason(
    certificate: str, reason: str, version: ssl.TLSVersion, authority: Authority, workdir: Path
) -> None:
    issued = {
        "expired": lambda: authority.issue([NAME], expired=True),
        "elsewhere": lambda: authority.issue(["other.rig"]),
        "stranger": lambda: Authority(workdir, "another").issue([NAME]),
    }[certificate]()

    @on_loop
    async def run() -> None:
        async with TcpPeer(tls=only(issued, version)) as peer:
            assert await fault_of(dot(peer, authority)) == (reason, (0, 1), 1)
            assert peer.heard == []
            async with Shell(dot(peer, authority, insecure=True)) as shell:
                assert await shell.ask().rcode() == NOERROR

    run()


def test_certificate_for_the_address_serves_without_a_name(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        asked_for: list[str | None] = []
        tls = good.context()
        tls.sni_callback = lambda _, name, __: asked_for.append(name)
        async with (
            TcpPeer(tls=tls) as peer,
            Shell(dot(peer, authority, server_name="")) as shell,
        ):
            assert await shell.ask().rcode() == NOERROR
            assert asked_for == [None]
        elsewhere = authority.issue([NAME, "127.0.0.9"])
        async with TcpPeer(tls=elsewhere.context()) as peer:
            reason, _, _ = await fault_of(dot(peer, authority, server_name=""))
            assert reason == f"the certificate is for another host than {HOST}"

    run()


def test_system_authorities_are_what_is_trusted_without_a_file(good: Certificate) -> None:
    @on_loop
    async def run() -> None:
        async with TcpPeer(tls=good.context()) as peer:
            reason, blamed, _ = await fault_of(dot(peer))
            assert reason == "the certificate is not signed by a trusted authority"
            assert blamed == (0, 1)

    run()


def test_authorities_that_cannot_be_read_are_a_fault_of_this_machine(good: Certificate) -> None:
    @on_loop
    async def run() -> None:
        async with TcpPeer(tls=good.context()) as peer:
            host, port = peer.address[:2]
            entry = ResolverEntry(0, "dot", host, port, "x", ca_file="/nowhere/ca.pem")
            reason, blamed, _ = await fault_of(entry)
            assert reason == (
                "cannot read the authorities in /nowhere/ca.pem: No such file or directory"
            )
            assert blamed == (0, 0)

    run()


def test_server_that_speaks_no_tls_is_a_fault_with_its_reason() -> None:
    @on_loop
    async def run() -> None:
        say = lambda link: link.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")  # noqa: E731
        async with TcpPeer(greets=say) as peer:
            assert (await fault_of(dot(peer)))[:2] == ("does not speak TLS on this port", (0, 1))

    run()


def test_server_that_hangs_up_on_the_handshake_is_a_fault_with_its_reason() -> None:
    @on_loop
    async def run() -> None:
        async with TcpPeer(greets=lambda link: link.close()) as peer:
            reason, blamed, _ = await fault_of(dot(peer))
            assert reason.endswith("during the TLS handshake")
            assert blamed == (0, 1)

    run()


def test_server_that_ignores_the_handshake_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "DIAL_TIMEOUT_S", 0.2)

    @on_loop
    async def run() -> None:
        async with TcpPeer() as peer:
            assert (await fault_of(dot(peer)))[:2] == ("TLS handshake timed out", (0, 1))
            await until(lambda: peer.links[0].ended)

    run()


def test_closed_port_is_a_fault_with_its_reason(authority: Authority) -> None:
    @on_loop
    async def run() -> None:
        port = closed_port()
        entry = ResolverEntry(0, "dot", HOST, port, "x", ca_file=str(authority.file))
        assert (await fault_of(entry))[:2] == ("Connection refused", (0, 1))

    run()


def test_old_tls_versions_are_refused(authority: Authority, good: Certificate) -> None:
    @on_loop
    async def run() -> None:
        tls = good.context()
        tls.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            tls.minimum_version = tls.maximum_version = ssl.TLSVersion.TLSv1_1
        async with TcpPeer(tls=tls) as peer:
            reason, blamed, _ = await fault_of(dot(peer, authority))
            assert "TLS" in reason
            assert blamed == (0, 1)

    run()


@pytest.mark.parametrize(
    ("alert", "words"),
    [
        (40, "refuses the TLS handshake"),
        (70, "speaks no version of TLS from 1.2 on"),
        (112, "refuses the TLS handshake for this host"),
        (80, "TLS error: tlsv1 alert internal error"),
    ],
)
def test_server_that_refuses_the_handshake_is_a_fault_with_its_reason(
    alert: int, words: str
) -> None:
    @on_loop
    async def run() -> None:
        def greets(link: Link) -> None:
            link.transport.write(b"\x15\x03\x01\x00\x02\x02" + bytes([alert]))

        async with TcpPeer(greets=greets, serve=serve_nothing) as peer:
            assert await fault_of(dot(peer)) == (words, (0, 1), 1)

    run()


def test_certificate_that_is_not_good_is_told_although_the_server_is_gone(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired = authority.issue([NAME], expired=True)

    async def gone(*_: object) -> None:
        raise ConnectionResetError(errno.ECONNRESET, "gone")

    @on_loop
    async def run() -> None:
        step = tls._step

        async def last_step(*arguments: Any) -> bool:
            try:
                return await step(*arguments)
            except ssl.SSLError:
                monkeypatch.setattr(tls, "_send", gone)
                raise

        monkeypatch.setattr(tls, "_step", last_step)
        async with TcpPeer(tls=expired.context()) as peer:
            reason, _, _ = await fault_of(dot(peer, authority))
            assert reason == "the certificate has expired"

    run()


def test_handshakes_at_once_leave_the_loop_its_other_work(
    authority: Authority, good: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    @on_loop
    async def run() -> None:
        loop = asyncio.get_running_loop()
        turn = 0
        steps: list[int] = []
        do_handshake = ssl.SSLObject.do_handshake

        def recorded(layer: ssl.SSLObject) -> None:
            if not layer.server_side:
                steps.append(turn)
            do_handshake(layer)

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(next_turn)

        monkeypatch.setattr(ssl.SSLObject, "do_handshake", recorded)
        async with TcpPeer(tls=good.context()) as peer:
            entries = [replace(dot(peer, authority), path=f"/{number}") for number in range(12)]
            async with Shell(*entries) as shell:
                next_turn()
                dials = [
                    loop.create_task(shell.stream(number)._dialler.dial()) for number in range(12)
                ]
                channels = await asyncio.gather(*dials)
                for each in channels:
                    each._sock.close()
        assert len(steps) >= 24
        assert len(set(steps)) == len(steps)

    run()


def test_server_that_goes_mad_after_the_handshake_loses_its_connection(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with TcpPeer(tls=good.context()) as peer, Shell(dot(peer, authority)) as shell:
            assert await shell.ask().rcode() == NOERROR
            raw = peer.links[0].transport.get_extra_info("socket")
            os.write(raw.fileno(), bytes(200))  # beside the TLS
            await until(lambda: not shell.stream()._connections)
            assert await shell.ask().rcode() == NOERROR
            assert shell.blames() == (0, 0)

    run()


def test_handshakes_called_off_leave_no_descriptor(authority: Authority) -> None:
    @on_loop
    async def run() -> None:
        async with TcpPeer(serve_nothing) as peer:  # never says a word of TLS
            fds = _descriptors()
            for _ in range(50):
                async with Shell(dot(peer, authority)) as shell:
                    asked = shell.ask()
                    await until(lambda: peer.links and not peer.links[-1].ended)
                    shell.set_roster()
                    assert await asked.rcode() == SERVFAIL
                await until(lambda: peer.links[-1].ended)
            await settle()
            assert _descriptors() <= fds + 1

    run()


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
