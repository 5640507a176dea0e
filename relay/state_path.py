"""Where the state file is when nobody says: scores of resolvers, and the lists beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def default_state_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the state file of this user.

    Of a service that is the folder its manager made for it, of root /var/lib/relay, of anybody else
    a folder of his own.
    """
    env = os.environ if environ is None else environ
    # systemd lists one directory or several, with colons between them.
    service = env.get("STATE_DIRECTORY", "").split(":")[0]
    if service.startswith("/"):
        return Path(service, "state.json")
    if os.geteuid() == 0:
        return Path("/var/lib/relay/state.json")
    state = env.get("XDG_STATE_HOME", "")
    folder = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return folder / "relay" / "state.json"
