"""The structure of the code: sizes, imports, names, budgets, and the table of what breaks a rule.

    python -m tests.structure             list what breaks a rule
    python -m tests.structure --write     lower budgets, delete debts that are paid
    python -m tests.structure --accept    also raise budgets and add debts: the commit says why

A *room* is a folder of a package with all that is in it, or a file at the package's root. Every rule is a function of
a `Code`; it yields a `Breach` for each place. Breaches that stood when a rule was introduced are listed as debts in
`structure_debts.toml`, by their keys; the tests fail on a breach that is not listed and on a debt that is paid.
"""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple, TypeAlias

from tests.sources import PACKAGES, ROOT, Import, Source, imports_of, is_within, sources, sources_of_tests

BUDGETS = ROOT / "tests" / "line_budgets.toml"
DEBTS = ROOT / "tests" / "structure_debts.toml"

DEBTS_HEAD = """\
# Places that break a rule of tests/structure.py, by rule. The lists only shrink: `python -m tests.structure --write`
# deletes what is paid.

"""
BUDGETS_HEAD = """\
# Product lines that each room may have, with docstrings. `python -m tests.structure --write` lowers them to what is
# there; a change that raises one edits this table (or runs it with `--accept`) and says why in its commit.

"""
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 600
FILE_LINES_MIN = 60
SHARED_LINES_MIN = 120  # below it, a file needs a second importer or one outside its folder
TESTING = "testing"  # folders of stand-ins: no product, and no product imports them
# A file in the folder is an extension, and may be small, if the table names it. None: every file in the folder is one.
EXTENSIONS: Mapping[str, str | None] = {
    "pattern_core/tools/builtin": "pattern_core/tools/builtin/__init__.py",
    "pattern_core/models/providers": "pattern_core/models/providers/__init__.py",
    "pattern_core/groups/coordinations": "pattern_core/groups/coordinations/__init__.py",
    "pattern_core/embeddings/providers": "pattern_core/embeddings/providers/__init__.py",
    "pattern_core/sources/kinds": "pattern_core/sources/kinds/__init__.py",
    "pattern_server/http/routes": "pattern_server/http/app.py",
    "pattern_server/http/toolsets": "pattern_server/http/toolsets/__init__.py",
    "pattern_server/cli": "pattern_server/cli/__init__.py",
    "pattern_db/tables": None,
    "pattern_db/journal": None,
}
# Borders of tasks, where an unexpected error becomes a log line and a restart, or a problem document; and two files
# that swallow nothing: one translates the bare BaseException of loro, one carries errors from a thread to a task.
CATCHERS = (
    *("pattern_server/supervisor.py", "pattern_server/http/border.py", "pattern_server/http/mcp.py"),
    *("pattern_core/memory/document.py", "pattern_core/mcp_servers/servers.py", "pattern_db/lane.py"),
)
BROAD = {"Exception", "BaseException", "BaseExceptionGroup", "ExceptionGroup", "trio.Cancelled"}
MOCKS = {"unittest.mock", "mock", "pytest_mock"}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Breach(NamedTuple):
    """A place that breaks a rule. `key` names it without line numbers, so that a debt stays valid when lines move."""

    key: str
    words: str


