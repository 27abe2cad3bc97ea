"""How a benchmark reports its figures: percentiles, the target, the baseline, and the load of the machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apsw


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the values do not exceed, such as 0.25 for p25."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def timed_ms(what: Callable[[], object]) -> float:
    """Call it; the milliseconds that it took."""
    began = time.perf_counter()
    what()
    return (time.perf_counter() - began) * 1_000


def peak_bytes() -> int:
    """The most memory that this process has had (Linux); what getrusage says begins with that of its parent."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure: its `values` over the runs, its unit, and what it should be. Without values it is skipped,
    and the note says why.

    `share` says which percentile counts: it is compared with the target (`most` or `least`) and divided by `baseline`,
    what the plainest way to do the same takes in the same run. Load is the machine's over the last minute, this
    benchmark's own work included.
    """

    name: str
    unit: str
    values: Sequence[float]
    share: float = 0.5
    most: float | None = None
    least: float | None = None
    baseline: float | None = None
    note: str = ""
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    @property
    def value(self) -> float:
        """The percentile that counts."""
        return quantile(self.values, self.share)

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None without one, or without values."""
        if not self.values:
            return None
        if self.most is not None:
            return self.value <= self.most
        return None if self.least is None else self.value >= self.least


def machine() -> str:
    """The machine in one line."""
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()},"
        f" SQLite {apsw.sqlite_lib_version()}"
    )


def table(figures: Iterable[Figure]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| figure | value | p10 … max | target | holds | × baseline | load | note |",
        "|---|---:|---:|---:|---|---:|---:|---|",
    ]
    for figure in figures:
        value = spread = ratio = ""
        if figure.values:
            value = f"{figure.value:.4g} {figure.unit}" + ("" if figure.share == 0.5 else f" (p{figure.share * 100:g})")
            if len(figure.values) > 1:
                spread = f"{quantile(figure.values, 0.1):.4g} … {max(figure.values):.4g}"
            if figure.baseline:
                ratio = f"{figure.value / figure.baseline:.2f}"
        target = "" if figure.most is None else f"≤ {figure.most:g}"
        target = target if figure.least is None else f"≥ {figure.least:g}"
        holds = {True: "yes", False: "**no**", None: ""}[figure.holds]
        lines.append(
            f"| {figure.name} | {value} | {spread} | {target} | {holds} | {ratio} | {figure.load:.1f} | {figure.note} |"
        )
    return "\n".join(lines)
