"""Resolvers as objects, ways out and bootstrap of a pool: what is read, what wins, what is told."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.config import Flags, Loaded, PoolConfig, load
from relay.config_errors import ConfigProblems
from relay.resolver_address import AUTO, Options, parse
from relay.resolver_list import parse_bootstrap, parse_entry
from relay.ways_out import DIRECT, Proxy, parse_via
from tests.rig.certs import Authority
from tests.rig.relay import relay_command

SOCKS = Proxy("socks5", "127.0.0.1", 1080)
HASHED_STAMP = (
    "sdns://AwAAAAAAAAAABzkuOS45LjkgBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcNZG5zLnF1YWQ5Lm5ldA"
)


def written(tmp_path: Path, pool: object) -> Path:
    path = tmp_path / "relay.json"
    path.write_text(json.dumps({"pools": [pool]}))
    return path


def loaded(tmp_path: Path, flags: Flags | None = None, **pool: object) -> Loaded:
    return load(written(tmp_path, {"name": "a", **pool}), flags)


def pool_of(tmp_path: Path, flags: Flags | None = None, **pool: object) -> PoolConfig:
    (found,) = loaded(tmp_path, flags, **pool).config.pools
    return found


def only_problem_of(tmp_path: Path, **pool: object) -> str:
    path = written(tmp_path, {"name": "a", **pool})
    with pytest.raises(ConfigProblems) as caught:
        load(path)
    (line,) = str(caught.value).splitlines()
    return line.removeprefix(f"{path}:")


# -- objects -----------------------------------------------------------------------------------


def test_load_resolver_as_an_object_has_every_field(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    found = pool_of(
        tmp_path,
        resolvers=[
            {
                "address": "https://Dns.Example:444#192.0.2.1",
                "server_name": "Other.Example.",
                "ca_file": authority.file.name,
                "path": "/q",
                "method": "get",
                "via": "socks5://u:p@[::1]:1080",
                "bind": "lo",
                "weight": 3,
            },
            "8.8.8.8",
            {"address": "dot://192.0.2.1", "insecure": True, "via": "direct"},
            {"address": "auto", "weight": 2},
        ],
    ).resolvers

    assert found == (
        parse(
            "https://dns.example:444/q#192.0.2.1",
            Options(
                server_name="other.example",
                ca_file=str(authority.file),
                get=True,
                via=Proxy("socks5", "::1", 1080, "u", "p"),
                bind="lo",
                weight=3,
            ),
        ),
        parse("8.8.8.8"),
        parse("dot://192.0.2.1", Options(insecure=True, via=DIRECT)),
        parse("auto", Options(weight=2)),
    )


def test_load_resolver_as_an_object_in_toml(tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(
        '[[pools]]\nname = "a"\nvia = "http://127.0.0.1:8080"\nbootstrap = "9.9.9.9"\n'
        'resolvers = ["8.8.8.8", { address = "1.1.1.1", server_name = "one.one" }]\n'
        '[[pools]]\nname = "b"\n[[pools.resolvers]]\naddress = "https://1.1.1.1"\npath = "/q"\n'
    )

    first, second = load(path).config.pools

    via = Proxy("http", "127.0.0.1", 8080)
    dot = parse("dot://1.1.1.1", Options(server_name="one.one", via=via))
    assert first.resolvers == (parse("8.8.8.8"), dot)
    assert first.bootstrap == (parse("9.9.9.9"),)
    assert second.resolvers == (parse("https://1.1.1.1/q"),)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "1:40: pools[0].resolvers[0].address: the field is missing"),
        ({"address": 5}, "resolvers[0].address: expected an address, not 5"),
        ({"address": "8.8.8.8", "adress": ""}, 'adress: unknown field; did you mean "address"?'),
        ({"address": "8.8.8"}, 'resolvers[0]: "8.8.8" is not an IPv4 address'),
        ({"address": "file:x"}, "resolvers[0]: "),
        ({"address": "dot://a.b", "insecure": "yes"}, "insecure: expected true or false, not"),
        (
            {"address": "dot://a.b", "server_name": "a b"},
            'server_name: "a b" has a character',
        ),
        ({"address": "dot://a.b", "server_name": 5}, "server_name: expected a host name, not 5"),
        ({"address": "dot://a.b", "ca_file": "none"}, 'ca_file: "none": No such file or directory'),
        ({"address": "dot://a.b", "ca_file": "relay.json"}, "holds no certificate in PEM form"),
        ({"address": "dot://a.b", "ca_file": "."}, "ca_file: "),
        ({"address": "https://a.b", "path": "q"}, 'the path "q" starts with no "/"'),
        ({"address": "https://a.b/q", "method": "PUT"}, 'expected "POST" or "GET"'),
        ({"address": "dot://a.b", "method": "GET"}, '"method" is for https:// only'),
        ({"address": "8.8.8.8", "weight": 0}, "weight: expected a whole number from 1 to 1,000"),
        ({"address": "tcp://a.b", "via": "socks4://h:1"}, 'via: "socks4://h:1": "socks4://" is'),
        (
            {"address": "tcp://a.b", "via": None},
            'expected "socks5://HOST:PORT" or "http://HOST:PORT"',
        ),
        ({"address": "8.8.8.8", "via": "socks5://h:1"}, 'did you mean "tcp://8.8.8.8:53"?'),
        ({"address": "8.8.8.8", "bind": "1.2.3.4:5"}, 'bind: "1.2.3.4:5": a source address has no'),
        ({"address": "8.8.8.8", "bind": "::1"}, "cannot be asked from ::1: one is IPv4"),
        ({"address": "8.8.8.8", "bootstrap": "::1"}, 'unknown field; "bootstrap" belongs in pools'),
        ({"address": "udp://8.8.8.8", "ca_file": "ca"}, "ca_file: "),
    ],
)
def test_load_mistake_in_an_object_is_told_with_its_place(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    found = only_problem_of(tmp_path, resolvers=[fields])

    assert message in found
    assert found.startswith("1:")
    assert found.isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(
            ["address", "server_name", "ca_file", "insecure", "path", "method", "via", "bind"]
        ),
        st.sampled_from(["auto", "dot://a.b", "https://a.b/q", "8.8.8.8", "/q", "GET", "lo", ""])
        | st.none()
        | st.booleans()
        | st.text(max_size=8),
    )
)
def test_load_any_object_gives_a_resolver_or_printable_problems(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    path = written(tmp_path, {"name": "a", "resolvers": [fields]})
    problems = ()
    try:
        found = load(path)
    except ConfigProblems as error:
        problems = error.problems

    assert problems or found.config.pools[0].resolvers
    assert all(str(problem).isprintable() for problem in problems)


# -- ways out and bootstrap of a pool ----------------------------------------------------------


def test_load_ways_out_of_the_pool_are_for_resolvers_that_name_none(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("dot://9.9.9.9\n8.8.4.4\n")

    found = loaded(
        tmp_path,
        via="socks5://127.0.0.1:1080",
        bind="127.0.0.1",
        resolvers=[
            "8.8.8.8",
            "tcp://8.8.8.8",
            {"address": "tcp://8.8.4.4", "via": "direct"},
            "file:list",
        ],
    )

    (pool,) = found.config.pools
    assert [(str(each), each.proxy, each.bind) for each in pool.resolvers] == [
        ("udp://8.8.8.8:53", None, "127.0.0.1"),
        ("tcp://8.8.8.8:53", SOCKS, "127.0.0.1"),
        ("tcp://8.8.4.4:53", None, "127.0.0.1"),
        ("dot://9.9.9.9:853", SOCKS, "127.0.0.1"),
        ("udp://8.8.4.4:53", None, "127.0.0.1"),
    ]
    place = tmp_path / "list"
    assert found.warnings == (
        "pools[0].resolvers[0]: udp://8.8.8.8:53: asked directly: the proxy carries no UDP",
        f"{place}:2: udp://8.8.4.4:53: asked directly: the proxy carries no UDP",
    )


def test_load_flags_win_over_the_pools_ways_out_and_bootstrap(tmp_path: Path) -> None:
    flags = Flags(
        via=parse_via("http://127.0.0.2:8080"),
        bind="127.0.0.2",
        bootstrap=(parse_bootstrap("9.9.9.9"),),
    )

    pool = pool_of(
        tmp_path,
        flags,
        via="socks5://127.0.0.1:1080",
        bind="127.0.0.1",
        bootstrap=["8.8.8.8", "tcp://1.1.1.1"],
        resolvers=["tcp://8.8.8.8"],
    )

    (resolver,) = pool.resolvers
    assert (str(resolver.proxy), resolver.bind) == ("http://127.0.0.2:8080", "127.0.0.2")
    assert pool.bootstrap == (parse("9.9.9.9"),)


def test_load_direct_is_no_proxy_whoever_says_it(tmp_path: Path) -> None:
    via = "socks5://127.0.0.1:1080"
    udp = {"address": "8.8.8.8", "via": "direct"}

    for found in (
        loaded(tmp_path, Flags(via=DIRECT), via=via, resolvers=["8.8.8.8", "tcp://8.8.8.8"]),
        loaded(tmp_path, via=via, resolvers=[udp]),
    ):
        assert [each.proxy for each in found.config.pools[0].resolvers if each.proxy] == []
        assert found.warnings == ()


def test_load_flags_without_a_file_make_a_pool_with_them() -> None:
    flags = Flags(via=SOCKS, bind="lo", resolvers=(parse_entry("dot://a.b"), AUTO))

    found = load(None, flags)

    (pool,) = found.config.pools
    assert pool.resolvers == (
        parse("dot://a.b", Options(via=SOCKS, bind="lo")),
        parse("auto", Options(bind="lo")),
    )
    assert found.warnings == ("--resolver: auto: asked directly: the proxy carries no UDP",)


def test_load_bootstrap_takes_every_kind_with_a_known_address(tmp_path: Path) -> None:
    texts = ["9.9.9.9", "tcp://[2620:fe::fe]", "dot://dns.quad9.net#9.9.9.9", "auto"]

    assert pool_of(tmp_path, bootstrap=texts).bootstrap == tuple(map(parse, texts))


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (
            {"bootstrap": ["8.8.8.8", "dns.google"]},
            'bootstrap[1]: "dns.google": a resolver to look',
        ),
        ({"bootstrap": ["https://1.1.1.1/dns-query"]}, 'did you mean "dot://1.1.1.1"?'),
        ({"bootstrap": 5}, "bootstrap: expected a list, not 5"),
        ({"bootstrap": [5]}, "bootstrap[0]: expected an address, not 5"),
        (
            {"listen": "127.0.0.2:53", "bootstrap": ["9.9.9.9", "127.0.0.2"]},
            'bootstrap[1]: "udp://127.0.0.2:53": the pool itself listens on 127.0.0.2:53',
        ),
        ({"via": "127.0.0.1:1080"}, 'via: "127.0.0.1:1080": a proxy is written'),
        ({"bind": "a/b"}, 'bind: "a/b": is neither an IP address nor the name of an interface'),
        (
            {"bind": "127.0.0.1", "resolvers": ["8.8.8.8", "2620:fe::fe"]},
            'resolvers[1]: "udp://[2620:fe::fe]:53": cannot be asked from 127.0.0.1',
        ),
        ({"vai": "x"}, 'vai: unknown field; did you mean "via"?'),
    ],
)
def test_load_mistake_in_a_way_out_is_told_with_its_place(
    tmp_path: Path, pool: dict[str, object], message: str
) -> None:
    assert message in only_problem_of(tmp_path, **pool)


def test_load_flags_about_one_of_several_pools_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "relay.json"
    path.write_text('{"pools": [{"name": "a"}, {"name": "b"}]}')
    flags = Flags(via=SOCKS, bind="lo", bootstrap=(parse("9.9.9.9"),))

    with pytest.raises(ConfigProblems) as caught:
        load(path, flags)

    assert [str(problem).partition(":")[0] for problem in caught.value.problems] == [
        "--bootstrap",
        "--via",
        "--bind",
    ]


# -- what is said although it can be run -------------------------------------------------------


def test_load_what_can_be_run_and_should_be_known_is_a_warning(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        bind="192.0.2.9",
        resolvers=[
            {"address": "dot://192.0.2.1", "insecure": True},
            HASHED_STAMP,
            "dot://192.0.2.1",
            {"address": "tcp://192.0.2.1", "bind": "no-such-if"},
        ],
    )

    assert found.warnings == (
        "pools[0].resolvers[0]: dot://192.0.2.1:853: insecure: any certificate is taken, nobody is "
        "verified",
        "pools[0].resolvers[1]: dot://dns.quad9.net:853#9.9.9.9: the stamp pins certificates; "
        "these are verified by name only",
        "pools[0].resolvers[2]: dot://192.0.2.1:853: is there already as pools[0].resolvers[0]; "
        "the options of that one count",
        'pools[0].bind: "192.0.2.9": this machine does not have the address now',
        'pools[0].resolvers[3]: "no-such-if": there is no such interface now',
    )
    assert len(found.config.pools[0].resolvers) == 3


def test_load_remarks_on_many_resolvers_are_summed_up(tmp_path: Path) -> None:
    lines = [f"tcp://192.0.2.{n}" for n in range(10)] + [f"192.0.2.{n}" for n in range(100)]
    (tmp_path / "list").write_text("\n".join(lines))

    found = loaded(tmp_path, via="socks5://127.0.0.1:1080", resolvers=["file:list"])

    assert len(found.config.pools[0].resolvers) == 110
    assert len(found.warnings) == 6
    assert found.warnings[-1] == "95 more resolvers: asked directly: the proxy carries no UDP"


def test_load_resolvers_named_again_with_other_options_say_whose_count(tmp_path: Path) -> None:
    hosts = [f"dot://192.0.2.{n}" for n in range(8)]
    (tmp_path / "list").write_text("\n".join(hosts))
    again = [{"address": each, "weight": 3} for each in hosts]

    found = loaded(
        tmp_path, resolvers=["file:list", *again], smart_pool={"load_balance": "weighted"}
    )

    assert len(found.config.pools[0].resolvers) == 8
    assert found.warnings[0] == (
        f"pools[0].resolvers[1]: dot://192.0.2.0:853: is there already as {tmp_path}/list:1; "
        "the options of that one count"
    )
    assert len(found.warnings) == 6
    assert found.warnings[-1] == "3 more resolvers: are there already, with other options"
    flags = tuple(
        map(parse, ("dot://a.example#192.0.2.1,192.0.2.2", "dot://a.example#192.0.2.2,192.0.2.1"))
    )
    (warning,) = load(None, Flags(resolvers=flags)).warnings
    assert warning.endswith(
        ": is there already as an earlier --resolver; the options of that one count"
    )


def test_load_list_file_with_encrypted_resolvers_keeps_their_pins(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(
        f"dot://dns.google#8.8.8.8 # pinned\n https://dns.google/dns-query#8.8.4.4\n"
        f"#dot://no.such\n8.8.8.8#google\ntls://1.1.1.1 #x\n{HASHED_STAMP}\n"
    )

    found = pool_of(tmp_path, resolvers=["file:list"])

    assert [str(each) for each in found.resolvers] == [
        "dot://dns.google:853#8.8.8.8",
        "https://dns.google:443/dns-query#8.8.4.4",
        "udp://8.8.8.8:53",
        "dot://1.1.1.1:853",
        "dot://dns.quad9.net:853#9.9.9.9",
    ]


def test_check_says_what_is_insecure_and_no_password(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {
            "name": "a",
            "via": "socks5://user:secret@127.0.0.1:1080",
            "resolvers": ["8.8.8.8", {"address": "https://192.0.2.1/q", "insecure": True}],
        },
    )

    done = subprocess.run(
        [relay_command(), "check", "-c", str(path)], capture_output=True, text=True, timeout=30
    )

    assert done.returncode == 0
    assert "relay: warning: pools[0].resolvers[1]: https://192.0.2.1:443/q: insecure" in done.stderr
    assert "secret" not in done.stdout + done.stderr