@dataclass(kw_only=True)
class Code:
    """A tree of sources, its tests and its extension folders; tests of the rules pass small ones of their own."""

    sources: tuple[Source, ...]
    tests: tuple[Source, ...] = ()
    extensions: Mapping[str, str | None] = field(default_factory=lambda: EXTENSIONS)

    @cached_property
    def product(self) -> tuple[Source, ...]:
        """The sources that are no stand-ins for tests."""
        return tuple(source for source in self.sources if TESTING not in source.path.split("/"))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import, also inside functions and under TYPE_CHECKING, and each string that names a module of ours."""
        by_name = {source.name for source in self.sources}
        named = [
            Import(source=source, line=node.lineno, name=node.value.partition(":")[0], is_late=True, is_for_types=False)
            for source in self.sources
            for node in source.nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if "." in node.value and node.value.partition(":")[0] in by_name
        ]
        return (*imports_of(self.sources), *named)

    @cached_property
    def edges(self) -> Mapping[str, frozenset[str]]:
        """The paths of the files that import a file, by its path."""
        by_name = {source.name: source.path for source in self.sources}
        importers: dict[str, set[str]] = defaultdict(set)
        for one in self.imports:
            if (path := by_name.get(one.name)) is not None and path != one.source.path:
                importers[path].add(one.source.path)
        return {path: frozenset(users) for path, users in importers.items()}

    def may_be_small(self, source: Source) -> bool:
        """Whether this is an `__init__`, a child program or an extension."""
        folder, _, name = source.path.rpartition("/")
        if name == "__init__.py" or "if __name__ ==" in source.text:
            return True
        if folder not in self.extensions:
            return False
        table = self.extensions[folder]
        return table is None or table in self.edges.get(source.path, ())


@cache
def project() -> Code:
    """Return the three packages and their tests."""
    return Code(sources=sources(), tests=sources_of_tests())


def lines_of(source: Source) -> int:
    """Return the number of lines of a file, with docstrings and empty ones."""
    return source.text.count("\n")


def room_of(path: str) -> str:
    """Return the room of a file: the first two parts of its path."""
    return "/".join(path.split("/")[:2])


def long_functions(code: Code) -> Iterator[Breach]:
    """Functions have at most `FUNCTION_LINES_MAX` lines; name a part and move it out."""
    for source in (*code.sources, *code.tests):
        for node in source.nodes:
            if isinstance(node, Function):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    yield Breach(f"{source.path}::{node.name}", f"{source.at(node)} {node.name}: {length} lines")


def long_files(code: Code) -> Iterator[Breach]:
    """Files have at most `FILE_LINES_MAX` lines; split off the second noun."""
    for source in (*code.sources, *code.tests):
        if lines_of(source) > FILE_LINES_MAX:
            yield Breach(source.path, f"{source.path}: {lines_of(source)} lines")


def small_files(code: Code) -> Iterator[Breach]:
    """Product files have at least `FILE_LINES_MIN` lines, except extensions, child programs and `__init__`."""
    for source in code.product:
        if lines_of(source) < FILE_LINES_MIN and not code.may_be_small(source):
            yield Breach(source.path, f"{source.path}: {lines_of(source)} lines; merge it with the noun it belongs to")


def single_importers(code: Code) -> Iterator[Breach]:
    """A product file under `SHARED_LINES_MIN` lines has more than one importer, or one outside its folder."""
    product = {source.path for source in code.product}
    for source in code.product:
        importers = code.edges.get(source.path, frozenset()) & product
        if lines_of(source) >= SHARED_LINES_MIN or len(importers) != 1 or code.may_be_small(source):
            continue
        [importer] = importers
        if importer.rpartition("/")[0] == source.path.rpartition("/")[0]:
            yield Breach(
                source.path, f"{source.path}: {lines_of(source)} lines, imported by {importer} alone; merge them"
            )


def cycles(code: Code) -> Iterator[Breach]:
    """In each folder, the files and the subfolders (each with all that is in it) do not import each other in a circle.

    So no files do either. A breach is an import between two that lie on one circle.
    """
    levels: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for imported, importers in sorted(code.edges.items()):
        for importer in sorted(importers):
            upper, lower = importer.split("/"), imported.split("/")
            depth = next(at for at, (one, other) in enumerate(zip(upper, lower, strict=False)) if one != other)
            pair = "/".join(upper[: depth + 1]), "/".join(lower[: depth + 1])
            levels["/".join(upper[:depth])][pair[0]].add(pair[1])
            places[pair].append(f"{importer} imports {imported}")
    for graph in levels.values():
        for one in sorted(graph):
            for other in sorted(graph[one]):
                if one in _reached(graph, other):
                    yield Breach(f"{one} -> {other}", f"{one} -> {other}: {'; '.join(places[one, other][:3])}")


def _reached(graph: Mapping[str, Collection[str]], start: str) -> set[str]:
    """Return all nodes that can be reached from one."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = set(graph.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


