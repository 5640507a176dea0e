"""The shape of a configuration: which fields there are and what each may hold.

Used by: `relay.config`, where there is a file. pydantic walks the structure (unknown fields,
objects, lists); how a value is read stands in `relay.config_values`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    WrapValidator,
)
from pydantic import ValidationInfo as Info
from pydantic_core import ErrorDetails

from relay.config import (
    DISCOVERY_SOURCES,
    LOG_FORMATS,
    LOG_LEVELS,
    STEERINGS,
    DiscoverySettings,
    FileSpec,
    PoolSpec,
)
from relay.config_errors import (
    ConfigProblems,
    Problem,
    did_you_mean,
)
from relay.config_errors import Path as Place
from relay.config_file import Document
from relay.config_values import (
    Bind,
    Bootstrap,
    CaFile,
    CheckCommand,
    Copies,
    Country,
    Domains,
    ServerName,
    SizeQuestion,
    StatePath,
    Switch,
    Text,
    UrlPath,
    Via,
    Workers,
    based,
    choice,
    described,
    duration,
    integer,
    opened_switch,
    opened_text,
    parsed,
    string,
    switch,
    text,
    upper,
)
from relay.endpoints import (
    ControlAddress,
    ListenAddress,
    parse_control,
    parse_domain,
    parse_listen,
)
from relay.lists.sources import Source, parse_source
from relay.profiles import PROFILES, SettingsChanges
from relay.resolver_address import Options, ResolverAddress, parse
from relay.resolver_list import Entry, parse_entry
from shared.printable import quoted

BALANCINGS: Final = ("auto", "roundrobin", "weighted", "lowest_latency")
HEDGES: Final = ("late", "losing")
FAILURES: Final = ("servfail", "silence")
METHODS: Final = ("POST", "GET")
HEAVIEST: Final = 1_000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


Handler = Callable[[object], "ResolverModel"]


class ResolverModel(_Strict):
    """The fields of an entry of `resolvers`; a text stands for one with an address alone."""

    address: Annotated[str, PlainValidator(lambda value: string(value, "an address"))]
    server_name: ServerName = ""
    ca_file: CaFile = ""
    insecure: Annotated[bool, PlainValidator(switch)] = False
    path: UrlPath = ""
    method: Annotated[str | None, choice(METHODS), BeforeValidator(upper)] = None
    via: Via = None
    bind: Bind = ""
    weight: Annotated[int, integer(1, HEAVIEST)] = 1
    _entry: Entry = PrivateAttr()

    @property
    def entry(self) -> Entry:
        """What the entry names."""
        return self._entry

    @classmethod
    def read(cls, value: object, handler: Handler, info: Info) -> ResolverModel:
        """Read an entry, a text or an object."""
        if isinstance(value, dict):
            model = handler(value)
            model._entry = parsed(model.address, "an address", model._parsed)
            return model
        assert info.context is not None
        base: Path = info.context["base"]
        entry = parsed(value, "an address", lambda text: parse_entry(text, base))
        model = cls.model_construct()
        model._entry = entry
        return model

    def _parsed(self, text: str) -> ResolverAddress:
        return parse(
            text,
            Options(
                server_name=self.server_name,
                ca_file=self.ca_file,
                insecure=self.insecure,
                path=self.path,
                get=None if self.method is None else self.method == "GET",
                via=self.via,
                bind=self.bind,
                weight=self.weight,
            ),
        )


Resolver = Annotated[ResolverModel, WrapValidator(ResolverModel.read)]
Resolvers = Annotated[list[Resolver], BeforeValidator(opened_text)]


class DiscoveryModel(_Strict):
    """The fields of `discovery`."""

    country: Country = None
    sample_ranges: Annotated[int, integer(0, 1_000_000)] = 0
    want: Annotated[int, integer(1, 10_000)] = 10
    concurrency: Annotated[int, integer(1, 10_000)] = 100
    pace: Annotated[float, duration(0, 60)] = 0.0
    sources: Annotated[
        list[Annotated[str, choice(DISCOVERY_SOURCES)]], BeforeValidator(opened_text)
    ] = list(DISCOVERY_SOURCES)
    check_command: CheckCommand = None
    size_questions: Annotated[list[SizeQuestion], BeforeValidator(opened_text)] = []

    def said(self) -> tuple[str, ...]:
        """Return the names of the fields that are there."""
        return tuple(name for name in type(self).model_fields if name in self.model_fields_set)

    def settings(self) -> DiscoverySettings:
        """Return the fields under the names that the rest of the relay has for them."""
        return DiscoverySettings(
            country=self.country,
            sample_ranges=self.sample_ranges,
            want=self.want,
            concurrency=self.concurrency,
            pace_s=self.pace,
            sources=tuple(dict.fromkeys(self.sources)),
            check_command=self.check_command,
            size_questions=tuple(self.size_questions),
        )


class SmartPoolModel(_Strict):
    """The fields of `smart_pool`. None: the tunnel's profile decides."""

    enabled: Switch = None
    load_balance: Annotated[str | None, choice(BALANCINGS)] = None
    deadline: Annotated[float | None, duration(0.05, 60)] = None
    per_attempt: Annotated[float | None, duration(0.01, 60)] = None
    probe_interval: Annotated[float | None, duration(0.1, 3600)] = None
    down_after: Annotated[int | None, integer(1, 1_000)] = None
    duplicate: Copies = None
    token_wait: Annotated[float | None, duration(0, 60)] = None
    hedge: Annotated[str | None, choice(HEDGES)] = None
    on_failure: Annotated[str | None, choice(FAILURES)] = None
    max_pending: Annotated[int | None, integer(1, 10_000_000)] = None
    max_connections: Annotated[int | None, integer(0, 100_000)] = None
    tcp_idle: Annotated[float | None, duration(0.1, 3600)] = None
    discovery: DiscoveryModel = DiscoveryModel()

    def changes(self) -> SettingsChanges:
        """Return what the file says, as fields of `PoolSettings`."""
        said: dict[str, Any] = {
            "load_balance": self.load_balance,
            "deadline_s": self.deadline,
            "per_attempt_s": self.per_attempt,
            "probe_interval_s": self.probe_interval,
            "down_after": self.down_after,
            "duplicate": self.duplicate,
            "token_wait_s": self.token_wait,
            "hedge_only_losing": self.hedge and self.hedge == "losing",
            "silent_failure": self.on_failure and self.on_failure == "silence",
            "max_pending": self.max_pending,
            "max_connections": self.max_connections,
            "tcp_idle_s": self.tcp_idle,
        }
        return {name: value for name, value in said.items() if value is not None}


