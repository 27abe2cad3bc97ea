"""End many lives with their disk and print what came of it.

    python -m tests.faults power --trials 20000 --seed 7      the power goes at random moments
    python -m tests.faults unsynced --trials 300              the same without syncs: must lose something
    python -m tests.faults disk --trials 5000                 I/O errors and full disks at random calls

Ends with 0 if the checks found nothing, else 1.
"""

from __future__ import annotations

import argparse
import sys

from tests.crash.life import Settings
from tests.crash.series import ChooseEnding, command
from tests.faults.endings import faults, power_cuts

KINDS: dict[str, ChooseEnding] = {
    "power": power_cuts(),
    "unsynced": power_cuts("synchronous = NORMAL"),
    "disk": faults,
}


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.split("\n", 1)[0])
    parser.add_argument("kind", choices=sorted(KINDS))
    return command(parser, "trials", 300, lambda options: (Settings(), KINDS[options.kind]))


if __name__ == "__main__":
    sys.exit(main())