def class_names(code: Code) -> Iterator[Breach]:
    """A public class name is unique in the three packages."""
    found: dict[str, list[str]] = defaultdict(list)
    for source in code.sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(source.path)
    for name, paths in sorted(found.items()):
        if len(paths) > 1:
            yield from (Breach(f"{name} {path}", f"{path}: {name} is also in {len(paths) - 1} more") for path in paths)


def testing_imports(code: Code) -> Iterator[Breach]:
    """No product module imports `testing`."""
    for path in {source.path for source in code.sources} - {source.path for source in code.product}:
        for importer in code.edges.get(path, ()):
            if TESTING not in importer.split("/"):
                yield Breach(f"{importer} -> {path}", f"{importer} imports {path}")


def broad_excepts(code: Code) -> Iterator[Breach]:
    """Broad `except` stands only at the borders of tasks (`CATCHERS`), or raises again after cleaning up."""
    for source in code.sources:
        for node in source.nodes:
            if not isinstance(node, ast.ExceptHandler) or source.path in CATCHERS:
                continue
            caught = ast.unparse(node.type) if node.type else "everything"
            is_broad = node.type is None or BROAD & {part.strip(" ()") for part in caught.split(",")}
            if is_broad and not any(isinstance(child, ast.Raise) for child in node.body):
                yield Breach(f"{source.path}: {caught}", f"{source.at(node)} catches {caught}; catch errors by name")


def patches(code: Code) -> Iterator[Breach]:
    """Tests use stand-ins that behave: no mock library, and no patch of our own code except of a constant."""
    for source in (*code.sources, *code.tests):
        ours: set[str] = set()
        for node in source.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = getattr(node, "module", None) or ""
                if module in MOCKS or (module == "unittest" or MOCKS & {alias.name for alias in node.names}):
                    yield Breach(f"{source.path}: {ast.unparse(node)}", f"{source.at(node)}: {ast.unparse(node)}")
                if is_within(module, PACKAGES) or any(is_within(alias.name, PACKAGES) for alias in node.names):
                    ours |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        for node in source.nodes:
            if isinstance(node, ast.Call) and (patched := _patched(node, ours)):
                yield Breach(f"{source.path}: {patched}", f"{source.at(node)} patches {patched}; pass it in instead")


