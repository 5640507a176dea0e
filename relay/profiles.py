"""What each kind of tunnel needs of the pool, and how a pool's settings come about.

Used by: the configuration. The profile of the tunnel gives the defaults, the pool's own
`smart_pool` fields win over them. The figures are those of the tunnels' own clients and servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Final

from workers.settings import PoolSettings

SettingsChanges = Mapping[str, str | int | float | bool]
"""Fields of `PoolSettings` and the values that replace a profile's."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The defaults of one kind of tunnel, named as in `PoolSettings`."""

    duplicate: int = 1
    token_wait_s: float = 0.3
    per_attempt_s: float = 2.0
    hedge_only_losing: bool = False
    silent_failure: bool = False
    cut_to_client_size: bool = False


PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {
        "generic": Profile(cut_to_client_size=True),
        # KCP times its own resend: a question held back costs more than one that failed.
        "dnstt": Profile(duplicate=2, token_wait_s=0.0, silent_failure=True),
        "masterdns": Profile(duplicate=3),
        "soar": Profile(duplicate=2),
        # Its server holds a poll for 4 s: that is no loss, and no reason to ask elsewhere.
        "iodine": Profile(per_attempt_s=6.0, hedge_only_losing=True, silent_failure=True),
        "dns2tcp": Profile(hedge_only_losing=True, silent_failure=True),
    }
)


def pool_settings(
    name: str,
    tunnel: str,
    changes: SettingsChanges = MappingProxyType({}),
    *,
    packet_duplication: int | None = None,
    probe_name: str | None = None,
) -> PoolSettings:
    """Return the settings of one pool: the profile of `tunnel` with `changes` laid over it.

    `packet_duplication` is MasterDNS's own figure; it stands in for that profile's `duplicate`.
    """
    settings = PoolSettings(name=name, tunnel=tunnel, **asdict(PROFILES[tunnel]))
    if tunnel == "masterdns" and packet_duplication is not None:
        settings = replace(settings, duplicate=packet_duplication)
    if probe_name is not None:
        settings = replace(settings, probe_name=probe_name)
    return replace(settings, **changes)  # type: ignore[arg-type]
