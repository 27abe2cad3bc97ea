"""Break the product in a sample of places, and see whether its tests notice.

    python -m tests.mutate --sample 200 --seed 1 [--room pattern_core/turns] [--jobs 2] [--seconds 300]

A mutant is one small change of one file, drawn at random, rooms by their lines. It is made in a copy of the project,
and the tests of its room run there until one fails: those of the file's own name, those of the room, those that import
the module, at last the recordings of the whole server. Slow tests are left out: some survivors die in the full suite.

The summary, also in `build/mutants.txt`, shows each survivor. Some mean the same as the original or do no harm; the
others show what no test holds. On a busy machine raise `--seconds`: survivors run all those tests, and may time out.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tests.sources import ROOT, Source, sources
from tests.structure import TESTING, lines_of, room_of

REPORT = ROOT / "build" / "mutants.txt"
LAST = "tests/recorded/test_recorded.py"  # goes through most of the program
LEFT_BEHIND = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "build", "dist")
COLUMNS = ("tried", "detected", "timed out", "survived", "unsound")

FLIPPED: Mapping[type[ast.AST], Any] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip

Broken: TypeAlias = ast.expr | ast.stmt


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of a file: `new` in the place of `old`."""

    source: Source
    operator: str
    old: Broken
    new: ast.AST

    @property
    def text(self) -> str:
        """The file with the change."""
        lines = self.source.text.encode().splitlines(keepends=True)  # places within a line are counted in bytes
        first = sum(map(len, lines[: self.old.lineno - 1])) + self.old.col_offset
        last = sum(map(len, lines[: (self.old.end_lineno or 0) - 1])) + (self.old.end_col_offset or 0)
        data = b"".join(lines)
        return (data[:first] + ast.unparse(self.new).encode() + data[last:]).decode()

    @property
    def diff(self) -> str:
        """The change, as `git diff` shows it."""
        before, after = self.source.text.splitlines(), self.text.splitlines()
        return "\n".join(unified_diff(before, after, n=2, lineterm=""))


Ended: TypeAlias = tuple[Mutant, str]  # with its outcome


def changes(node: ast.AST) -> Iterator[tuple[str, Broken, ast.AST]]:
    """Each way to break a node: its name, what goes, and what stands in its place."""
    match node:
        case ast.Compare(left, [op, *others], right) if type(op) in FLIPPED:
            yield "operator", node, ast.Compare(left, [FLIPPED[type(op)](), *others], right)
        case ast.BoolOp(op, values):
            yield "operator", node, ast.BoolOp(FLIPPED[type(op)](), values)
        case ast.BinOp(left, op, right) if type(op) in FLIPPED:
            yield "operator", node, ast.BinOp(left, FLIPPED[type(op)](), right)
        case ast.Constant(bool() as value):
            yield "constant", node, ast.Constant(not value)
        case ast.Constant(int() as value):
            yield "constant", node, ast.Constant(value + 1)
            yield "constant", node, ast.Constant(value - 1)
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            yield "condition", test, ast.UnaryOp(ast.Not(), test)
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("_log")))):
            pass  # no test needs to hold what is logged
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield "statement", node, ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "statement", node, ast.Pass()
        case ast.Return(ast.expr() as value) if ast.unparse(value) != "None":
            yield "result", node, ast.Return(ast.Constant(None))
        case ast.ExceptHandler(ast.expr() as caught) if ast.unparse(caught) != "Exception":
            yield "exception", caught, ast.Name("Exception")


def mutants(source: Source) -> list[Mutant]:
    """All mutants of a file, from its beginning to its end."""
    left_alone = {id(inner) for node in source.nodes for part in _no_code(node) for inner in ast.walk(part)}
    found = [
        Mutant(source=source, operator=operator, old=old, new=new)
        for node in source.nodes
        if id(node) not in left_alone
        for operator, old, new in changes(node)
    ]
    return sorted(found, key=lambda mutant: mutant.old.lineno)


