"""Where the state file is when nobody says; the lists lie in a folder beside it.

Used by: the configuration and `relay lists`. Pure but for the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def default_state_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the state file; neither it nor its folder need exist."""
    env = os.environ if environ is None else environ
    # systemd lists one directory or several, with colons between them; its service may be run by
    # a user of its own.
    service = env.get("STATE_DIRECTORY", "").split(":")[0]
    if service.startswith("/"):
        return Path(service, "state.json")
    if os.geteuid() == 0:
        return Path("/var/lib/relay/state.json")
    home = env.get("XDG_STATE_HOME", "")
    folder = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    return folder / "relay" / "state.json"


def lists_folder(state: Path) -> Path:
    """Return the folder of the lists that belong to a state file."""
    return state.parent / "lists"
