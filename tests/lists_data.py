"""The real lists that some tests read, where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("RELAY_TEST_DATA") or REPOSITORY.parent / "shared" / "data")


def shared_file(name: str) -> bytes:
    """The content of a file of the data folder; skips the test where it is not there."""
    try:
        return (DATA / name).read_bytes()
    except OSError:
        pytest.skip(f"no {name} in $RELAY_TEST_DATA or beside the repository")
