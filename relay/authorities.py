"""Whether the authorities that the environment names, instead of the system's, can be used.

Used by: the command, where anybody is asked over TLS. `SSL_CERT_FILE` and `SSL_CERT_DIR` are
OpenSSL's; it passes over in silence what it cannot read, and then no certificate is trusted.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Iterable, Mapping
from typing import Final

from relay.config import PoolConfig
from shared.printable import quoted

_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_MAY_FIND: Final = ("known", "lists")
"""Sources of `auto` that have DoT and DoH servers."""

_MOST_FOLDERS: Final = 8
_MOST_FILES: Final = 10_000
"""Of a folder, looked through at most."""

_HASHED: Final = re.compile(r"[0-9a-f]{8}\.[0-9]+")


def authority_warnings(environment: Mapping[str, str], pools: Iterable[PoolConfig]) -> list[str]:
    """Return a warning for every path that the environment names and that is of no use.

    None where no pool asks anybody who has to be signed by those authorities.
    """
    if not any(name in environment for name in _VARIABLES) or not any(map(_needs_them, pools)):
        return []
    warnings = []
    file = environment.get("SSL_CERT_FILE")
    if file is not None and (why := _why_no_file(file)):
        warnings.append(f"SSL_CERT_FILE: {quoted(file)}: {why}")
    folders = environment.get("SSL_CERT_DIR")
    if folders is not None:
        named = list(filter(None, folders.split(":"))) or [""]
        for folder in named[:_MOST_FOLDERS]:
            if why := _why_no_folder(folder):
                warnings.append(f"SSL_CERT_DIR: {quoted(folder)}: {why}")
    return [f"{text}; no authority is taken from there" for text in warnings]


def _needs_them(pool: PoolConfig) -> bool:
    asked = (*pool.resolvers, *pool.bootstrap)
    if any(each.is_encrypted and not each.ca_file and not each.insecure for each in asked):
        return True
    has_auto = any(each.is_auto for each in pool.resolvers)
    return has_auto and any(source in pool.discovery.sources for source in _MAY_FIND)


def _why_no_file(path: str) -> str:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return "is a folder"
        if not stat.S_ISREG(mode):  # opening a pipe would wait for somebody who writes
            return "is no regular file"
        # As the workers do.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        return "holds no certificate in PEM form"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _why_no_folder(path: str) -> str:
    try:
        with os.scandir(path) as found:
            for _, each in zip(range(_MOST_FILES), found, strict=False):
                if _HASHED.fullmatch(each.name):
                    return ""
    except OSError as error:
        return error.strerror or str(error)
    return "holds no certificate under the name that `openssl rehash` gives it"
