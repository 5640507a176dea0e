"""Files that list resolvers: one bad line never ends the list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay.config import Flags, Loaded, load
from relay.config_errors import ConfigProblems
from relay.resolver_address import AUTO
from relay.resolver_list import LARGEST_FILE_BYTES, ListFile, expand, parse_entry


def with_resolvers(tmp_path: Path, *resolvers: str) -> Loaded:
    path = tmp_path / "relay.json"
    path.write_text(json.dumps({"pools": [{"name": "a", "resolvers": resolvers}]}))
    return load(path)


def addresses(found: Loaded) -> list[str]:
    return [str(resolver) for resolver in found.config.pools[0].resolvers]


def test_list_file_good_lines_keep_their_order_among_the_others(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("# public\n8.8.8.8\n\n tcp://8.8.4.4 # second\n1.1.1.1:53\n")

    found = with_resolvers(tmp_path, "9.9.9.9", "file:list.txt", "udp://1.1.1.1", "auto")

    assert addresses(found) == [
        "udp://9.9.9.9:53",
        "udp://8.8.8.8:53",
        "tcp://8.8.4.4:53",
        "udp://1.1.1.1:53",
        "auto",
    ]
    assert found.warnings == ()


def test_list_file_bad_line_is_a_warning_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(
        b"\xef\xbb\xbf8.8.8.8\r\n8.8.8\r\nquic://1.1.1.1\n\xff\xfe\x1b[31m\nfile:other\n"
        + b"x" * 5000
        + b"\n1.1.1.1"
    )

    found = with_resolvers(tmp_path, f"file:{path}")

    assert addresses(found) == ["udp://8.8.8.8:53", "udp://1.1.1.1:53"]
    assert [warning.removeprefix(f"{path}:")[:40] for warning in found.warnings] == [
        '2: "8.8.8" is not an IPv4 address',
        '3: "quic://1.1.1.1": "quic://" is not ud',
        '4: "��\\x1b[31m": holds a control charact',
        '5: "file:other": port "other" is not a n',
        '6: "' + "x" * 36,
    ]
    assert all(warning.isprintable() for warning in found.warnings)


def test_list_file_auto_is_left_out_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("8.8.8.8\nAuto # all\n")

    found = with_resolvers(tmp_path, "file:a")

    assert addresses(found) == ["udp://8.8.8.8:53"]
    assert found.warnings == (f"{tmp_path}/a:2: auto can only stand in resolvers itself",)
    (tmp_path / "a").write_text("auto\n")
    with pytest.raises(ConfigProblems, match="the lists name no resolver"):
        with_resolvers(tmp_path, "file:a")


def test_list_file_duplicates_count_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("8.8.8.8\n8.8.8.8:53\nUDP://8.8.8.8\n")
    (tmp_path / "b").write_text("8.8.8.8\n1.1.1.1\n")

    found = with_resolvers(tmp_path, "file:a", "file:b")

    assert addresses(found) == ["udp://8.8.8.8:53", "udp://1.1.1.1:53"]


def test_resolver_named_again_with_its_pins_in_another_order_keeps_the_first(
    tmp_path: Path,
) -> None:
    first, again = "dot://dns.google#8.8.8.8,8.8.4.4", "dot://dns.google#8.8.4.4,8.8.8.8"

    found = with_resolvers(tmp_path, first, again)
    turned = with_resolvers(tmp_path, again, first)

    assert addresses(found) == ["dot://dns.google:853#8.8.8.8,8.8.4.4"]
    assert addresses(turned) == ["dot://dns.google:853#8.8.4.4,8.8.8.8"]


def test_list_file_many_bad_lines_are_summed_up(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("not an address\n" * 1000 + "8.8.8.8\n")

    found = with_resolvers(tmp_path, "file:a")

    assert addresses(found) == ["udp://8.8.8.8:53"]
    assert len(found.warnings) == 21
    assert found.warnings[-1].endswith("980 more bad lines")


def test_list_file_without_address_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("# nothing\nx y\n")

    with pytest.raises(ConfigProblems, match=r"pools\[0\].resolvers: the lists name no resolver"):
        with_resolvers(tmp_path, "file:a")


def test_list_file_that_cannot_be_read_is_a_problem_at_its_entry(tmp_path: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(LARGEST_FILE_BYTES + 1)

    with pytest.raises(ConfigProblems) as caught:
        with_resolvers(tmp_path, "auto", "file:none", f"file:{tmp_path}", "file:big")

    assert [str(p).split(": ", 1)[1] for p in caught.value.problems] == [
        f'pools[0].resolvers[1]: "{tmp_path}/none": No such file or directory',
        f'pools[0].resolvers[2]: "{tmp_path}": Is a directory',
        f'pools[0].resolvers[3]: "{big}": larger than 16 MiB',
    ]


def test_list_file_named_by_flag_is_a_problem_of_the_flag(tmp_path: Path) -> None:
    entry = parse_entry(f"file:{tmp_path}/none")

    with pytest.raises(ConfigProblems) as caught:
        load(None, Flags(resolvers=(AUTO, entry)))

    assert str(caught.value) == f'--resolver: "{tmp_path}/none": No such file or directory'


def test_list_file_of_more_than_the_board_holds_is_a_problem(tmp_path: Path) -> None:
    lines = (f"10.{i >> 16}.{(i >> 8) & 255}.{i & 255}\n" for i in range(65_537))
    (tmp_path / "a").write_text("".join(lines))

    with pytest.raises(ConfigProblems, match="name 65,537 resolvers; at most 65,536 can be used"):
        with_resolvers(tmp_path, "file:a")


def test_list_file_entry_without_path_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblems, match=r"resolvers\[0\]: \"file:\": the path after file: is"):
        with_resolvers(tmp_path, "file:")


def test_parse_entry_relative_path_is_taken_from_the_base() -> None:
    assert parse_entry("file:a/b", Path("/etc")) == ListFile(Path("/etc/a/b"))
    assert parse_entry("file:///a/b", Path("/etc")) == ListFile(Path("/a/b"))
    assert parse_entry("file:a") == ListFile(Path("a"))


def test_expand_nothing_gives_nothing() -> None:
    found = expand((), ("pools", 0, "resolvers"))

    assert (found.resolvers, found.had_list) == ({}, False)
