"""The project's own source files, parsed once, for the tests that hold the house rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
    """All Python files of the three packages, by path."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return tuple(_parse(path) for path in paths)


@cache
def sources_of_tests() -> tuple[Source, ...]:
    """All Python files under tests/, by path."""
    return tuple(_parse(path) for path in sorted((ROOT / "tests").rglob("*.py")))


def _parse(path: Path) -> Source:
    relative = path.relative_to(ROOT)
    parts = relative.with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = path.read_text(encoding="utf-8")
    return Source(path=relative.as_posix(), name=name, text=text, tree=ast.parse(text, filename=str(path)))


@cache
def imports() -> tuple[Import, ...]:
    """Every import in the three packages; `from a import b` counts as `a.b` where that is one of our modules."""
    ours = {source.name for source in sources()}
    return tuple(found for source in sources() for found in _imports(source, ours))


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
