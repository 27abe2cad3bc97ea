"""The server under load, from another process: `python -m tests.load [NAME …]`, with the names below; all without one.

Clients and the server share the machine, so a busy one misses targets: each figure has the load beside it. A missed
target is reported and is no error; a request or a turn that failed is one.
"""

from __future__ import annotations

import sys

import trio

from tests.bench.report import machine, table
from tests.load.phases import PHASES, run
from tests.load.world import FULL


def main(arguments: list[str]) -> int:
    """Run the named phases, or all; return the exit code."""
    if "--help" in arguments or not {*arguments} <= {*PHASES}:
        print(f"{__doc__}\nThere are {', '.join(PHASES)}.")
        return 0 if "--help" in arguments else 2
    print(machine(), flush=True)
    failures = []
    for name in arguments or PHASES:
        found = trio.run(run, name, FULL)
        failures += found.failures
        print(f"\n## {name}\n\n{table(found.figures)}", flush=True)
    print("\n".join(["", f"{len(failures)} failures", *failures[:10]]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