SmartPool = Annotated[SmartPoolModel, BeforeValidator(opened_switch)]


class PoolModel(_Strict):
    """The fields of one entry of `pools`."""

    name: Text = None
    tunnel: Annotated[str, choice(tuple(PROFILES))] = "generic"
    domain: Annotated[str | None, text("a domain name", parse_domain)] = None
    domains: Domains = []
    listen: Annotated[ListenAddress | None, text('"HOST:PORT"', parse_listen)] = None
    resolvers: Resolvers = []
    bootstrap: Bootstrap = []
    via: Via = None
    bind: Bind = ""
    pretest_domain: Domains = []
    packet_duplication: Copies = None
    record_type: Text = None
    smart_pool: SmartPool = SmartPoolModel()


class FileModel(_Strict):
    """The fields of the relay's own configuration file."""

    workers: Workers = None
    control: Annotated[ControlAddress | None, based("a path or HOST:PORT", parse_control)] = None
    state: StatePath = None
    log_level: Annotated[str | None, choice(LOG_LEVELS)] = None
    log_format: Annotated[str | None, choice(LOG_FORMATS)] = None
    steering: Annotated[str | None, choice(STEERINGS)] = None
    lists: Annotated[
        list[Annotated[Source, text('"NAME=https://..."', parse_source)]],
        BeforeValidator(opened_text),
    ] = []
    pools: list[PoolModel] = []


