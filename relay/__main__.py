"""`python -m relay` does what the `relay` command does."""

from __future__ import annotations

from relay.cli import main

if __name__ == "__main__":
    main()
