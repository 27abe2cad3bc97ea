"""The project's own source files and their imports, parsed once, for the tests of structure and layers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pattern_db", "pattern_core", "pattern_server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file: `path` is relative to the root with forward slashes, `name` dotted as it is imported."""

    path: str
    name: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]  # all of the tree's, since every test asks for them

    def at(self, node: ast.AST) -> str:
        """`path:line` of a node, as editors open it."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module; `name` is dotted, `is_late` inside a function, `is_for_types` under TYPE_CHECKING."""

    source: Source
    line: int
    name: str
    is_late: bool
    is_for_types: bool

    @property
    def place(self) -> str:
        """`path:line`, as editors open it."""
        return f"{self.source.path}:{self.line}"


@cache
def sources() -> tuple[Source, ...]:
    """Return all Python files of the three packages, by path."""
    return read(ROOT, PACKAGES)


@cache
def sources_of_tests() -> tuple[Source, ...]:
    """Return all Python files under tests/, by path."""
    return read(ROOT, ("tests",))


@cache
def imports() -> tuple[Import, ...]:
    """Return every import in the three packages."""
    return imports_of(sources())


def read(root: Path, folders: Iterable[str]) -> tuple[Source, ...]:
    """Parse all Python files below `folders` of `root`, by path."""
    return tuple(_parse(root, path) for path in sorted(path for one in folders for path in (root / one).rglob("*.py")))


def _parse(root: Path, path: Path) -> Source:
    relative = path.relative_to(root)
    parts = relative.with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, filename=str(path))
    return Source(path=relative.as_posix(), name=name, text=text, tree=tree, nodes=tuple(ast.walk(tree)))


def imports_of(found: Iterable[Source]) -> tuple[Import, ...]:
    """Return every import in these files; `from a import b` counts as `a.b` where that is one of them."""
    ours = {source.name: source for source in found}
    return tuple(one for source in ours.values() for one in _imports(source, set(ours)))


def _imports(source: Source, ours: set[str]) -> Iterator[Import]:
    def walk(node: ast.AST, *, is_late: bool, is_for_types: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            for name in _names(child, ours):
                line = getattr(child, "lineno", 1)
                yield Import(source=source, line=line, name=name, is_late=is_late, is_for_types=is_for_types)
            yield from walk(
                child,
                is_late=is_late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda),
                is_for_types=is_for_types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)),
            )

    return walk(source.tree, is_late=False, is_for_types=False)


def _names(node: ast.AST, ours: set[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        return sorted({name if name in ours else node.module for name in inner})
    return []


def is_within(name: str, roots: tuple[str, ...]) -> bool:
    """True if the dotted `name` is one of `roots` or lies inside one."""
    return any(name == root or name.startswith(root + ".") for root in roots)


def report(failures: list[str], rule: str) -> None:
    """Fail with every place at once and the rule below them; do nothing if there are none."""
    __tracebackhide__ = True
    assert not failures, "\n" + "\n".join(failures) + f"\n\nThe rule: {rule}"
