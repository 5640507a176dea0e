"""Messages to a service manager, over real datagram sockets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from relay.notify import Notifier


def manager(address: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(address)
    made.settimeout(2.0)
    return made


def test_notifier_sends_each_message_to_a_path(workdir: Path) -> None:
    path = str(workdir / "n.sock")
    with manager(path) as heard:
        notifier = Notifier({"NOTIFY_SOCKET": path})
        notifier.ready("serving")
        notifier.reloading()
        notifier.status("fine")
        notifier.watchdog()
        notifier.stopping("bye")
        notifier.close()
        assert heard.recv(4096) == b"READY=1\nSTATUS=serving"
        reloading, _, at = heard.recv(4096).decode().partition("\nMONOTONIC_USEC=")
        assert reloading == "RELOADING=1"
        assert int(at) > 0
        assert heard.recv(4096) == b"STATUS=fine"
        assert heard.recv(4096) == b"WATCHDOG=1"
        assert heard.recv(4096) == b"STOPPING=1\nSTATUS=bye"


def test_notifier_reaches_an_abstract_socket() -> None:
    name = f"relay-test-{os.getpid()}"
    with manager(f"\0{name}") as heard:
        notifier = Notifier({"NOTIFY_SOCKET": f"@{name}"})
        notifier.ready("serving")
        notifier.close()
        assert heard.recv(4096).startswith(b"READY=1")


@pytest.mark.parametrize("address", ["", "relative", "/nonexistent/socket"])
def test_notifier_without_a_manager_does_nothing(address: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address})
    notifier.ready("serving")
    notifier.close()


def test_notifier_whose_manager_went_away_does_nothing(workdir: Path) -> None:
    path = str(workdir / "n.sock")
    heard = manager(path)
    notifier = Notifier({"NOTIFY_SOCKET": path})
    heard.close()
    notifier.status("into the void")
    notifier.close()


@pytest.mark.parametrize(
    ("environ", "watchdog_s"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_notifier_watchdog_counts_for_this_process_only(
    environ: dict[str, str], watchdog_s: float
) -> None:
    assert Notifier(environ).watchdog_s == watchdog_s
