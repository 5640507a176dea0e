"""The systemd unit: systemd understands it, and its recipe puts things where it looks for them."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.files import REPO

UNIT = REPO / "deploy" / "relay.service"


def recipe() -> list[str]:
    """The commands in the comment of the unit."""
    lines = UNIT.read_text().splitlines()
    return [line.removeprefix("#   ") for line in lines if line.startswith("#   ")]


def test_recipe_makes_what_the_unit_starts() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    program, *arguments = unit["Service"]["ExecStart"].split()
    install, copy, enable = recipe()

    venv = program.removesuffix("/bin/relay")
    assert install == f"python3 -m venv {venv} && {venv}/bin/pip install ."
    assert copy == f"cp {UNIT.relative_to(REPO)} /etc/systemd/system/"
    assert enable == f"systemctl enable --now {UNIT.stem}"
    assert arguments == ["serve", "-c", "/etc/relay/relay.json"]
    assert arguments[-1] in UNIT.read_text().partition("[Unit]")[0]
    # Where root's `relay status`, `lists` and `scan` look.
    assert unit["Service"]["RuntimeDirectory"] == unit["Service"]["StateDirectory"] == "relay"


def test_unit_is_understood_by_systemd(tmp_path: Path) -> None:
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        pytest.skip("no systemd-analyze here")
    # As if the program were installed: systemd looks whether it is there.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("=/opt/relay/.venv/bin/relay ", f"={sys.executable} "))

    done = subprocess.run(
        [verifier, "verify", unit], capture_output=True, text=True, timeout=60, check=False
    )

    # It may have something to say of other units.
    told = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, told) == (0, []), done.stderr
