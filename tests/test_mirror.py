"""Every source file has its test at the same place: pattern_x/y/z.py is tested by tests/pattern_x/y/test_z.py."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

from tests.sources import ROOT, Source, report, sources

# Files without a test of their own, each with the reason. The list may only shrink.
DEBTS: dict[str, str] = {}


def mirror(source: Source) -> str:
    """Where the test of a source file stands; a package's `__init__.py` is tested under the package's own name."""
    path = PurePosixPath(source.path)
    name = path.parent.name if path.name == "__init__.py" else path.stem.strip("_")
    return str(PurePosixPath("tests") / path.parent / f"test_{name}.py")


def has_code(source: Source) -> bool:
    """True if the file defines something; an `__init__.py` that only names or gathers things needs no test."""
    return any(isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) for node in source.tree.body)


def test_every_source_file_has_its_test() -> None:
    failures = [
        f"{source.path} has no {mirror(source)}"
        for source in sources()
        if source.path not in DEBTS and (has_code(source) or not source.path.endswith("__init__.py"))
        if not (ROOT / mirror(source)).exists()
    ]
    report(failures, "every source file has its test at the same place; write it.")


def test_debts_only_shrink() -> None:
    by_path = {source.path: source for source in sources()}
    failures = [
        f"{path} has its test now, or is gone: remove its line from DEBTS"
        for path in DEBTS
        if path not in by_path or (ROOT / mirror(by_path[path])).exists()
    ]
    report(failures, "the list of debts in tests/test_mirror.py names only what is owed.")
