"""Where the state file and the control socket are when nobody says; lists lie beside the state.

Used by: the configuration, the supervisor, `relay status` and `relay lists`. Pure but for the
environment.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def default_state_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the state file; neither it nor its folder need exist."""
    folder = _folder(environ, "STATE_DIRECTORY", "/var/lib", "XDG_STATE_HOME")
    return (folder or Path.home() / ".local" / "state" / "relay") / "state.json"


def default_control_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the control socket; neither it nor its folder need exist."""
    folder = _folder(environ, "RUNTIME_DIRECTORY", "/run", "XDG_RUNTIME_DIR")
    return (folder or Path(tempfile.gettempdir(), f"relay-{os.geteuid()}")) / "control.sock"


def lists_folder(state: Path) -> Path:
    """Return the folder of the lists that belong to a state file."""
    return state.parent / "lists"


def _folder(environ: Mapping[str, str] | None, service: str, root: str, user: str) -> Path | None:
    """Return the relay's own folder of a kind: the service's, root's or the user's, if any says.

    `service` and `user` are variables of the environment, `root` is the folder that root's is in.
    """
    env = os.environ if environ is None else environ
    # systemd lists one directory or several, with colons between them; its service may be run by
    # a user of its own.
    listed = env.get(service, "").split(":")[0]
    if listed.startswith("/"):
        return Path(listed)
    if os.geteuid() == 0:
        return Path(root, "relay")
    home = env.get(user, "")
    return Path(home, "relay") if home.startswith("/") else None
