"""Cut off many lives and print what came of it.

    python -m tests.crash --points 20000 --seed 7 [--workers 2] [--variant sound]
    python -m tests.crash --seed 7 --again FOLDER WORLD LIFE [--kill]

`--points` is how many lives are cut off (SIGKILL, or the kernel's end at an instant), `--seed` chooses what clients do
and where each life ends; threads make the rest of it differ from run to run. `--variant` names one of
`tests/crash/broken.py`, which must be caught. Ends with 0 if the checks found nothing, else 1, and leaves the worlds
with violations where the lines say; `--again` leads one life of such a world in this process, with `--kill` to the end
that it had.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.crash.broken import VARIANTS
from tests.crash.checker import check_after_death, check_at_rest
from tests.crash.life import Scene, Settings, prepare
from tests.crash.outside import World
from tests.crash.series import LIVES_MAX, ChooseEnding, chance_of, choose_kill, command, lead_to_rest


def plan(options: argparse.Namespace) -> tuple[Settings, ChooseEnding]:
    """How lives are led; where one is led again, this does not return."""
    settings = VARIANTS[options.variant]
    if options.again:
        folder, world, life = options.again
        sys.exit(lead_again(Path(folder), (options.seed, int(world), int(life)), settings, is_killed=options.kill))
    return settings, choose_kill


def lead_again(folder: Path, place: tuple[int, int, int], settings: Settings, *, is_killed: bool) -> int:
    """Lead a life, by its seed, world and number, and check the world; 1 if it holds a violation."""
    _seed, number, life = place
    world, scene, chance = World(folder), Scene(settings), chance_of(*place)
    if not world.file.exists():
        prepare(world)
    ending = choose_kill(settings, number * LIVES_MAX + life, chance)
    sys.stdout.write(f"this life's end: {ending.label}\n")
    sys.stdout.flush()
    lead = ending.lead if is_killed else lead_to_rest
    lead(world, life, chance, scene)
    at_rest, _tally = check_at_rest(world, resumes_max=settings.resumes_max)
    problems = [*check_after_death(world), *at_rest]
    sys.stdout.write("\n".join([*problems, f"violations: {len(problems)}", ""]))
    return 1 if problems else 0


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="sound")
    parser.add_argument("--again", nargs=3, metavar=("FOLDER", "WORLD", "LIFE"), help="lead one life again")
    parser.add_argument("--kill", action="store_true", help="end it as it ended")
    return command(parser, "points", 2_000, plan)


if __name__ == "__main__":
    sys.exit(main())
