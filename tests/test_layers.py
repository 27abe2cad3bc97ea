"""Who may import whom: three layers, each foreign library in its own small place, and no cycles."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from tests.sources import PACKAGES, Source, imports, is_within, report, sources


class Rule(NamedTuple):
    """`modules` may be imported only in files whose path starts with one of `only_in` (nowhere if empty)."""

    modules: tuple[str, ...]
    only_in: tuple[str, ...]
    why: str


RULES = (
    Rule(("pattern_server",), ("pattern_server/",), "the server stands on the core, never the other way"),
    Rule(("pattern_core",), ("pattern_core/", "pattern_server/"), "pattern_db knows rows and bytes, not agents"),
    Rule(("apsw", "sqlite_vec"), ("pattern_db/",), "only pattern_db speaks to SQLite"),
    Rule(("sqlite3",), (), "a second SQLite library drops the first one's file locks; use pattern_db"),
    Rule(("loro",), ("pattern_core/memory/document.py",), "loro raises BaseException; one file translates it"),
    Rule(
        ("trio", "threading", "queue"),
        ("pattern_db/database.py", "pattern_core/", "pattern_server/"),
        "in pattern_db, async and threads live in database.py alone; everything else is a plain function",
    ),
    Rule(
        ("asyncio", "anyio", "aiosqlite", "uvicorn", "sniffio", "requests", "httpx", "aiohttp"),
        (),
        "the runtime is trio, the HTTP client httpx2; libraries bound to asyncio do not run here",
    ),
    Rule(("fastapi", "starlette"), ("pattern_server/http/", "pattern_server/serve.py"), "HTTP ends at the http folder"),
    Rule(("hypercorn",), ("pattern_server/listener.py",), "the listener hides the HTTP engine"),
    Rule(("click", "rich"), ("pattern_server/cli/",), "the terminal is the command line's business"),
    Rule(
        ("httpx2",),
        (
            *("pattern_core/models/", "pattern_core/embeddings/", "pattern_core/web/", "pattern_core/testing/"),
            "pattern_core/mcp_servers/streamable.py",
            "pattern_server/cli/",
        ),
        "HTTP clients",
    ),
    Rule(("tree_sitter", "tree_sitter_bash"), ("pattern_core/shell/",), "one room reads commands"),
    Rule(("pint",), ("pattern_core/calculator/units.py",), "one file knows the units"),
    Rule(("mcp", "mcp_types"), ("pattern_core/mcp_servers/connection.py",), "one file knows the protocol's library"),
    Rule(("jsonschema",), ("pattern_core/mcp_servers/",), "our own tools are checked by pydantic"),
    Rule(("markdownify",), ("pattern_core/web/page_child.py",), "pages are read in a child process"),
    Rule(
        ("openai",),
        ("pattern_core/models/providers/openai.py", "pattern_core/embeddings/providers/openai.py"),
        "a vendor's library is known to its provider alone",
    ),
    Rule(
        ("anthropic",),
        ("pattern_core/models/providers/anthropic.py",),
        "a vendor's library is known to its provider alone",
    ),
    Rule(
        ("pydantic", "pydantic_settings"),
        (
            *("pattern_server/http/", "pattern_server/config.py", "pattern_server/web_config.py"),
            *("pattern_server/mcp_config.py", "pattern_core/tools/", "pattern_core/mcp_servers/connection.py"),
        ),
        "inside, data is frozen dataclasses; pydantic checks what comes from outside",
    ),
    Rule(
        ("torch", "sentence_transformers", "huggingface_hub", "onnxruntime", "tokenizers"),
        ("pattern_core/embeddings/local/",),
        "models are loaded in the child process only; the server stays small and responsive",
    ),
    Rule(
        ("numpy",),
        ("pattern_db/vector_scan.py", "pattern_core/search/postings.py", "pattern_core/embeddings/local/"),
        "many numbers at once are the business of the scan, of common words and of the models",
    ),
    Rule(("prometheus_client",), ("pattern_server/metrics.py",), "whoever counts tells pattern_core.meters, no format"),
    Rule(("multiprocessing", "concurrent"), (), "work in parallel is trio's tasks and the database's threads"),
)
# Heavy libraries that must not delay the start of a server or of `pattern --help`.
LATE = (
    *("openai", "anthropic", "pint", "markdownify", "prometheus_client", "mcp", "mcp_types", "jsonschema"),
    *("numpy", "torch", "sentence_transformers", "huggingface_hub", "onnxruntime", "tokenizers"),
)
SQL = re.compile(
    r"^\s*(SELECT\s.+\sFROM\s|INSERT (OR \w+ )?INTO\s|UPDATE \w+\s+SET\s|DELETE FROM\s"
    r"|CREATE (\w+ )?(TABLE|INDEX|TRIGGER)\s|DROP (TABLE|INDEX)\s|ALTER TABLE\s"
    r"|PRAGMA \w+|BEGIN IMMEDIATE|SAVEPOINT\s|VACUUM\b|WITH \w+ AS \()",
    re.DOTALL,
)


def test_each_library_is_imported_only_where_it_belongs() -> None:
    failures = [
        f"{found.place} imports {found.name}: {rule.why}; allowed in {', '.join(rule.only_in) or 'no file'}"
        for found in imports()
        for rule in RULES
        if is_within(found.name, rule.modules) and not found.source.path.startswith(rule.only_in or ("\0",))
    ]
    report(failures, "the table RULES in tests/test_layers.py; a change of it is a change of the design.")


def test_the_server_reaches_rows_only_through_named_doors() -> None:
    doors = tuple(f"pattern_server/{name}.py" for name in ("serve", "accounts", "files", "cli/db"))
    failures = [
        f"{found.place} imports {found.name}"
        for found in imports()
        if found.name.startswith("pattern_db.tables") and found.source.path.startswith("pattern_server/")
        if not found.source.path.startswith(doors)
    ]
    report(
        failures,
        "a constellation's rows belong to its task: ask the core, or accounts.py; files.py and db.py have their locks.",
    )


def test_our_own_imports_stand_at_the_top() -> None:
    failures = [
        f"{found.place} imports {found.name} inside a function"
        for found in imports()
        if found.is_late and is_within(found.name, PACKAGES)
    ]
    report(failures, "own imports stand at the top of the file; one inside a function hides a cycle: move the code.")


def test_heavy_libraries_are_imported_late() -> None:
    failures = [
        f"{found.place} imports {found.name} at the top"
        for found in imports()
        if is_within(found.name, LATE) and not found.is_late and not found.is_for_types
    ]
    report(failures, "a vendor's library takes a second to import: do it inside the function that first needs it.")


def test_there_are_no_cycles() -> None:
    graph: dict[str, set[str]] = {source.name: set() for source in sources()}
    for found in imports():
        if not found.is_for_types and found.name in graph and found.name != found.source.name:
            graph[found.source.name].add(found.name)
    failures = [" -> ".join(cycle) for cycle in _cycles(graph)]
    report(failures, "modules do not import each other in a circle; move what both need into a third one below them.")


def _cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """One cycle for each back edge of a depth-first walk."""
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            found.append([*trail[trail.index(name) :], name])
        elif name not in done:
            for other in sorted(graph[name]):
                visit(other, [*trail, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return found


def test_sql_stands_only_in_pattern_db() -> None:
    failures = [
        f"{source.at(node)} holds SQL: {str(node.value).strip()[:60]!r}"
        for source in sources()
        if not source.path.startswith("pattern_db/")
        for node in _strings(source)
        if SQL.match(str(node.value))
    ]
    report(failures, "SQL is written inline in the table modules of pattern_db; call a function of theirs.")


def _strings(source: Source) -> list[ast.Constant]:
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    return [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


def test_the_rules_themselves_see_what_they_forbid() -> None:
    assert SQL.match("SELECT id FROM agents")
    assert SQL.match("\n  INSERT INTO agents (id) VALUES (?)")
    assert not SQL.match("Select a model from the list")
    assert _cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == [["a", "b", "c", "a"]]
    assert _cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
