"""Everything that a change must pass, as one command: `python -m tests.check` (or `make check`).

Format, lint, types and tests run in this order; the first failure stops, with advice. One of them alone:
`python -m tests.check types`. The tests once more, with the lines counted that they cover: `python -m tests.check
coverage`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Check(NamedTuple):
    """One check: modules to run in turn with their arguments, and what to do when one fails."""

    commands: tuple[tuple[str, ...], ...]
    advice: str


CHECKS = {
    "format": Check((("ruff", "format", "--check", "--quiet", "."),), "run `ruff format .`"),
    "lint": Check((("ruff", "check", "--quiet", "."),), "run `ruff check --fix .` and fix the rest by hand"),
    "types": Check((("mypy",),), "fix the types; a `# type: ignore[code]` needs its reason beside it"),
    "tests": Check(
        (("pytest", "--quiet", "--numprocesses=auto"),),
        "run the failing test alone: `python -m pytest PATH::NAME`",
    ),
    "coverage": Check(
        (
            ("coverage", "erase"),
            ("pytest", "--quiet", "--numprocesses=auto", "--cov", "--cov-report=", "--cov-fail-under=0"),
            ("coverage", "report"),
        ),
        "write tests for the lines named above; the bound is fail_under in pyproject.toml",
    ),
}
# Counting lines makes the tests take nearly twice as long: that is asked for by its name.
ALWAYS = ("format", "lint", "types", "tests")


def main(names: list[str]) -> int:
    """Run the named checks, else those of `ALWAYS`; return the exit code: 0, 1 where one failed, 2 for no such name."""
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"There is no check {', '.join(unknown)}; there are {', '.join(CHECKS)}.", file=sys.stderr)
        return 2
    for name in names or ALWAYS:
        print(f"== {name}", flush=True)
        for command in CHECKS[name].commands:
            if subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode:
                print(f"== {name} failed: {CHECKS[name].advice}", file=sys.stderr, flush=True)
                return 1
    print("== all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
