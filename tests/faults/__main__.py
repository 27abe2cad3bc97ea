"""End many lives with their disk and print what came of it.

    python -m tests.faults power --trials 20000 --seed 7      the power goes at random moments
    python -m tests.faults unsynced --trials 300              the same without syncs: must lose something
    python -m tests.faults disk --trials 5000                 I/O errors and full disks at random calls

Ends with 0 if the checks found nothing, else 1.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.crash.life import Settings
from tests.crash.series import ChooseEnding, run_parallel
from tests.faults.endings import faults, power_cuts

KINDS: dict[str, ChooseEnding] = {
    "power": power_cuts(),
    "unsynced": power_cuts("synchronous = NORMAL"),
    "disk": faults,
}


def main() -> int:
    """Read the command line, run, print the table; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.split("\n", 1)[0])
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the tally as JSON instead of the table")
    parser.add_argument("--discard", action="store_true", help="keep no world to look at")
    options = parser.parse_args()
    started = time.monotonic()
    tally = run_parallel(
        options.seed, options.trials, Settings(), KINDS[options.kind], workers=options.workers, discard=options.discard
    )
    sys.stdout.write(tally.dump() if options.json else tally.table(time.monotonic() - started))
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
