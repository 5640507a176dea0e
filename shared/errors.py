"""The root of every error that the relay raises on purpose.

Lives in `shared` because it is the lowest layer: `workers` and `relay` derive theirs from it.
"""

from __future__ import annotations


class RelayError(Exception):
    """Base of the project's own errors; a subclass name says who erred."""


class LayoutMismatch(RelayError):
    """A process attached to a board that another version of the program laid out."""
