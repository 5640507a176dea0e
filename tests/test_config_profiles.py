"""Profiles of the tunnels, and how a pool's settings come about."""

from __future__ import annotations

import pytest

from relay.profiles import PROFILES, pool_settings


@pytest.mark.parametrize(
    ("tunnel", "duplicate", "token_wait_s", "per_attempt_s", "only_losing", "silent", "cut"),
    [
        ("dnstt", 2, 0.0, 2.0, False, True, False),
        ("masterdns", 3, 0.3, 2.0, False, False, False),
        ("soar", 2, 0.3, 2.0, False, False, False),
        ("iodine", 1, 0.3, 6.0, True, True, False),
        ("dns2tcp", 1, 0.3, 2.0, True, True, False),
        ("generic", 1, 0.3, 2.0, False, False, True),
    ],
)
def test_pool_settings_profile_gives_the_tunnels_defaults(
    tunnel: str,
    duplicate: int,
    token_wait_s: float,
    per_attempt_s: float,
    only_losing: bool,
    silent: bool,
    cut: bool,
) -> None:
    settings = pool_settings("a", tunnel)

    assert (settings.name, settings.tunnel) == ("a", tunnel)
    assert settings.duplicate == duplicate
    assert settings.token_wait_s == token_wait_s
    assert settings.per_attempt_s == per_attempt_s
    assert settings.hedge_only_losing is only_losing
    assert settings.silent_failure is silent
    assert settings.cut_to_client_size is cut
    assert (settings.deadline_s, settings.probe_interval_s, settings.down_after) == (5.0, 5.0, 8)


@pytest.mark.parametrize("tunnel", PROFILES)
def test_pool_settings_changes_win_over_profile(tunnel: str) -> None:
    changes = {
        "duplicate": 7,
        "token_wait_s": 1.25,
        "per_attempt_s": 3.5,
        "hedge_only_losing": not PROFILES[tunnel].hedge_only_losing,
        "silent_failure": not PROFILES[tunnel].silent_failure,
    }

    settings = pool_settings("a", tunnel, changes, packet_duplication=5)

    assert {name: getattr(settings, name) for name in changes} == changes


def test_pool_settings_packet_duplication_counts_for_masterdns_only() -> None:
    assert pool_settings("a", "masterdns", packet_duplication=5).duplicate == 5
    assert pool_settings("a", "dnstt", packet_duplication=5).duplicate == 2


def test_pool_settings_probe_name_replaces_the_default() -> None:
    assert pool_settings("a", "soar", probe_name="probe.example").probe_name == "probe.example"
