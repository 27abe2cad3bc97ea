"""Cut off many lives and print what came of it.

    python -m tests.crash --points 20000 --seed 7 [--workers 2] [--variant sound]

`--points` is how many lives are cut off (SIGKILL, or the kernel's end at an instant), `--seed` chooses what clients do
and where each life ends; threads make the rest of it differ from run to run. `--variant` names one of
`tests/crash/broken.py`, which must be caught. Ends with 0 if the checks found nothing, else 1, and leaves the worlds
with violations where the lines say; `python -m tests.crash.child` leads one life of such a world again.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.crash.broken import VARIANTS
from tests.crash.series import run_parallel


def main() -> int:
    """Read the command line, run, print the table; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--points", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="sound")
    parser.add_argument("--json", action="store_true", help="print the tally as JSON instead of the table")
    parser.add_argument("--discard", action="store_true", help="keep no world to look at")
    options = parser.parse_args()
    started = time.monotonic()
    tally = run_parallel(
        options.seed, options.points, VARIANTS[options.variant], workers=options.workers, discard=options.discard
    )
    sys.stdout.write(tally.dump() if options.json else tally.table(time.monotonic() - started))
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
