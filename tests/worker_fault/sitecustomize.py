"""Ends a worker process as it starts, when a test says so.

Python imports this by itself where the folder is on PYTHONPATH. A worker then ends with the exit
status that the file named by RELAY_TEST_WORKER_EXIT holds; without that file it lives.
"""

from __future__ import annotations

import os
import sys

if "--board-fd" in sys.orig_argv:
    try:
        with open(os.environ["RELAY_TEST_WORKER_EXIT"]) as file:
            status = int(file.read())
    except FileNotFoundError:
        pass
    else:
        print("worker: told by the test to fail", file=sys.stderr, flush=True)
        os._exit(status)
