"""Start of a worker process: `python -m workers`, run by the supervisor and by nobody else."""

from __future__ import annotations

import sys

from workers.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
