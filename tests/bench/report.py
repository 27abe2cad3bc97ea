"""How a benchmark tells its figures: medians, the target beside them, and the machine that they were measured on."""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import apsw


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure: its `values` over the runs (or samples), its unit, and what it should be.

    `most` or `least` is the bound of the median, if there is one; `baseline` the median of the plainest way to do the
    same in the same run, for machines whose speed drifts.
    """

    name: str
    unit: str
    values: Sequence[float]
    most: float | None = None
    least: float | None = None
    baseline: float | None = None
    note: str = ""

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.most is not None:
            return self.median <= self.most
        return None if self.least is None else self.median >= self.least


def machine() -> str:
    """The machine in one line, with its load now: other work on it makes every figure worse."""
    load = os.getloadavg()[0]
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()},"
        f" SQLite {apsw.sqlite_lib_version()}, load {load:.1f}"
    )


def table(figures: Iterable[Figure]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| figure | median | min … max | target | holds | baseline | note |",
        "|---|---:|---:|---:|---|---:|---|",
    ]
    for figure in figures:
        target = "" if figure.most is None else f"≤ {figure.most:g}"
        target = target if figure.least is None else f"≥ {figure.least:g}"
        holds = {True: "yes", False: "**no**", None: ""}[figure.holds]
        spread = f"{min(figure.values):.4g} … {max(figure.values):.4g}" if len(figure.values) > 1 else ""
        baseline = "" if figure.baseline is None else f"{figure.baseline:.4g}"
        lines.append(
            f"| {figure.name} | {figure.median:.4g} {figure.unit} | {spread} | {target} | {holds} | {baseline} |"
            f" {figure.note} |"
        )
    return "\n".join(lines)


def with_section(text: str, title: str, body: str) -> str:
    """`text`, Markdown, with `body` as its section `## title`: in place of an earlier one of that title, or last."""
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    new = f"## {title}\n\n{body}\n\n"
    found = [number for number, section in enumerate(sections) if section.startswith(f"## {title}\n")]
    if found:
        sections[found[0]] = new
    else:
        sections.append(new)
    return "".join([head, *(section.rstrip("\n") + "\n\n" for section in sections)]).rstrip("\n") + "\n"
