"""The benchmarks: `python -m tests.bench [NAME …] [--save]`, with the names below; all of them without a name.

Prints each figure with its median, spread and target; `--save` also writes them to `tests/bench/RESULTS.md`, each suite
in place of its last section there. A missed target is told, never an error: machines differ and are shared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import trio

from tests.bench import cancel, embeddings, locomo, memory, overhead, prompt, search, server, turns, vectors
from tests.bench.report import Figure, machine, table, with_section

RESULTS = Path(__file__).parent / "RESULTS.md"


async def measure_turns() -> list[Figure]:
    """What turns cost and how many there are."""
    return [
        await turns.cpu_per_turn(),
        await turns.cpu_per_turn(on_disk=False),
        *await turns.throughput(steps=1),
        *await turns.throughput(steps=2),
        await turns.loop_lag(),
    ]


async def measure_disk() -> list[Figure]:
    """What stays on disk."""
    return [*await turns.disk(chars=400, turns=2_000), *await turns.disk(chars=1_000, turns=10_000)]


async def measure_prompt() -> list[Figure]:
    """What prompts take to make, and how much of them vendors' caches find."""
    return [*await prompt.building(), *await prompt.prefixes()]


async def measure_overhead() -> list[Figure]:
    """What a turn takes beyond its model calls."""
    return [
        *await overhead.turns_over_bare_calls(steps=1, on_disk=True),
        *await overhead.turns_over_bare_calls(steps=1, on_disk=False),
        *await overhead.turns_over_bare_calls(steps=2, on_disk=False),
    ]


SUITES: dict[str, Callable[[], list[Figure]]] = {
    "turns": lambda: trio.run(measure_turns),
    "cancel": cancel.run,
    "disk": lambda: trio.run(measure_disk),
    "prompt": lambda: trio.run(measure_prompt),
    "overhead": lambda: trio.run(measure_overhead),
    "first_token": lambda: trio.run(overhead.first_token),
    "idle_agents": lambda: trio.run(overhead.idle_agents),
    "server": server.measure,
    "memory": memory.run,
    "vectors": vectors.measure,
    "embeddings": embeddings.run,
    "search": search.run,
    "locomo": locomo.run,
}


def main(arguments: list[str]) -> int:
    """Run the named suites, or all; return the exit code."""
    names = [argument for argument in arguments if not argument.startswith("-")] or list(SUITES)
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        print(f"There is no benchmark {', '.join(unknown)}; there are {', '.join(SUITES)}.", file=sys.stderr)
        return 2
    print(machine(), flush=True)
    figures: list[Figure] = []
    for name in names:
        where, measured = machine(), SUITES[name]()
        print(f"\n{table(measured)}", flush=True)
        figures += measured
        if "--save" in arguments:
            kept = RESULTS.read_text(encoding="utf-8")
            RESULTS.write_text(with_section(kept, name, f"{where}\n\n{table(measured)}"), encoding="utf-8")
    missed = [figure.name for figure in figures if figure.holds is False]
    print(f"\n{len(figures)} figures, {len(missed)} beyond their target" + "".join(f"\n- {name}" for name in missed))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