def _patched(call: ast.Call, ours: set[str]) -> str | None:
    """Return what a `monkeypatch.setattr` replaces, if it is ours and no constant."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "setattr" and call.args):
        return None
    target = call.args[0]
    if isinstance(target, ast.Constant):
        name = str(target.value)
        is_ours = is_within(name, PACKAGES)
    else:
        name = f"{ast.unparse(target)}.{ast.unparse(call.args[1]).strip(chr(39))}"
        is_ours = isinstance(target, ast.Name) and target.id in ours
    is_constant = name.rpartition(".")[2].isupper() or isinstance(call.args[1], ast.Name)
    return name if is_ours and not is_constant else None


def untested_names(code: Code) -> Iterator[Breach]:
    """Every function of a room that other rooms call is named in the room's own tests, or at the package's root."""
    modules = {source.name: source for source in code.sources}
    named: dict[str, set[str]] = defaultdict(set)
    for test in code.tests:
        package, *rest = test.path.split("/")[1:]
        named[f"{package}/{rest[0]}" if rest[1:] else package] |= _identifiers(test)
    used = {pair for source in code.sources for pair in _used(source, modules)}
    for module, name in sorted(used):
        source = modules[module]
        room = room_of(source.path)
        is_named = name in named[room] | named[room.partition("/")[0]]
        is_defined = any(isinstance(node, Function) and node.name == name for node in source.tree.body)
        if is_defined and not name.startswith("_") and not is_named:
            yield Breach(f"{module}.{name}", f"{module}.{name} is called by other rooms and named by no test of {room}")


def _identifiers(source: Source) -> set[str]:
    found: set[str] = set()
    for node in source.nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                found.add(name)
    return found


def _used(source: Source, modules: Mapping[str, Source]) -> Iterator[tuple[str, str]]:
    """Yield module and name of whatever a file uses of other rooms."""
    bound: dict[str, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (inner := f"{node.module}.{alias.name}") in modules:
                    bound[alias.asname or alias.name] = inner
                elif node.module in modules and room_of(modules[node.module].path) != room_of(source.path):
                    yield node.module, alias.name
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in bound:
            module = bound[node.value.id]
            if room_of(modules[module].path) != room_of(source.path):
                yield module, node.attr


RULES: Mapping[str, Callable[[Code], Iterator[Breach]]] = {
    rule.__name__: rule
    for rule in (
        *(long_functions, long_files, small_files, single_importers, cycles, class_names),
        *(testing_imports, broad_excepts, patches, untested_names),
    )
}


def room_lines(code: Code) -> dict[str, int]:
    """Return the product lines of each room, with docstrings, by room."""
    lines: dict[str, int] = defaultdict(int)
    for source in code.sources:
        lines[room_of(source.path)] += lines_of(source)
    return dict(lines)


def budgets() -> dict[str, int]:
    """Return the budget of each room, in lines."""
    return {str(room): int(lines) for room, lines in tomllib.loads(BUDGETS.read_text(encoding="utf-8")).items()}


def debts() -> dict[str, list[str]]:
    """Return the keys of the breaches that stood when their rule was introduced, by rule."""
    found: dict[str, list[str]] = tomllib.loads(DEBTS.read_text(encoding="utf-8"))
    return found


def main(arguments: list[str]) -> int:
    """List, write or accept; return 1 if something breaks a rule and was not accepted."""
    code, accepts = project(), "--accept" in arguments
    known, lines = debts() if DEBTS.exists() else {}, room_lines(code)
    left = 0
    owed: dict[str, list[str]] = {}
    for name, rule in RULES.items():
        breaches = {one.key: one.words for one in rule(code)}
        new = [key for key in breaches if key not in known.get(name, ())]
        left += len(new)
        sys.stdout.writelines(f"{name}: {breaches[key]}\n" for key in new)
        owed[name] = sorted(key for key in breaches if accepts or key not in new)
    before = budgets() if BUDGETS.exists() else {}
    over = [room for room, count in sorted(lines.items()) if count > before.get(room, 0)]
    sys.stdout.writelines(f"budgets: {room} has {lines[room]} lines, not {before.get(room, 0)}\n" for room in over)
    if (left or over) and not accepts:
        sys.stdout.write("Change the code, or accept what is listed with --accept and say why in the commit.\n")
    if accepts or "--write" in arguments:
        kept = {room: count for room, count in lines.items() if accepts or room in before}
        limited = {room: count if accepts else min(count, before[room]) for room, count in kept.items()}
        _write(owed, limited)
    return 0 if accepts or not (left or over) else 1


def _write(owed: Mapping[str, list[str]], limited: Mapping[str, int]) -> None:
    tables = (
        f"{name} = [\n" + "".join(f"    {json.dumps(key)},\n" for key in keys) + "]\n"
        for name, keys in owed.items()
        if keys
    )
    DEBTS.write_text(DEBTS_HEAD + "\n".join(tables), encoding="utf-8")
    rows = (f"{json.dumps(room)} = {count}\n" for room, count in sorted(limited.items()))
    BUDGETS.write_text(BUDGETS_HEAD + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
