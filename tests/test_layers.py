"""Who may import and call what: three layers, each library, SQL, the clock and the terminal in one place."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from tests.sources import PACKAGES, Source, imports, is_within, report, sources, sources_of_tests


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
        ("pattern_db/database.py", "pattern_db/lane.py", "pattern_core/", "pattern_server/"),
        "in pattern_db, async and threads live in database.py and lane.py; everything else is a plain function",
    ),
    Rule(
        ("asyncio", "anyio", "aiosqlite", "uvicorn", "sniffio", "requests", "httpx", "aiohttp"),
        (),
        "the runtime is trio, the HTTP client httpx2; libraries bound to asyncio do not run here",
    ),
    Rule(("fastapi", "starlette"), ("pattern_server/http/", "pattern_server/serve.py"), "HTTP ends at the http folder"),
    Rule(("h11",), ("pattern_server/listener.py",), "the listener hides HTTP's wire format"),
    Rule(
        ("wsproto",),
        ("pattern_server/http/websocket.py", "pattern_core/web/websocket.py"),
        "one file of the server and one of the core know the frames of WebSocket",
    ),
    Rule(("prompt_toolkit", "markdown_it"), ("pattern_server/cli/chat_terminal.py",), "one file has the prompt"),
    Rule(("click", "rich"), ("pattern_server/cli/",), "the terminal is the command line's business"),
    Rule(
        ("httpx2",),
        (
            *("pattern_core/models/", "pattern_core/embeddings/", "pattern_core/web/", "pattern_core/testing/"),
            "pattern_core/mcp_servers/connection.py",
            "pattern_server/cli/",
        ),
        "HTTP clients",
    ),
    Rule(("dateutil", "cronsim"), ("pattern_core/timing.py",), "one file knows when a rule is due"),
    Rule(("icalendar",), ("pattern_core/ical.py",), "one file knows the format of calendars"),
    Rule(("pint",), ("pattern_core/calculator.py",), "one file knows the units"),
    Rule(("argon2", "jwt"), ("pattern_server/credentials.py",), "one file knows passwords and signatures"),
    Rule(
        ("mcp", "mcp_types"),
        ("pattern_core/mcp_servers/connection.py", "pattern_server/http/mcp.py", "pattern_server/cli/tools.py"),
        "one file of the core, one of the server and one of the command line know the protocol's library",
    ),
    Rule(("markdownify",), ("pattern_core/files/readers.py",), "pages are read in a child process"),
    Rule(("openai", "anthropic"), (), "the vendors' formats are spoken over httpx2"),
    Rule(
        ("pydantic", "pydantic_settings"),
        (
            *("pattern_server/http/", "pattern_server/config.py", "pattern_server/sections.py"),
            *("pattern_server/settings.py", "pattern_server/cli/tools.py"),
            *("pattern_core/validation.py", "pattern_core/agent_settings.py", "pattern_core/budgets/"),
            *("pattern_core/timing.py", "pattern_core/delta.py"),  # the latter: parameters of its tools
            "pattern_core/playbooks.py",  # bullets of files
            *("pattern_core/rules/", "pattern_core/tools/", "pattern_core/mcp_servers/", "pattern_core/groups/"),
            "pattern_core/mcp_settings.py",
            "pattern_core/schedule/",
            *("pattern_core/models/model.py", "pattern_core/models/catalogue.py", "pattern_core/models/routing.py"),
            *("pattern_core/models/throttle.py", "pattern_core/models/providers/settings.py"),
            *("pattern_core/memory/schema.py", "pattern_core/embeddings/settings.py"),
            *("pattern_core/shell/policy.py", "pattern_core/web/policy.py"),
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
        ("pattern_db/vectors.py", "pattern_core/search/postings.py", "pattern_core/embeddings/local/"),
        "many numbers at once are the business of the scan, of common words and of the models",
    ),
    Rule(
        ("prometheus_client",),
        ("pattern_server/metrics.py",),
        "the core counts through pattern_core.journal, without a format",
    ),
    Rule(("opentelemetry",), ("pattern_server/telemetry.py",), "one file knows the format of traces"),
    Rule(("multiprocessing", "concurrent"), (), "work in parallel is trio's tasks and the database's threads"),
    Rule(
        ("random", "secrets", "uuid"),
        ("pattern_core/ids.py",),
        "use the injected Randomness or ids: what is drawn elsewhere cannot be replayed",
    ),
)
# Heavy libraries that must not delay the start of a server or of `pattern --help`.
LATE = (
    *("icalendar", "pint", "markdownify", "prometheus_client", "opentelemetry", "mcp", "mcp_types", "argon2", "jwt"),
    *("numpy", "torch", "sentence_transformers", "huggingface_hub", "onnxruntime", "tokenizers"),
)
# files that are themselves imported by the function that needs them
LOADED_LATE = ("pattern_server/http/mcp.py", "pattern_server/telemetry.py")
# A dotted call (or the start of one, ending with a dot) -> files that may, and what to do elsewhere.
CLOCK = (
    "pattern_core/ids.py",
    *("pattern_server/serve.py", "pattern_server/config.py"),
)
BANNED: dict[str, tuple[tuple[str, ...], str]] = {
    **dict.fromkeys(
        ("print", "click.echo", "click.secho", "sys.stdout.write"),
        (("pattern_server/cli/output.py",), "print through pattern_server/cli/output.py"),
    ),
    **dict.fromkeys(
        ("datetime.now", "datetime.utcnow", "datetime.datetime.now", "date.today", "time.time", "time.time_ns"),
        (CLOCK, "ask the injected Clock"),
    ),
    "os.urandom": ((), "use the injected Randomness"),
    # A lock is asked for again after a millisecond: only a process that asks for its holder has it for so short a time.
    "time.sleep": (("pattern_db/files.py",), "await trio.sleep"),
    "os.getenv": (("pattern_server/config.py",), "read settings in config.py and pass them down"),
}
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
    doors = tuple(
        f"pattern_server/{name}.py"
        for name in ("serve", "accounts", "sign_in", "identities", "credentials", "audit", "files", "sources", "cli/db")
    )
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
        if found.source.path not in LOADED_LATE
    ]
    report(failures, "a vendor's library takes a second to import: do it inside the function that first needs it.")


def test_banned_calls() -> None:
    failures = [
        f"{source.at(node)} calls {called}: {advice}"
        for source in sources()
        for node in source.nodes
        if isinstance(node, ast.Call)
        for called in [ast.unparse(node.func)]
        for banned, (allowed, advice) in BANNED.items()
        if called == banned
        if source.path not in allowed
    ]
    report(failures, "clock, randomness and terminal each have one place; see BANNED in tests/test_layers.py.")


def test_the_environment_is_read_in_one_place() -> None:
    failures = [
        f"{source.at(node)} reads os.environ"
        for source in sources()
        if source.path not in ("pattern_server/config.py", "pattern_server/settings.py")
        for node in source.nodes
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "os.environ"
    ]
    report(failures, "settings are read once, by config.py and settings.py of pattern_server, and passed down.")


def test_exceptions_to_the_checkers_have_a_code_and_a_reason() -> None:
    silenced = re.compile(r"#\s*(type:\s*ignore|noqa)(?P<rest>[^#]*)(?P<reason>#.*)?$")
    failures = [
        f"{source.path}:{number}: {line.strip()}"
        for source in (*sources(), *sources_of_tests())
        if source.path != "tests/test_layers.py"
        for number, line in enumerate(source.text.splitlines(), 1)
        if (found := silenced.search(line)) and not _is_explained(found)
    ]
    report(
        failures, "write `# type: ignore[code]  # reason` and `# noqa: CODE - reason`, so that a reader can judge it."
    )


def _is_explained(found: re.Match[str]) -> bool:
    rest = found["rest"]
    has_code = bool(re.match(r"\[[a-z-]+(, ?[a-z-]+)*\]|: ?[A-Z]+\d+", rest))
    words = re.sub(r"^(\[.*?\]|: ?[A-Z]+\d+)", "", rest) + (found["reason"] or "")
    return has_code and bool(re.search(r"\w", words))


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
        for node in source.nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    return [
        node
        for node in source.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


def test_the_rules_themselves_see_what_they_forbid() -> None:
    assert SQL.match("SELECT id FROM agents")
    assert SQL.match("\n  INSERT INTO agents (id) VALUES (?)")
    assert not SQL.match("Select a model from the list")
