"""Authorities that the environment names and that cannot be used: said once, where it matters."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from relay import process
from relay.authorities import authority_warnings
from relay.cli import cli
from relay.config import PoolConfig, load
from relay.discovery import scan_command
from relay.discovery.scan import End, Result
from tests.rig.certs import Authority
from workers import logs


def pools(folder: Path, **pool: Any) -> tuple[PoolConfig, ...]:
    path = folder / "relay.json"
    path.write_text(json.dumps({"pools": [{"name": "a", **pool}, {"resolvers": ["192.0.2.1"]}]}))
    return load(path).config.pools


def test_authorities_that_cannot_be_used_are_told_with_variable_and_path(tmp_path: Path) -> None:
    encrypted = pools(tmp_path, resolvers=["dot://192.0.2.1"])
    good = Authority(tmp_path).file
    plain = tmp_path / "plain\x1b"
    plain.write_text("no certificate")
    os.mkfifo(pipe := tmp_path / "pipe")
    (hashed := tmp_path / "hashed").mkdir()
    (hashed / "0123abcd.0").symlink_to(good)
    cases = [
        ("SSL_CERT_FILE", good, ""),
        ("SSL_CERT_FILE", tmp_path / "none", "No such file or directory"),
        ("SSL_CERT_FILE", "", "No such file or directory"),
        ("SSL_CERT_FILE", tmp_path, "is a folder"),
        ("SSL_CERT_FILE", pipe, "is no regular file"),
        ("SSL_CERT_FILE", plain, "holds no certificate in PEM form"),
        ("SSL_CERT_DIR", hashed, ""),
        ("SSL_CERT_DIR", tmp_path / "none", "No such file or directory"),
        ("SSL_CERT_DIR", "", "No such file or directory"),
        ("SSL_CERT_DIR", good, "Not a directory"),
        ("SSL_CERT_DIR", tmp_path, "holds no certificate under the name that `openssl rehash`"),
    ]
    for variable, path, why in cases:
        found = authority_warnings({variable: str(path)}, encrypted)
        shown = str(path).replace("\x1b", "\\x1b")
        assert [text.startswith(f'{variable}: "{shown}": {why}') for text in found] == [
            True
        ] * bool(why), (variable, path, found)
    both = authority_warnings({"SSL_CERT_DIR": f"{hashed}::/no/a:/no/b"}, encrypted)
    assert [text.split(":")[1] for text in both] == [' "/no/a"', ' "/no/b"']
    assert len(authority_warnings({"SSL_CERT_DIR": "/no:" * 1_000}, encrypted)) == 8


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_authorities_that_may_not_be_read_are_told(tmp_path: Path) -> None:
    file = Authority(tmp_path).file
    file.chmod(0)
    (found,) = authority_warnings(
        {"SSL_CERT_FILE": str(file)}, pools(tmp_path, resolvers=["dot://192.0.2.1"])
    )
    assert "Permission denied" in found


def test_authorities_matter_where_somebody_is_asked_over_tls(tmp_path: Path) -> None:
    file = str(Authority(tmp_path).file)
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"resolvers": ["192.0.2.1", "tcp://192.0.2.2"]}, False),
        ({"resolvers": ["https://192.0.2.1/dns-query"]}, True),
        ({"resolvers": [{"address": "dot://192.0.2.1", "ca_file": file}]}, False),
        ({"resolvers": [{"address": "dot://192.0.2.1", "insecure": True}]}, False),
        ({"resolvers": ["tcp://192.0.2.1"], "bootstrap": ["dot://192.0.2.1"]}, True),
        ({"resolvers": ["auto"]}, True),
        ({"resolvers": ["auto"], "smart_pool": {"discovery": {"sources": ["device"]}}}, False),
    ]
    for pool, matters in cases:
        found = authority_warnings({"SSL_CERT_FILE": "/no/such"}, pools(tmp_path, **pool))
        assert bool(found) == matters, pool
        assert authority_warnings({}, pools(tmp_path, **pool)) == []


def test_authorities_are_told_by_serve_run_and_scan_and_not_by_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such")
    monkeypatch.setattr(scan_command, "_run", lambda *_, **__: Result(end=End.STOPPED))
    monkeypatch.setattr(logs, "setup", lambda *_: None)
    for name in ("serve", "run"):
        monkeypatch.setattr(process, name, lambda *_: 0)
    file = tmp_path / "relay.json"
    file.write_text(json.dumps({"pools": [{"resolvers": ["dot://192.0.2.1"]}]}))
    (tmp_path / "list").write_text("dot://192.0.2.1\n")
    (tmp_path / "plain").write_text("192.0.2.1\n")
    state = ["--state", str(tmp_path / "state.json")]
    cases = [
        (["serve", "-c", str(file)], 1),
        (["run", "-c", str(file), "--", "true"], 1),
        (["scan", "-c", str(file), *state], 1),
        (["scan", "--file", str(tmp_path / "list"), *state], 1),
        (["scan", "--file", str(tmp_path / "plain"), *state], 0),
        (["check", "-c", str(file)], 0),
    ]
    for words, times in cases:
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0, words
        said = done.stderr + caplog.text
        caplog.clear()
        assert said.count('SSL_CERT_FILE: "/no/such": No such file') == times, (words, said)
