"""The configuration of a tunnel core, taken as it is: its `outbounds` become pools.

Used by: `relay.config_model`. It is another program's file, so whatever the relay does not use is
left out with a note and is no mistake; `smart_pool`, which is the relay's own, is read strictly.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from relay.config import FileSpec, PoolSpec
from relay.config_errors import ConfigProblems, Problem
from relay.config_errors import Path as Place
from relay.config_file import Document
from relay.config_model import FileModel, Resolvers, SmartPool, SmartPoolModel, validated
from relay.config_values import LONGEST_NAME, Copies, Domains, Text, described
from relay.printable import counted
from shared.printable import printable

TUNNELS: Final = ("dnstt", "masterdns", "soar")
_USED: Final = ("type", "tag")
_FIELDS_NAMED: Final = 12


class OutboundModel(BaseModel):
    """The fields of an outbound that the relay uses."""

    model_config = ConfigDict(extra="ignore", strict=True, arbitrary_types_allowed=True)

    domain: Domains = []
    domains: Domains = []
    resolvers: Resolvers = []
    pretest_domain: Domains = []
    packet_duplication: Copies = None
    record_type: Text = None
    smart_pool: SmartPool = SmartPoolModel()


def outbounds_spec(document: Document) -> FileSpec:
    """Return a pool for every tunnel outbound whose smart pool is on; raise `ConfigProblems`."""
    source = str(document.path)
    outbounds = document.data["outbounds"]
    if "pools" in document.data:
        raise _wrong('a file has either "pools" or "outbounds", not both', ("pools",))
    if not isinstance(outbounds, list):
        raise _wrong(f"expected a list, not {described(outbounds)}", ("outbounds",))
    own = [name for name in FileModel.model_fields if name in document.data]
    notes = [
        f"{source}: {name}: ignored beside outbounds"
        + ("" if name == "lists" else f"; use --{name.replace('_', '-')}")
        for name in own
    ]
    pools: list[PoolSpec] = []
    problems: list[Problem] = []
    others = 0
    for index, outbound in enumerate(outbounds):
        kind = outbound.get("type") if isinstance(outbound, dict) else None
        if kind not in TUNNELS:
            others += 1
            continue
        label = f"{source}: outbounds[{index}] ({printable(_tag(outbound, kind, index))})"
        try:
            spec = _pool(document, outbound, index)
        except ConfigProblems as error:
            problems += error.problems
            continue
        if spec is None:
            notes.append(f"{label}: smart_pool is off; not run")
            continue
        pools.append(spec)
        if unused := _unused(outbound):
            notes.append(f"{label}: not used: {unused}")
    if others:
        notes.append(f"{source}: {counted(others, 'other outbound')} ignored")
    if problems:
        raise ConfigProblems(problems)
    if not pools:
        wanted = "no outbound of type dnstt, masterdns or soar has smart_pool on"
        raise _wrong(wanted, ("outbounds",))
    return FileSpec(pools=tuple(pools), notes=tuple(notes))


def _wrong(message: str, path: Place) -> ConfigProblems:
    return ConfigProblems([Problem(message, path)])


def _tag(outbound: dict[str, Any], kind: str, index: int) -> str:
    tag = outbound.get("tag")
    return tag if isinstance(tag, str) and tag else f"{kind}-{index}"


def _pool(document: Document, outbound: dict[str, Any], index: int) -> PoolSpec | None:
    if not _is_on(outbound.get("smart_pool")):
        return None
    # The core spells some fields with hyphens; null is the same as absent there.
    fields = {k.replace("-", "_"): v for k, v in outbound.items() if v is not None}
    if fields.get("packet_duplication") == 0:
        del fields["packet_duplication"]  # and so is its zero
    place: Place = ("outbounds", index)
    model = validated(OutboundModel, fields, document, place)
    kind = outbound["type"]
    return PoolSpec(
        path=place,
        name=_tag(outbound, kind, index)[:LONGEST_NAME],
        tunnel=kind,
        resolvers=tuple(each.entry for each in model.resolvers),
        changes=model.smart_pool.changes(),
        discovery=model.smart_pool.discovery.settings(),
        discovery_said=model.smart_pool.discovery.said(),
        domains=tuple(dict.fromkeys((*model.domain, *model.domains))),
        record_type=model.record_type,
        pretest_domains=tuple(model.pretest_domain),
        packet_duplication=model.packet_duplication,
    )


def _is_on(switch: object) -> bool:
    # Anything else than a switch that is off is read, so that a mistake in it is found.
    if isinstance(switch, dict):
        return switch.get("enabled", False) is not False
    return switch is not None and switch is not False


def _unused(outbound: dict[str, Any]) -> str:
    known = (*_USED, *OutboundModel.model_fields)
    names = [printable(name, 40) for name in outbound if name.replace("-", "_") not in known]
    more = ["..."] if len(names) > _FIELDS_NAMED else []
    return ", ".join([*names[:_FIELDS_NAMED], *more])
