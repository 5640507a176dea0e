"""The shape of a configuration: which fields there are and what each may hold.

Used by: `relay.config`, where there is a file. pydantic walks the structure (unknown fields,
objects, lists); every value is read by a function of this project that says in its own words what
it expected. Nothing is coerced: true is no number and 5 is no duration.
"""

from __future__ import annotations

import shlex
import ssl
from collections.abc import Callable
from datetime import date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

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
from pydantic_core import ErrorDetails, PydanticCustomError

from relay.config import (
    DISCOVERY_SOURCES,
    LOG_FORMATS,
    LOG_LEVELS,
    STEERINGS,
    DiscoverySettings,
    FileSpec,
    PoolSpec,
    usable_cores,
)
from relay.config_errors import (
    BadValue,
    ConfigError,
    ConfigProblems,
    DurationError,
    Problem,
    did_you_mean,
    listed,
)
from relay.config_errors import Path as Place
from relay.config_file import Document
from relay.durations import duration_text, parse_duration_within
from relay.endpoints import (
    ControlAddress,
    ListenAddress,
    no_controls,
    parse_control,
    parse_country,
    parse_domain,
    parse_host,
    parse_listen,
)
from relay.lists.sources import Source, parse_source
from relay.printable import quoted
from relay.profiles import PROFILES, SettingsChanges
from relay.resolver_address import Options, ResolverAddress, parse
from relay.resolver_list import Entry, parse_bootstrap, parse_entry
from relay.ways_out import Proxy, parse_bind, parse_via
from shared.board import MAX_WORKERS

BALANCINGS: Final = ("auto", "roundrobin", "weighted", "lowest_latency")
HEDGES: Final = ("late", "losing")
FAILURES: Final = ("servfail", "silence")
METHODS: Final = ("POST", "GET")
MOST_COPIES: Final = 16
HEAVIEST: Final = 1_000
LONGEST_NAME: Final = 128


def refuse(message: str) -> NoReturn:
    """Say inside a validator what is wrong with a value."""
    raise PydanticCustomError("relay", "{message}", {"message": message})


def described(value: object) -> str:
    """Return a value as a message names it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)[:24]
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return "a date or time" if isinstance(value, date | datetime | time) else type(value).__name__


def _string(value: object, expected: str) -> str:
    if not isinstance(value, str):
        refuse(f"expected {expected}, not {described(value)}")
    return value


def _read(value: object, expected: str, parse: Callable[[str], Any]) -> Any:
    text = _string(value, expected)
    try:
        return parse(text)
    except ConfigError as error:
        refuse(str(error))


def _text(expected: str, parse: Callable[[str], Any]) -> PlainValidator:
    return PlainValidator(lambda value: _read(value, expected, parse))


def _based(expected: str, parse: Callable[[str, Path], Any]) -> PlainValidator:
    """Read a text in which a relative path is taken from the file's own folder."""

    def read(value: object, info: Info) -> Any:
        assert info.context is not None
        base: Path = info.context["base"]
        return _read(value, expected, lambda text: parse(text, base))

    return PlainValidator(read)


def _integer(lowest: int, highest: int) -> PlainValidator:
    def read(value: object) -> int:
        expected = f"expected a whole number from {lowest} to {highest:,}"
        if isinstance(value, bool) or not isinstance(value, int):
            refuse(f"{expected}, not {described(value)}")
        if not lowest <= value <= highest:
            refuse(f"{expected}, not {described(value)}")
        return value

    return PlainValidator(read)


def _choice(names: tuple[str, ...]) -> PlainValidator:
    def read(value: object) -> str:
        text = _string(value, listed([quoted(name) for name in names]))
        if text not in names:
            near = did_you_mean(text, names)
            expected = "" if near else f"; expected {listed([quoted(name) for name in names])}"
            refuse(f"{quoted(text)} is not known{near}{expected}")
        return text

    return PlainValidator(read)


def _duration(lowest_s: float, highest_s: float) -> PlainValidator:
    def within(text: str) -> float:
        return parse_duration_within(text, lowest_s, highest_s)

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return float(_read(value, 'a duration such as "300ms", "5s" or "1m"', within))
        if value == 0 and lowest_s == 0:
            return 0.0  # needs no unit
        meant = f"{described(value)}s"
        try:
            within(meant)
        except DurationError:
            bounds = f"{duration_text(lowest_s)} to {duration_text(highest_s)}"
            refuse(f"expected a duration from {bounds}, not {described(value)}")
        refuse(f"a duration needs a unit; did you mean {quoted(meant)}?")

    return PlainValidator(read)


def _workers(value: object) -> int:
    if value == "auto":
        return usable_cores()
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_WORKERS:
        refuse(f'expected a whole number from 1 to {MAX_WORKERS} or "auto", not {described(value)}')
    return value


def _country(value: object) -> str:
    return str(_read(value, "an ISO country code of two letters", parse_country))


def _name(text: str) -> str:
    return no_controls(text, LONGEST_NAME)


def _path(text: str) -> str:
    return no_controls(text, 1024)


def _command(text: str) -> str:
    try:
        command = no_controls(text, 4096)
        shlex.split(command)
    except ValueError as error:
        raise BadValue(f"is no command: {str(error).lower()}", text=text) from None
    return command


def _size_question(text: str) -> str:
    # Seldom there, and every start would pay for it.
    from relay.discovery.check_sizes import size_question

    try:
        size_question(text)
    except ValueError as error:
        raise BadValue(str(error), text=text) from None
    return text