_MODELS: Final[dict[str, type[BaseModel]]] = {
    "": FileModel,
    "pools": PoolModel,
    "resolvers": ResolverModel,
    "smart_pool": SmartPoolModel,
    "discovery": DiscoveryModel,
}
Model = TypeVar("Model", bound=BaseModel)
_OBJECT_OR_SWITCH: Final = "true, false or an object"


def file_spec(document: Document) -> FileSpec:
    """Return what a file says; raise `ConfigProblems` with all that is wrong with it."""
    if "outbounds" in document.data:
        from relay.config_outbounds import outbounds_spec

        return outbounds_spec(document)
    model = validated(FileModel, document.data, document)
    pools = [
        _pool_spec(pool, ("pools", index))
        for index, pool in enumerate(model.pools)
        if pool.smart_pool.enabled is not False
    ]
    if model.pools and not pools:
        message = "no pool is left: smart_pool is off in all of them"
        raise ConfigProblems([Problem(message, ("pools",))])
    notes = tuple(
        f"{document.path}: pools[{index}]: smart_pool is off; not run"
        for index, pool in enumerate(model.pools)
        if pool.smart_pool.enabled is False
    )
    return FileSpec(
        pools=tuple(pools),
        workers=model.workers,
        control=model.control,
        state=model.state,
        log_level=model.log_level,
        log_format=model.log_format,
        steering=model.steering,
        lists=tuple(dict.fromkeys(model.lists)),
        notes=notes,
    )


def _pool_spec(model: PoolModel, path: Place) -> PoolSpec:
    return PoolSpec(
        path=path,
        name=model.name or f"pool-{path[-1]}",
        tunnel=model.tunnel,
        listen=model.listen,
        resolvers=tuple(each.entry for each in model.resolvers),
        bootstrap=tuple(model.bootstrap),
        via=model.via,
        bind=model.bind,
        changes=model.smart_pool.changes(),
        discovery=model.smart_pool.discovery.settings(),
        discovery_said=model.smart_pool.discovery.said(),
        domains=(*([model.domain] if model.domain else []), *model.domains),
        record_type=model.record_type,
        pretest_domains=tuple(model.pretest_domain),
        packet_duplication=model.packet_duplication,
    )


def validated(kind: type[Model], value: object, document: Document, path: Place = ()) -> Model:
    """Return `value`, which stands at `path`, as a model; raise `ConfigProblems`."""
    try:
        return kind.model_validate(value, context={"base": document.path.parent})
    except ValidationError as error:
        raise ConfigProblems(_problem(details, path) for details in error.errors()) from None


def _problem(details: ErrorDetails, base: Place) -> Problem:
    path = (*base, *details["loc"])
    value = details["input"]
    match details["type"]:
        case "extra_forbidden":
            message = _unknown_field(path)
        case "missing":
            message = "the field is missing"
        case "model_type":
            wanted = _OBJECT_OR_SWITCH if path[-1:] == ("smart_pool",) else "an object"
            message = f"expected {wanted}, not {described(value)}"
        case "list_type":
            message = f"expected a list, not {described(value)}"
        case _:
            message = details["msg"]
    return Problem(message, path)


def _unknown_field(path: Place) -> str:
    name = str(path[-1])
    around = next((step for step in reversed(path[:-1]) if isinstance(step, str)), "")
    fields = list(_MODELS[around].model_fields)
    if not around:
        fields.append("outbounds")
    if near := did_you_mean(name, fields):
        return f"unknown field{near}"
    plain = name.lower().replace("-", "_")
    for holder, model in _MODELS.items():
        if plain in model.model_fields:
            place = f"in {holder}" if holder else "at the top of the file"
            return f"unknown field; {quoted(plain)} belongs {place}"
    return f"unknown field; known here are {', '.join(fields)}"
