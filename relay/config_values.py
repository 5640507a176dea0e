"""How the values of a configuration are read, and how a wrong one is told.

Used by: `relay.config_model` and `relay.config_outbounds`, whose models say which field holds which
value. Every value is read by a function of this project that says in its own words what it
expected. Nothing is coerced: true is no number and 5 is no duration.
"""

from __future__ import annotations

import shlex
import ssl
from collections.abc import Callable
from datetime import date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

from pydantic import BeforeValidator, PlainValidator
from pydantic import ValidationInfo as Info
from pydantic_core import PydanticCustomError

from relay.config import usable_cores
from relay.config_errors import BadValue, ConfigError, DurationError, did_you_mean, listed
from relay.durations import duration_text, parse_duration_within
from relay.endpoints import no_controls, parse_country, parse_domain, parse_host
from relay.resolver_address import ResolverAddress
from relay.resolver_list import parse_bootstrap
from relay.ways_out import Proxy, parse_bind, parse_via
from shared.board import MAX_WORKERS
from shared.printable import quoted

MOST_COPIES: Final = 16
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


def string(value: object, expected: str) -> str:
    """Return a value that must be a text."""
    if not isinstance(value, str):
        refuse(f"expected {expected}, not {described(value)}")
    return value


def parsed(value: object, expected: str, parse: Callable[[str], Any]) -> Any:
    """Return what `parse` makes of a text; its ConfigError becomes the message."""
    text = string(value, expected)
    try:
        return parse(text)
    except ConfigError as error:
        refuse(str(error))


def text(expected: str, parse: Callable[[str], Any]) -> PlainValidator:
    """Read a text with `parse`, which raises ConfigError."""
    return PlainValidator(lambda value: parsed(value, expected, parse))


def based(expected: str, parse: Callable[[str, Path], Any]) -> PlainValidator:
    """Read a text in which a relative path is taken from the file's own folder."""

    def read(value: object, info: Info) -> Any:
        assert info.context is not None
        base: Path = info.context["base"]
        return parsed(value, expected, lambda text: parse(text, base))

    return PlainValidator(read)


def integer(lowest: int, highest: int) -> PlainValidator:
    """Read a whole number within bounds."""

    def read(value: object) -> int:
        expected = f"expected a whole number from {lowest} to {highest:,}"
        if isinstance(value, bool) or not isinstance(value, int):
            refuse(f"{expected}, not {described(value)}")
        if not lowest <= value <= highest:
            refuse(f"{expected}, not {described(value)}")
        return value

    return PlainValidator(read)


def choice(names: tuple[str, ...]) -> PlainValidator:
    """Read one of some names."""

    def read(value: object) -> str:
        text = string(value, listed([quoted(name) for name in names]))
        if text not in names:
            near = did_you_mean(text, names)
            expected = "" if near else f"; expected {listed([quoted(name) for name in names])}"
            refuse(f"{quoted(text)} is not known{near}{expected}")
        return text

    return PlainValidator(read)


def duration(lowest_s: float, highest_s: float) -> PlainValidator:
    """Read a text as seconds within bounds; 0 needs no unit where it is one of them."""

    def within(text: str) -> float:
        return parse_duration_within(text, lowest_s, highest_s)

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return float(parsed(value, 'a duration such as "300ms", "5s" or "1m"', within))
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


def switch(value: object) -> bool:
    """Return a value that must be true or false."""
    if not isinstance(value, bool):
        refuse(f"expected true or false, not {described(value)}")
    return value


def opened_switch(value: object) -> object:
    """Let true or false stand for an object with `enabled` alone."""
    return {"enabled": value} if isinstance(value, bool) else value


def opened_text(value: object) -> object:
    """Let a text stand for a list of it alone."""
    return [value] if isinstance(value, str) else value


def upper(value: object) -> object:
    """Let a text stand for itself in capital letters."""
    return value.upper() if isinstance(value, str) else value


# -- values of single fields ------------------------------------------------------------------


def _workers(value: object) -> int:
    if value == "auto":
        return usable_cores()
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_WORKERS:
        refuse(f'expected a whole number from 1 to {MAX_WORKERS} or "auto", not {described(value)}')
    return value


def _country(value: object) -> str:
    return str(parsed(value, "an ISO country code of two letters", parse_country))


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


Country = Annotated[str | None, PlainValidator(_country)]
Domain = Annotated[str, text("a domain name", parse_domain)]
Domains = Annotated[list[Domain], BeforeValidator(opened_text)]
Text = Annotated[str | None, text("a text", _name)]
Copies = Annotated[int | None, integer(1, MOST_COPIES)]
Switch = Annotated[bool | None, PlainValidator(switch)]
Via = Annotated[Proxy | None, text('"socks5://HOST:PORT" or "http://HOST:PORT"', parse_via)]
Bind = Annotated[str, text("an IP address or the name of an interface", parse_bind)]
Bootstrap = Annotated[
    list[Annotated[ResolverAddress, text("an address", parse_bootstrap)]],
    BeforeValidator(opened_text),
]
CaFile = Annotated[str, based("a path", _ca_file)]
CheckCommand = Annotated[str | None, text("a command", _command)]
ServerName = Annotated[str, text("a host name", _server_name)]
SizeQuestion = Annotated[str, text("a name and a type of record", _size_question)]
StatePath = Annotated[Path | None, based("a path", _state_path)]
UrlPath = Annotated[str, text("a path", _path)]
Workers = Annotated[int | None, PlainValidator(_workers)]