def _state_path(text: str, base: Path) -> Path:
    return base / no_controls(text, 4096)


def _ca_file(text: str, base: Path) -> str:
    path = (base / no_controls(text, 4096)).absolute()
    try:
        # As the workers will: what cannot be loaded is found here and not when a resolver fails.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        raise BadValue("holds no certificate in PEM form", text=text) from None
    except OSError as error:
        raise BadValue(error.strerror or str(error), text=text) from None
    return str(path)


def _server_name(text: str) -> str:
    try:
        return parse_host(no_controls(text, 255))
    except BadValue as error:
        raise error.about(text) from None


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        refuse(f"expected true or false, not {described(value)}")
    return value


def _opened_switch(value: object) -> object:
    return {"enabled": value} if isinstance(value, bool) else value


def _opened_text(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


Handler = Callable[[object], "ResolverModel"]

Country = Annotated[str | None, PlainValidator(_country)]
Domain = Annotated[str, _text("a domain name", parse_domain)]
Domains = Annotated[list[Domain], BeforeValidator(_opened_text)]
Text = Annotated[str | None, _text("a text", _name)]
Copies = Annotated[int | None, _integer(1, MOST_COPIES)]
Switch = Annotated[bool | None, PlainValidator(_switch)]
Via = Annotated[Proxy | None, _text('"socks5://HOST:PORT" or "http://HOST:PORT"', parse_via)]
Bind = Annotated[str, _text("an IP address or the name of an interface", parse_bind)]
Bootstrap = Annotated[
    list[Annotated[ResolverAddress, _text("an address", parse_bootstrap)]],
    BeforeValidator(_opened_text),
]


class ResolverModel(_Strict):
    """The fields of an entry of `resolvers`; a text stands for one with an address alone."""

    address: Annotated[str, PlainValidator(lambda value: _string(value, "an address"))]
    server_name: Annotated[str, _text("a host name", _server_name)] = ""
    ca_file: Annotated[str, _based("a path", _ca_file)] = ""
    insecure: Annotated[bool, PlainValidator(_switch)] = False
    path: Annotated[str, _text("a path", _path)] = ""
    method: Annotated[str | None, _choice(METHODS), BeforeValidator(_upper)] = None
    via: Via = None
    bind: Bind = ""
    weight: Annotated[int, _integer(1, HEAVIEST)] = 1
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
            model._entry = _read(model.address, "an address", model._parsed)
            return model
        assert info.context is not None
        base: Path = info.context["base"]
        entry = _read(value, "an address", lambda text: parse_entry(text, base))
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
Resolvers = Annotated[list[Resolver], BeforeValidator(_opened_text)]


class DiscoveryModel(_Strict):
    """The fields of `discovery`."""

    country: Country = None
    sample_ranges: Annotated[int, _integer(0, 1_000_000)] = 0
    want: Annotated[int, _integer(1, 10_000)] = 10
    concurrency: Annotated[int, _integer(1, 10_000)] = 100
    pace: Annotated[float, _duration(0, 60)] = 0.0
    sources: Annotated[
        list[Annotated[str, _choice(DISCOVERY_SOURCES)]], BeforeValidator(_opened_text)
    ] = list(DISCOVERY_SOURCES)
    check_command: Annotated[str | None, _text("a command", _command)] = None
    size_questions: Annotated[
        list[Annotated[str, _text("a name and a type of record", _size_question)]],
        BeforeValidator(_opened_text),
    ] = []

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
    load_balance: Annotated[str | None, _choice(BALANCINGS)] = None
    deadline: Annotated[float | None, _duration(0.05, 60)] = None
    per_attempt: Annotated[float | None, _duration(0.01, 60)] = None
    probe_interval: Annotated[float | None, _duration(0.1, 3600)] = None
    down_after: Annotated[int | None, _integer(1, 1_000)] = None
    duplicate: Copies = None
    token_wait: Annotated[float | None, _duration(0, 60)] = None
    hedge: Annotated[str | None, _choice(HEDGES)] = None
    on_failure: Annotated[str | None, _choice(FAILURES)] = None
    max_pending: Annotated[int | None, _integer(1, 10_000_000)] = None
    max_connections: Annotated[int | None, _integer(0, 100_000)] = None
    tcp_idle: Annotated[float | None, _duration(0.1, 3600)] = None
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


SmartPool = Annotated[SmartPoolModel, BeforeValidator(_opened_switch)]


class PoolModel(_Strict):
    """The fields of one entry of `pools`."""

    name: Text = None
    tunnel: Annotated[str, _choice(tuple(PROFILES))] = "generic"
    domain: Annotated[str | None, _text("a domain name", parse_domain)] = None
    domains: Domains = []
    listen: Annotated[ListenAddress | None, _text('"HOST:PORT"', parse_listen)] = None
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

    workers: Annotated[int | None, PlainValidator(_workers)] = None
    control: Annotated[ControlAddress | None, _based("a path or HOST:PORT", parse_control)] = None
    state: Annotated[Path | None, _based("a path", _state_path)] = None
    log_level: Annotated[str | None, _choice(LOG_LEVELS)] = None
    log_format: Annotated[str | None, _choice(LOG_FORMATS)] = None
    steering: Annotated[str | None, _choice(STEERINGS)] = None
    lists: Annotated[
        list[Annotated[Source, _text('"NAME=https://..."', parse_source)]],
        BeforeValidator(_opened_text),
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
