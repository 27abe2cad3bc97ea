"""Lead one life on a world's folder in this process, for looking at what went wrong.

    python -m tests.crash.child FOLDER SEED WORLD LIFE [--kill]

The last three are those that a violation names. With `--kill` the life ends at the point that it had.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.crash.broken import VARIANTS
from tests.crash.checker import check_after_death, check_at_rest
from tests.crash.life import Scene, prepare
from tests.crash.outside import World
from tests.crash.series import LIVES_MAX, chance_of, choose_kill, lead_to_rest


def main() -> int:
    """Read the command line, lead the life, check the world; 1 if it holds a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.child", description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("world", type=int)
    parser.add_argument("life", type=int)
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="sound")
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    world = World(options.folder)
    if not world.file.exists():
        prepare(world)
    scene = Scene(VARIANTS[options.variant])
    chance = chance_of(options.seed, options.world, options.life)
    ending = choose_kill(scene.settings, options.world * LIVES_MAX + options.life, chance)
    sys.stdout.write(f"this life's end: {ending.label}\n")
    sys.stdout.flush()
    lead = ending.lead if options.kill else lead_to_rest
    lead(world, options.life, chance, scene)
    at_rest, _tally = check_at_rest(world, resumes_max=scene.settings.resumes_max)
    problems = [*check_after_death(world), *at_rest]
    sys.stdout.write("\n".join([*problems, f"violations: {len(problems)}", ""]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
