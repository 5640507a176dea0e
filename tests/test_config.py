"""Configurations as a whole: what is read, what wins, and how each mistake is told."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.config import (
    Config,
    DiscoverySettings,
    Flags,
    Loaded,
    PoolConfig,
    load,
    usable_cores,
)
from relay.config_errors import ConfigProblems
from relay.endpoints import ControlAddress, ListenAddress, parse_control, parse_listen
from relay.lists.sources import Source
from relay.resolver_address import AUTO, parse
from relay.resolver_list import parse_entry
from relay.state_path import default_control_path, default_state_path
from workers.settings import PoolSettings

FULL = """
{ // every field there is
  "workers": 3, "control": "unix:/run/x/control.sock", "state": "/var/lib/x/state.json",
  "log_level": "debug", "log_format": "json", "steering": "flow",
  "pools": [
    { "name": "t", "tunnel": "dnstt", "domain": "T.Example.com.", "listen": "127.0.0.1:5301",
      "domains": ["u.example.com"],
      "resolvers": ["auto", "8.8.8.8:53", "udp://8.8.8.8", "tcp://[2001:DB8::1]"],
      "pretest_domain": "probe.example", "packet_duplication": 4, "record_type": "TXT",
      "smart_pool": {
        "enabled": true, "load_balance": "lowest_latency", "deadline": "4s",
        "per_attempt": "1500ms", "probe_interval": "7s", "down_after": 9,
        "duplicate": 3, "token_wait": "20ms",
        "hedge": "losing", "on_failure": "servfail", "max_pending": 1000, "max_connections": 10,
        "tcp_idle": "1m",
        "discovery": {
          "country": "ir", "sample_ranges": 5, "want": 11, "concurrency": 50, "pace": "20ms"
        },
      },
    },
  ],
}
"""
FULL_CONFIG = Config(
    workers=3,
    control=ControlAddress(Path("/run/x/control.sock")),
    state=Path("/var/lib/x/state.json"),
    log_level="debug",
    log_format="json",
    steering="flow",
    pools=(
        PoolConfig(
            name="t",
            tunnel="dnstt",
            listen=ListenAddress("127.0.0.1", 5301),
            resolvers=(AUTO, parse("8.8.8.8"), parse("tcp://[2001:db8::1]:53")),
            settings=PoolSettings(
                name="t",
                tunnel="dnstt",
                load_balance="lowest_latency",
                deadline_s=4.0,
                per_attempt_s=1.5,
                probe_interval_s=7.0,
                down_after=9,
                duplicate=3,
                token_wait_s=0.02,
                hedge_only_losing=True,
                silent_failure=False,
                cut_to_client_size=False,
                max_pending=1000,
                max_connections=10,
                tcp_idle_s=60.0,
                probe_name="probe.example",
            ),
            discovery=DiscoverySettings("IR", 5, 11, 50, 0.02),
            domains=("t.example.com", "u.example.com"),
            record_type="TXT",
            pretest_domains=("probe.example",),
        ),
    ),
)


def written(tmp_path: Path, content: object, name: str = "relay.json") -> Path:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def loaded(tmp_path: Path, content: object, flags: Flags | None = None) -> Loaded:
    return load(written(tmp_path, content), flags)


def problems_of(tmp_path: Path, content: object, flags: Flags | None = None) -> list[str]:
    path = written(tmp_path, content)
    with pytest.raises(ConfigProblems) as caught:
        load(path, flags)
    return [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]


def only_problem_of(tmp_path: Path, content: object) -> str:
    (problem,) = problems_of(tmp_path, content)
    return problem


def pool_with(**fields: object) -> dict[str, object]:
    return {"pools": [{"name": "a", **fields}]}


def smart_with(**fields: object) -> dict[str, object]:
    return pool_with(smart_pool={"enabled": True, **fields})


def test_load_every_field_arrives(tmp_path: Path) -> None:
    found = loaded(tmp_path, FULL)

    assert (found.config, found.notes) == (FULL_CONFIG, ())
    assert found.config.pools[0].domain == "t.example.com"


def test_load_toml_gives_the_same_as_json(tmp_path: Path) -> None:
    toml = """
