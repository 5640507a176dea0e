"""Folders and files that tell what a person uses: for their owner alone.

Used by: the state file and the lists. `relay lists` and `relay scan` may be run by root for a
service that has a user of its own: what root makes belongs to whom its folder belongs to, or the
service could not read it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing; one that is there keeps its mode.

    Raises OSError.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir(0o700)
    except FileExistsError:
        if path.is_dir():  # somebody else was faster
            return
        raise
    # By its descriptor: at the path there may be something else by now.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        hand_over(descriptor, path.parent)
    finally:
        os.close(descriptor)


def make_file(path: Path, flags: int) -> int:
    """Make a file that is not there, and open it. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    hand_over(descriptor, path.parent)
    return descriptor


def hand_over(descriptor: int, folder: Path) -> None:
    """Give what root has just made in `folder` to the owner of that, where it can be given away."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            owner = folder.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
