"""The benchmarks: `python -m tests.bench [NAME …]`, with the names below; all of them without a name.

`--quick` runs what a change of the turn or the server is likely to move, in fewer rounds. `--save` runs all and writes
`tests/bench/RESULTS.md`. A missed target is reported and is no error: machines differ and are shared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from tests.bench import (
    archives,
    coding,
    dialogues,
    due,
    embeddings,
    flow,
    latency,
    locomo,
    memory,
    search,
    server,
    turns,
    upkeep,
)
from tests.bench.report import Figure, machine, table

RESULTS = Path(__file__).parent / "RESULTS.md"
HEAD = """# Last results of `make bench`

Where a figure has several values, the percentile in brackets counts, else the median. *Load* is the machine's over the
minute before, this benchmark's own work included. The higher it is, the longer everything takes; then the ratio to the
baseline, which was measured in the same rounds, says more."""

SUITES: dict[str, Callable[[], list[Figure]]] = {
    "turns": partial(turns.measure, quick=False),
    "server": partial(server.measure, quick=False),
    "due": due.measure,
    "flow": flow.measure,
    "cancel": latency.cancels,
    "first-token": partial(trio.run, latency.first_token),
    "coding": coding.measure,
    "archives": archives.measure,
    "upkeep": upkeep.measure,
    "memory": memory.run,
    "search": search.run,
    "embeddings": embeddings.run,
    "locomo": locomo.run,
    "dialogues": dialogues.run,
    "recall": partial(trio.run, locomo.recall),
}
QUICK: dict[str, Callable[[], list[Figure]]] = {
    "turns": partial(turns.measure, quick=True),
    "server": partial(server.measure, quick=True),
    "flow": flow.measure,
}


def main(arguments: list[str]) -> int:
    """Run the named suites, or all; return the exit code."""
    if "--help" in arguments:
        print(__doc__)
        return 0
    suites = QUICK if "--quick" in arguments else SUITES
    names = [argument for argument in arguments if not argument.startswith("-")]
    is_saved = "--save" in arguments
    unknown = [name for name in names if name not in suites]
    if unknown or (is_saved and (names or suites is QUICK)):
        print("--save is for all suites at once." if is_saved else f"There are {', '.join(suites)}.", file=sys.stderr)
        return 2
    print(machine(), flush=True)
    began, figures, sections = time.perf_counter(), list[Figure](), [HEAD, machine()]
    for name in names or suites:
        measured = suites[name]()
        figures += measured
        sections.append(f"## {name}\n\n{table(measured)}")
        print(f"\n{sections[-1]}", flush=True)
    if is_saved:
        RESULTS.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    missed = [figure.name for figure in figures if figure.holds is False]
    print(
        f"\n{len(figures)} figures in {time.perf_counter() - began:.0f} s, {len(missed)} beyond their target"
        + "".join(f"\n- {name}" for name in missed)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