workers = 3
control = "unix:/run/x/control.sock"
state = "/var/lib/x/state.json"
log_level = "debug"
log_format = "json"
steering = "flow"
[[pools]]
name = "t"
tunnel = "dnstt"
domain = "t.example.com"
domains = ["u.example.com"]
listen = "127.0.0.1:5301"
resolvers = ["auto", "8.8.8.8", "tcp://[2001:db8::1]"]
pretest_domain = ["probe.example"]
record_type = "TXT"
[pools.smart_pool]
load_balance = "lowest_latency"
deadline = "4s"
per_attempt = "1.5s"
probe_interval = "7s"
down_after = 9
duplicate = 3
token_wait = "20ms"
hedge = "losing"
on_failure = "servfail"
max_pending = 1000
max_connections = 10
tcp_idle = "60s"
discovery = { country = "IR", sample_ranges = 5, want = 11, concurrency = 50, pace = "20ms" }
"""

    assert load(written(tmp_path, toml, "relay.toml")).config == FULL_CONFIG


def test_load_nothing_given_is_the_device_alone() -> None:
    found = load().config

    assert found.workers == usable_cores()
    assert found.control == ControlAddress(default_control_path())
    assert found.state == default_state_path()
    assert (found.log_level, found.log_format) == ("info", "text")
    assert found.steering == "packet"
    assert found.pools == (
        PoolConfig(
            name="default",
            tunnel="generic",
            listen=ListenAddress("127.0.0.1", 0),
            resolvers=(AUTO,),
            settings=PoolSettings(name="default"),
        ),
    )


@pytest.mark.parametrize("content", ["{}", '{"pools": []}', '{"pools": [{"name": "default"}]}'])
def test_load_no_resolver_named_means_auto(tmp_path: Path, content: str) -> None:
    (pool,) = loaded(tmp_path, content).config.pools

    assert (pool.name, pool.resolvers) == ("default", (AUTO,))


def test_load_flags_win_over_file(tmp_path: Path) -> None:
    flags = Flags(
        resolvers=(parse_entry("9.9.9.9"), parse_entry("1.1.1.1"), parse_entry("9.9.9.9:53")),
        listen=ListenAddress("127.0.0.2", 53),
        tunnel="iodine",
        domain="i.example.com",
        workers=1,
        control=ControlAddress(Path("/tmp/c.sock")),
        state=Path("s.json"),
        log_level="error",
        log_format="text",
        steering="packet",
    )

    found = loaded(tmp_path, FULL, flags).config

    assert (found.workers, found.control) == (1, ControlAddress(Path("/tmp/c.sock")))
    assert (found.state, found.log_level) == (Path("s.json"), "error")
    assert (found.log_format, found.steering) == ("text", "packet")
    (pool,) = found.pools
    assert pool.resolvers == (parse("9.9.9.9"), parse("1.1.1.1"))
    assert pool.listen == ListenAddress("127.0.0.2", 53)
    assert (pool.tunnel, pool.domain) == ("iodine", "i.example.com")
    assert pool.settings.silent_failure is False  # the file's own field wins over the profile
    assert pool.settings.tunnel == "iodine"


def test_load_discovery_and_lists_as_the_file_and_the_flags_say(tmp_path: Path) -> None:
    content = {
        "lists": ["mine=https://lists.example/a.txt"],
        **smart_with(discovery={"sources": "lists", "check_command": "try {resolver}", "want": 4}),
    }
    found = loaded(tmp_path, content, Flags(country="TR")).config

    assert found.lists == (Source("mine", "https://lists.example/a.txt"),)
    settings = found.pools[0].discovery
    assert (settings.sources, settings.check_command) == (("lists",), "try {resolver}")
    assert (settings.country, settings.want) == ("TR", 4)
    assert settings.size_questions == ()
    asked = smart_with(discovery={"size_questions": ["a.example TXT", ". DNSKEY"]})
    (pool,) = loaded(tmp_path, asked).config.pools
    assert pool.discovery.size_questions == ("a.example TXT", ". DNSKEY")
    assert loaded(tmp_path, content, Flags(want=7)).config.pools[0].discovery.want == 7


def test_load_tunnel_flag_brings_that_tunnels_profile(tmp_path: Path) -> None:
    (pool,) = loaded(tmp_path, pool_with(tunnel="dnstt"), Flags(tunnel="iodine")).config.pools

    assert pool.settings.per_attempt_s == 6.0
    assert pool.settings.duplicate == 1


def test_load_flag_about_one_of_several_pools_is_refused(tmp_path: Path) -> None:
    flags = Flags(
        resolvers=(AUTO,), listen=ListenAddress("::1", 53), tunnel="soar", domain="a.b", workers=2
    )

    found = problems_of(tmp_path, {"pools": [{"name": "a"}, {"name": "b"}]}, flags)

    reason = "does not say which of the 2 pools of the file it is for"
    assert found == [
        f"{flag}: {reason}" for flag in ("--resolver", "--listen", "--tunnel", "--domain")
    ]


def test_load_smart_pool_off_leaves_the_pool_out(tmp_path: Path) -> None:
    content = {
        "pools": [
            {"name": "a", "smart_pool": False},
            {"name": "b", "smart_pool": {"enabled": False}},
            {"name": "c", "smart_pool": True},
            {"name": "d", "smart_pool": {"down_after": 2}},
        ]
    }

    found = loaded(tmp_path, content)

    assert [pool.name for pool in found.config.pools] == ["c", "d"]
    assert [note.split(": ", 1)[1] for note in found.notes] == [
        "pools[0]: smart_pool is off; not run",
        "pools[1]: smart_pool is off; not run",
    ]
    assert "smart_pool is off in all of them" in only_problem_of(
        tmp_path, pool_with(smart_pool=False)
    )


def test_load_relative_paths_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    found = loaded(tmp_path, {"control": "./c.sock", "state": "s.json"}).config

    assert found.control == ControlAddress(tmp_path / "c.sock")
    assert found.state == tmp_path / "s.json"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"worker": 2}, '1:2: worker: unknown field; did you mean "workers"?'),
        ({"log-level": "info"}, 'log-level: unknown field; did you mean "log_level"?'),
        ({"outbound": []}, 'outbound: unknown field; did you mean "outbounds"?'),
        ({"resolvers": []}, 'resolvers: unknown field; "resolvers" belongs in pools'),
        ({"x y\u001b": 1}, '["x y\\x1b"]: unknown field; known here are workers, control'),
        (pool_with(listn="x"), 'pools[0].listn: unknown field; did you mean "listen"?'),
        (pool_with(deadline="5s"), 'unknown field; "deadline" belongs in smart_pool'),
        (pool_with(workers=2), 'unknown field; "workers" belongs at the top of the file'),
        (smart_with(dedline="5s"), "pools[0].smart_pool.dedline: unknown field; did you mean"),
        (smart_with(country="IR"), 'unknown field; "country" belongs in discovery'),
        (
            smart_with(discovery={"sample_range": 1}),
            'discovery.sample_range: unknown field; did you mean "sample_ranges"?',
        ),
        ({"pools": {}}, "1:2: pools: expected a list, not an object"),
        ({"pools": ["x"]}, '1:12: pools[0]: expected an object, not "x"'),
        (pool_with(smart_pool=5), "smart_pool: expected true, false or an object, not 5"),
        (pool_with(smart_pool=[]), "smart_pool: expected true, false or an object, not a list"),
        (smart_with(discovery=True), "discovery: expected an object, not true"),
        (smart_with(enabled="yes"), 'enabled: expected true or false, not "yes"'),
        ({"workers": 0}, 'workers: expected a whole number from 1 to 256 or "auto", not 0'),
        ({"workers": True}, '"auto", not true'),
        ({"workers": 2.5}, '"auto", not 2.5'),
        ({"workers": None}, '"auto", not null'),
        ({"workers": 10**30}, '"auto", not 100000'),
        ({"workers": "2"}, '"auto", not "2"'),
        (smart_with(down_after=True), "expected a whole number from 1 to 1,000, not true"),
        (smart_with(down_after=0), "expected a whole number from 1 to 1,000, not 0"),
        (smart_with(down_after=8.0), "expected a whole number from 1 to 1,000, not 8"),
        (smart_with(duplicate=17), "expected a whole number from 1 to 16, not 17"),
        (smart_with(duplicate="2"), 'expected a whole number from 1 to 16, not "2"'),
        (smart_with(max_pending=-1), "expected a whole number from 1 to 10,000,000, not -1"),
        (smart_with(deadline=5), 'deadline: a duration needs a unit; did you mean "5s"?'),
        (smart_with(deadline=True), 'expected a duration such as "300ms", "5s" or "1m", not true'),
        (smart_with(deadline="5"), '"5": a duration needs a unit; did you mean "5s"?'),
        (smart_with(deadline="0s"), '"0s": expected a duration from 50ms to 1m'),
        (smart_with(deadline="2h"), '"2h": expected a duration from 50ms to 1m'),
        (smart_with(deadline=-1), "deadline: expected a duration from 50ms to 1m, not -1"),
        (smart_with(deadline=500), "deadline: expected a duration from 50ms to 1m, not 500"),
        (smart_with(deadline="500"), '"500": a duration needs a unit'),
        (smart_with(deadline=0), "expected a duration from 50ms to 1m, not 0"),
        (
            smart_with(load_balance="lowest"),
            '"lowest" is not known; did you mean "lowest_latency"?',
        ),
        (
            smart_with(load_balance="x"),
            '"x" is not known; expected "auto", "roundrobin", "weighted" or "lowest_latency"',
        ),
        (smart_with(hedge=True), 'expected "late" or "losing", not true'),
        (smart_with(on_failure="silent"), 'did you mean "silence"?'),
        (
            pool_with(tunnel="dnsttt"),
            'pools[0].tunnel: "dnsttt" is not known; did you mean "dnstt"?',
        ),
        ({"log_level": "warn"}, 'did you mean "warning"?'),
        ({"log_format": "xml"}, 'expected "text" or "json"'),
        ({"steering": "packets"}, 'did you mean "packet"?'),
        ({"control": "0.0.0.0:80"}, 'loopback only; did you mean "127.0.0.1:80"?'),
        ({"control": "unix:"}, "the path is missing"),
        ({"control": "/" + "x" * 107}, "a path of a Unix socket has at most 107 bytes"),
        ({"control": 5}, "expected a path or HOST:PORT, not 5"),
        ({"state": ""}, "state: is empty"),
        ({"state": "a\u0000b"}, "state: holds a control character"),
        (pool_with(name=""), "name: is empty"),
        (pool_with(name="a\nb"), "name: holds a control character"),
        (pool_with(name="x" * 129), "name: longer than 128 characters"),
        (pool_with(name=5), "name: expected a text, not 5"),
        (pool_with(domain="a..b"), "the name has an empty label"),
        (pool_with(domains=["a.b", 7]), "domains[1]: expected a domain name, not 7"),
        (pool_with(listen="53"), '"53": the host is missing; did you mean "127.0.0.1:53"?'),
        (pool_with(listen=":53"), 'did you mean "127.0.0.1:53"?'),
        (pool_with(listen="127.0.0.1"), 'the port is missing; did you mean "127.0.0.1:53"?'),
        (pool_with(listen="::1"), 'the port is missing; did you mean "[::1]:53"?'),
        (pool_with(listen="::1:53"), 'the port is missing; did you mean "[::1]:53"?'),
        (pool_with(listen="fe80::1:5353"), 'the port is missing; did you mean "[fe80::1]:5353"?'),
        (pool_with(listen="fd00::a:9"), 'the port is missing; did you mean "[fd00::a:9]:53"?'),
        (pool_with(listen="127.0.0.1:65536"), "is not a number from 0 to 65535"),
        (pool_with(listen="dns.example:53"), "an IP address, not a name"),
        (pool_with(listen="224.0.0.1:53"), "multicast"),
        (pool_with(listen=53), 'expected "HOST:PORT", not 53'),
        (
            pool_with(resolvers=["8.8.8.8", "8.8.8"]),
            'resolvers[1]: "8.8.8" is not an IPv4',
        ),
        (pool_with(resolvers=[["8.8.8.8"]]), "resolvers[0]: expected an address, not a list"),
        (pool_with(resolvers={}), "resolvers: expected a list, not an object"),
        (
            pool_with(resolvers=["auto", "https://1.1.1.1"]),
            'resolvers[1]: "https://1.1.1.1": the path of an https:// resolver is missing; '
            'did you mean "https://1.1.1.1/dns-query"?',
        ),
        (
            pool_with(listen="127.0.0.2:53", resolvers=["8.8.8.8", "127.0.0.2"]),
            'resolvers[1]: "udp://127.0.0.2:53": the pool itself listens on 127.0.0.2:53',
        ),
        (smart_with(discovery={"country": "Iran"}), "an ISO country code of two letters"),
        (smart_with(discovery={"country": "İR"}), "an ISO country code of two letters"),
        (smart_with(discovery={"sources": ["list"]}), 'sources[0]: "list" is not known; did you'),
        (smart_with(discovery={"check_command": 'try "x'}), "is no command: no closing quotation"),
        (
            smart_with(discovery={"size_questions": ["a.example TXT", "a.example"]}),
            'size_questions[1]: "a.example": expected a name and a type of record, such as',
        ),
        ({"lists": ["http://lists.example/a"]}, "a source is written NAME=https://HOST/PATH"),
        ({"lists": ["a=http://lists.example/a"]}, "a list is fetched from https://HOST/PATH"),
        (smart_with(discovery={"pace": "2m"}), '"2m": expected a duration from 0 to 1m'),
        (
            {"pools": [{"name": "a"}, {"name": "b"}, {"name": "a"}]},
            'pools[2].name: "a" is already the name of pools[0]',
        ),
        (
            {
                "pools": [
                    {"name": "a", "listen": "127.0.0.1:53"},
                    {"name": "b", "listen": "localhost:53"},
                ]
            },
            'pools[1].listen: "127.0.0.1:53" is already where pools[0] listens',
        ),
        ({"pools": [{"name": f"p{i}"} for i in range(257)]}, "at most 256 pools can run, not 257"),
        (
            {"pools": [{"name": "a", "listen": "127.0.0.1:0"}, {"name": "a"}]},
            '"a" is already the name of pools[0]',
        ),
    ],
)
def test_load_mistake_is_told_with_its_place(tmp_path: Path, content: object, message: str) -> None:
    found = only_problem_of(tmp_path, content)

    assert message in found
    assert found.isprintable()


def test_load_all_mistakes_are_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    content = """{
  "workers": true,
  "pools": [
    { "name": "a", "smart_pool": { "dedline": "5s", "deadline": 5, }, },
    { "name": 7, "listen": "53", "resolvers": ["8.8.8.8:99999", "auto", 5] },
  ],
  "colour": 1
}"""

    found = problems_of(tmp_path, content)

    assert found == [
        '2:3: workers: expected a whole number from 1 to 256 or "auto", not true',
        '4:36: pools[0].smart_pool.dedline: unknown field; did you mean "deadline"?',
        '4:53: pools[0].smart_pool.deadline: a duration needs a unit; did you mean "5s"?',
        "5:7: pools[1].name: expected a text, not 7",
        '5:18: pools[1].listen: "53": the host is missing; did you mean "127.0.0.1:53"?',
        '5:48: pools[1].resolvers[0]: "8.8.8.8:99999": '
        'port "99999" is not a number from 1 to 65535',
        "5:73: pools[1].resolvers[2]: expected an address, not 5",
        "7:3: colour: unknown field; known here are workers, control, state, log_level, "
        "log_format, steering, lists, pools, outbounds",
    ]


def test_load_toml_values_of_other_kinds_are_told(tmp_path: Path) -> None:
    path = written(tmp_path, "workers = 2026-02-26\nstate = nan\n", "relay.toml")

    with pytest.raises(ConfigProblems) as caught:
        load(path)

    assert str(caught.value).splitlines() == [
        f'{path}:1:1: workers: expected a whole number from 1 to 256 or "auto", not a date or time',
        f"{path}:2:1: state: expected a path, not nan",
    ]


JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["workers", "control", "pools", "name", "listen", "resolvers", "smart_pool", "discovery", "x"]
)
NEARLY = st.recursive(
    JSON_VALUE,
    lambda inner: st.dictionaries(FIELDS, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(FIELDS | st.just("outbounds"), NEARLY, max_size=4))
def test_load_any_object_gives_a_config_or_printable_problems(
    tmp_path: Path, content: dict[str, object]
) -> None:
    path = written(tmp_path, content)
    problems = ()
    try:
        found = load(path)
    except ConfigProblems as error:
        problems = error.problems

    assert problems or found.config.pools
    assert all(str(problem).isprintable() for problem in problems)


@pytest.mark.parametrize(
    ("text", "address", "canonical"),
    [
        ("127.0.0.1:0", ListenAddress("127.0.0.1", 0), "127.0.0.1:0"),
        ("localhost:53", ListenAddress("127.0.0.1", 53), "127.0.0.1:53"),
        ("[0::1]:53", ListenAddress("::1", 53), "[::1]:53"),
        ("0.0.0.0:53", ListenAddress("0.0.0.0", 53), "0.0.0.0:53"),
        ("[::]:53", ListenAddress("::", 53), "[::]:53"),
    ],
)
def test_parse_listen_accepted_form_is_canonical(
    text: str, address: ListenAddress, canonical: str
) -> None:
    assert parse_listen(text) == address
    assert str(address) == canonical


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/c.sock", ControlAddress(Path("/run/c.sock"))),
        ("/run/c:1.sock", ControlAddress(Path("/run/c:1.sock"))),
        ("c.sock", ControlAddress(Path("c.sock"))),
        ("127.0.0.1:8053", ControlAddress(None, "127.0.0.1", 8053)),
        ("localhost:8053", ControlAddress(None, "127.0.0.1", 8053)),
        ("[::1]:8053", ControlAddress(None, "::1", 8053)),
    ],
)
def test_parse_control_accepted_form_reads_back(text: str, address: ControlAddress) -> None:
    assert parse_control(text) == address
    assert parse_control(str(address)) == address


def test_default_control_path_follows_the_service_then_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = {"RUNTIME_DIRECTORY": "/run/relay-a:/run/b", "XDG_RUNTIME_DIR": "/run/user/7"}
    user = {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert default_control_path(service) == Path("/run/relay-a/control.sock")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_control_path(user) == Path("/run/relay/control.sock")
    monkeypatch.setattr("os.geteuid", lambda: 7)
    assert default_control_path(user) == Path("/run/user/7/relay/control.sock")
    nobody_says = Path(tempfile.gettempdir(), "relay-7", "control.sock")
    assert default_control_path({"XDG_RUNTIME_DIR": "x"}) == default_control_path({}) == nobody_says


def test_usable_cores_counts_what_the_process_may_use() -> None:
    assert usable_cores() == len(os.sched_getaffinity(0))