def _no_code(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a node that are left alone: types, how a class is made, and texts with values, which 3.11 misplaces."""
    match node:
        case ast.JoinedStr() | ast.If(ast.Name("TYPE_CHECKING")):
            yield node
        case ast.ClassDef():
            yield from node.decorator_list
        case ast.arg(annotation=ast.expr() as kind) | ast.AnnAssign(annotation=kind):
            yield kind
        case ast.FunctionDef(returns=ast.expr() as kind) | ast.AsyncFunctionDef(returns=ast.expr() as kind):
            yield kind


def sample(found: Iterable[Source], count: int, seed: int) -> list[Mutant]:
    """`count` different mutants: first a room is drawn, by its lines, then one of its mutants."""
    chance = random.Random(seed)
    lines: Counter[str] = Counter()
    rooms: dict[str, list[Mutant]] = defaultdict(list)
    for source in found:
        lines[room_of(source.path)] += lines_of(source)
        rooms[room_of(source.path)] += mutants(source)
    drawn: list[Mutant] = []
    while len(drawn) < count and (left := [room for room, those in rooms.items() if those]):
        (room,) = chance.choices(left, weights=[lines[room] for room in left])
        drawn.append(rooms[room].pop(chance.randrange(len(rooms[room]))))
    return drawn


def nearest_tests(source: Source) -> list[str]:
    """The test files that a mutant of this file has to pass, nearest first."""
    package, _, name = room_of(source.path).removesuffix(".py").partition("/")
    folder, _, module = source.name.rpartition(".")
    imported = re.compile(rf"\b{source.name}\b|from {folder} import .*\b{module}\b")
    files = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    of_room = [path for path in files if path.startswith((f"tests/{package}/{name}/", f"tests/{package}/test_{name}."))]
    own = [path for path in of_room if path.endswith(f"/test_{module}.py")]
    importers = [name for name, path in files.items() if imported.search(path.read_text(encoding="utf-8"))]
    return list(dict.fromkeys([*own, *of_room, *importers, LAST]))


class Copy:
    """A copy of the project in a folder, whose tests run without touching the original."""

    def __init__(self, folder: Path) -> None:
        self._root = Path(shutil.copytree(ROOT, folder / "project", ignore=LEFT_BEHIND))
        self._written = 0

    def outcome(self, mutant: Mutant, seconds: float) -> str:
        """What becomes of a mutant; "unsound" if the test that fails with it fails without it, too."""
        self._write(mutant.source.path, mutant.text)
        try:
            code, output = self._pytest(nearest_tests(mutant.source), seconds)
        finally:
            self._write(mutant.source.path, mutant.source.text)
        failed = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", output, re.MULTILINE)
        if failed and self._pytest([failed[1]], seconds)[0] != 0:
            sys.stderr.write(f"fails without a mutant, too, or takes too long: {failed[1]}\n")
            return "unsound"
        return "survived" if code == 0 else "timed out" if code is None else "detected"

    def _write(self, path: str, text: str) -> None:
        """Write a file, with a time of its own: Python compares seconds, and two mutants may be made in one."""
        self._written += 1
        target = self._root / path
        target.write_text(text, encoding="utf-8")
        os.utime(target, (self._written, self._written))

    def _pytest(self, tests: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """The exit code, None if it took too long, and the output."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
        environment = {**os.environ, "PYTHONPATH": str(self._root)}
        with subprocess.Popen(
            command, cwd=self._root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return None, ""
        return process.returncode, output


def run(drawn: Sequence[Mutant], *, jobs: int, seconds: float) -> list[Ended]:
    """Each mutant with its outcome, tried in as many copies at once as there are jobs."""
    with ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(partial(_tried, seconds=seconds), (drawn[first::jobs] for first in range(jobs)))
        return [ended for part in parts for ended in part]


def _tried(part: Sequence[Mutant], seconds: float) -> list[Ended]:
    with tempfile.TemporaryDirectory() as folder:
        project, ended = Copy(Path(folder)), []
        for mutant in part:
            ended.append((mutant, project.outcome(mutant, seconds)))
            sys.stderr.write(f"{ended[-1][1]:<9} {mutant.source.at(mutant.old)} {mutant.operator}\n")
    return ended


def report(ended: Iterable[Ended]) -> str:
    """A line for each room and operator, then the survivors."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    survivors = []
    for mutant, outcome in sorted(ended, key=lambda one: (one[0].source.path, one[0].old.lineno)):
        for key in (room_of(mutant.source.path), mutant.operator, "total"):
            counts[key] += Counter({"tried": 1, outcome: 1})
        if outcome == "survived":
            survivors.append(f"\n{mutant.source.at(mutant.old)} survived: {mutant.operator}\n{mutant.diff}")
    table = [f"{'':<32}" + "".join(f"{column:>10}" for column in COLUMNS)]
    for name, count in sorted(counts.items(), key=lambda one: ("/" not in one[0], one[0])):
        table.append(f"{name:<32}" + "".join(f"{count[column]:>10}" for column in COLUMNS))
    return "\n".join([*table, *survivors, ""])


def main(arguments: list[str]) -> None:
    """Read the command line, try the mutants, print and write the summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--sample", type=int, default=100, metavar="N", help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--room", default="", help="only of files whose path begins so")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--seconds", type=float, default=300, help="for the tests of one mutant")
    options = parser.parse_args(arguments)
    product = [one for one in sources() if TESTING not in one.path.split("/") and one.path.startswith(options.room)]
    drawn = sample(product, options.sample, options.seed)
    output = report(run(drawn, jobs=options.jobs, seconds=options.seconds))
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(output, encoding="utf-8")
    sys.stdout.write(output)


if __name__ == "__main__":
    main(sys.argv[1:])
