"""The relay's command, supervisor and configuration: all that is not a packet."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
