"""The state file in every state that disks and other programs leave it in."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay import state_file
from relay.state_file import StateFile

GOOD = {"version": 1, "pools": {"generic||a": {"udp://192.0.2.1:53": {"score": 3.5}}}}


def put(path: Path, pools: dict[str, Any]) -> bool:
    return StateFile(path).update(lambda content: {**content, "pools": pools})


def test_state_file_written_is_read_again_and_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "state.json"
    assert put(path, GOOD["pools"])  # type: ignore[arg-type]
    assert StateFile(path).read() == GOOD
    assert {each.name for each in path.parent.iterdir()} == {"state.json", ".state.json.lock"}
    assert {each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {0o600}
    assert path.parent.stat().st_mode & 0o777 == path.parent.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_state_file_made_by_root_belongs_to_whom_its_folder_belongs_to(tmp_path: Path) -> None:
    # As of a service with a user of its own: `relay scan` by root must not lock it out.
    os.chown(tmp_path, 12_345, 12_346)
    (tmp_path / ".a.json.tmp").write_text("a leftover of root's")
    paths = [tmp_path / "a.json", tmp_path / "new" / "b.json"]
    assert all(put(path, {}) for path in paths)
    made = list(tmp_path.rglob("*"))
    assert len(made) == 5
    assert {(each.stat().st_uid, each.stat().st_gid) for each in made} == {(12_345, 12_346)}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\0" * 4096, "it is all zeros"),
        (orjson.dumps(GOOD)[:-7], "it is not JSON"),
        (b"\xff\xfe{}", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[1]", "it is not a JSON object"),
        (b'{"version": 1, "pools": [1]}', 'its "pools" are not a JSON object'),
        (b'{"version": 2, "pools": {}}', "it is not of this version"),
        (b'{"version": true, "pools": {}}', "it is not of this version"),
    ],
)
def test_state_file_senseless_is_kept_aside_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, why: str
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    assert StateFile(path).read() == {}
    assert (tmp_path / "state.json.bad").read_bytes() == content
    assert f"is of no use, and kept as state.json.bad: {why}" in caplog.text
    assert put(path, {})
    assert StateFile(path).read() == {"version": 1, "pools": {}}


def test_state_file_missing_or_empty_is_nothing_to_say(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.json"
    assert StateFile(path).read() == {}
    path.touch()
    assert StateFile(path).read() == {}
    assert path.exists()
    assert not caplog.text


def test_state_file_too_large_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "LARGEST_BYTES", 1000)
    path = tmp_path / "state.json"
    path.write_bytes(b" " * 1001)
    assert StateFile(path).read() == {}
    assert (tmp_path / "state.json.bad").exists()


def test_state_file_that_is_no_file_is_neither_waited_for_nor_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe, folder, link = tmp_path / "pipe", tmp_path / "folder", tmp_path / "full"
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to("/dev/null")
    for path in (pipe, folder, link):
        caplog.clear()
        assert StateFile(path).read() == {}
        assert not put(path, {})
        assert "no regular file" in caplog.text or "directory" in caplog.text.lower()
    assert pipe.is_fifo()
    assert Path("/dev/null").is_char_device()


def test_state_file_in_a_folder_that_cannot_be_made_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    file = StateFile(tmp_path / "file" / "state.json")
    for _ in range(3):
        assert not file.update(dict)
    assert caplog.text.count("cannot be written") == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_state_file_whose_disk_fails_keeps_the_old_one_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "state.json"
    assert put(path, {"a": {}})
    before = path.read_bytes()

    def fails(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    assert not put(path, {"b": {}})
    assert path.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"state.json", ".state.json.lock"}


def test_state_file_behind_a_link_stays_behind_it(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    assert put(link, {})
    assert link.is_symlink()
    assert StateFile(real).read()["pools"] == {}


def test_state_file_of_two_relays_loses_no_write(tmp_path: Path) -> None:
    path = tmp_path / "state.json"

    def writes(name: str) -> None:
        file = StateFile(path)
        for number in range(20):

            def change(content: dict[str, Any], number: int = number) -> dict[str, Any]:
                return {"pools": {**content.get("pools", {}), f"{name}{number}": {}}}

            assert file.update(change)

    threads = [threading.Thread(target=writes, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(StateFile(path).read()["pools"]) == 40


def test_state_file_whose_lock_is_held_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_file, "LOCK_LIMIT_S", 0.05)
    path = tmp_path / "state.json"
    assert put(path, {})
    with (tmp_path / ".state.json.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not put(path, {"b": {}})
    assert "another relay holds its lock" in caplog.text
    assert StateFile(path).read()["pools"] == {}


def test_state_file_that_cannot_be_read_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    assert put(path, {"of another relay": {}})
    before = path.read_bytes()
    opened = os.open

    def fails(name: Any, *rest: Any) -> int:
        if name == path:  # all descriptors are in use, for a moment
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        assert StateFile(path).read() == {}
        assert not put(path, {"ours": {}})
    assert path.read_bytes() == before


def test_state_file_senseless_for_a_moment_is_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"{")
    file = StateFile(path)
    locked = file._locked

    def late() -> Any:
        # Another relay has written by the time that this one has the lock.
        path.write_bytes(orjson.dumps(GOOD))
        return locked()

    monkeypatch.setattr(file, "_locked", late)
    assert file.read() == GOOD
    assert not (tmp_path / "state.json.bad").exists()


def test_state_file_leftover_of_a_killed_relay_is_used_up(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    (tmp_path / ".state.json.tmp").write_bytes(b"half of")
    assert put(path, {})
    assert {each.name for each in tmp_path.iterdir()} == {"state.json", ".state.json.lock"}
