"""Compare what the server and the command line answer with what is recorded, or record it again.

    python -m tests.recorded [--write] [NAME …]

Each recording is a text file beside this one (`http/memory.txt`): steps that a person wrote and the answers to them,
see `script.py`. A new step needs no answer; `--write` adds it. Look at every answer that it changes before you keep it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import trio

from tests.recorded.player import patient_clock, playing
from tests.recorded.script import Step, read, write

HERE = Path(__file__).resolve().parent


def recordings() -> list[Path]:
    """All recordings, by name."""
    return sorted(HERE.rglob("*.txt"))


async def answers(steps: list[Step]) -> list[list[str]]:
    """Play the steps on a new server; the answer to each."""
    with tempfile.TemporaryDirectory() as folder:
        async with playing(Path(folder)) as player:
            return [await player.play(step) for step in steps]


def differences(steps: list[Step], given: list[list[str]]) -> Iterator[str]:
    """For each step whose answer is another: the step's lines, and what differs."""
    for number, (step, answer) in enumerate(zip(steps, given, strict=True), start=1):
        if answer != step.recorded:
            changed = list(unified_diff(step.recorded, answer, "recorded", "now", n=2, lineterm=""))
            yield "\n".join([f"step {number}: {step.name}", *changed])


def main(arguments: list[str]) -> int:
    """Read the command line, play the recordings, tell what differs; 1 if something does."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="record the answers")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only recordings with this in their path")
    options = parser.parse_args(arguments)
    failed = 0
    for path in recordings():
        name = path.relative_to(HERE).as_posix()
        if options.names and not any(part in name for part in options.names):
            continue
        text = path.read_text(encoding="utf-8")
        steps = read(text)
        given = trio.run(answers, steps, clock=patient_clock())
        if options.write:
            path.write_text(write(steps, given), encoding="utf-8")
        found = list(differences(steps, given))
        failed += len(found)
        sys.stdout.write(f"{name}: {len(steps)} steps, {len(found)} {'recorded' if options.write else 'differ'}\n")
        if not options.write:
            sys.stdout.writelines(f"\n{name}, {one}\n" for one in found)
    return 1 if failed and not options.write else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
