"""The house rules that a machine can hold: sizes, docstrings, banned calls, broad excepts, no mocks."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from typing import TypeAlias

from tests.sources import Source, report, sources, sources_of_tests

LINES_PER_FILE_MAX = 500
LINES_PER_FUNCTION_MAX = 60
METHODS_PER_CLASS_MAX = 20
PARAMETERS_MAX = 7
NESTING_MAX = 4

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

# A dotted call (or the start of one, ending with a dot) -> files that may, and what to do elsewhere.
REAL_WORLD = ("pattern_core/clock.py", "pattern_core/ids.py", "pattern_core/runtime.py")
EDGES = (*REAL_WORLD, "pattern_server/serve.py", "pattern_server/config.py")
BANNED: dict[str, tuple[tuple[str, ...], str]] = {
    "print": (("pattern_server/cli/output.py",), "print through pattern_server/cli/output.py"),
    "click.echo": (("pattern_server/cli/output.py",), "print through pattern_server/cli/output.py"),
    "click.secho": (("pattern_server/cli/output.py",), "print through pattern_server/cli/output.py"),
    "sys.stdout.write": (("pattern_server/cli/output.py",), "print through pattern_server/cli/output.py"),
    "datetime.now": (EDGES, "ask the injected Clock"),
    "datetime.utcnow": (EDGES, "ask the injected Clock"),
    "datetime.datetime.now": (EDGES, "ask the injected Clock"),
    "date.today": (EDGES, "ask the injected Clock"),
    "time.time": (EDGES, "ask the injected Clock"),
    "time.time_ns": (EDGES, "ask the injected Clock"),
    "time.sleep": ((), "await trio.sleep"),
    "random.": (EDGES, "take the injected Randomness or ids"),
    "secrets.": (EDGES, "take the injected Randomness or ids"),
    "uuid.": (EDGES, "take ids from pattern_core.ids"),
    "os.urandom": (EDGES, "take the injected Randomness or ids"),
    "os.getenv": (("pattern_server/config.py",), "read settings in config.py and hand them down"),
    "eval": ((), "parse what you mean"),
    "exec": ((), "write the code that you mean"),
}
MOCKS = {"unittest.mock", "mock", "pytest_mock"}
# The two borders of tasks, where whatever goes wrong becomes a log line and a restart or a problem document.
BORDERS = ("pattern_server/supervisor.py", "pattern_server/http/app.py")
# Not borders, but nothing is swallowed here: loro raises bare BaseException, which is translated; and what a unit of
# work raises on a database thread is carried to the task that waits for it.
CARRIERS = ("pattern_core/memory/document.py", "pattern_db/database.py")
STDLIB_NAMES_ALLOWED = {"http"}  # what everybody calls it; we import it only by its full name


def functions(source: Source) -> Iterator[Function]:
    """Every function and method of a file, nested ones too."""
    return (node for node in ast.walk(source.tree) if isinstance(node, Function))


def test_files_are_short() -> None:
    failures = [
        f"{source.path}: {source.text.count(chr(10))} lines"
        for source in (*sources(), *sources_of_tests())
        if source.text.count("\n") > LINES_PER_FILE_MAX
    ]
    report(failures, f"a file has at most {LINES_PER_FILE_MAX} lines; find the two things that it does and part them.")


def test_functions_are_short() -> None:
    failures = [
        f"{source.at(node)} {node.name}: {_length(node)} lines"
        for source in (*sources(), *sources_of_tests())
        for node in functions(source)
        if _length(node) > LINES_PER_FUNCTION_MAX
    ]
    report(failures, f"a function has at most {LINES_PER_FUNCTION_MAX} lines; name a part of it and move that out.")


def _length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_classes_are_small() -> None:
    failures = [
        f"{source.at(node)} {node.name}: {count} methods"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
        if (count := sum(isinstance(child, Function) for child in node.body)) > METHODS_PER_CLASS_MAX
    ]
    report(
        failures, f"a class has at most {METHODS_PER_CLASS_MAX} methods; some of them want to be functions beside it."
    )


def test_parameters_are_few() -> None:
    failures = [
        f"{source.at(node)} {node.name}: {count} parameters"
        for source in sources()
        for node in functions(source)
        if (count := _parameters(node)) > PARAMETERS_MAX and not _is_fed_by_a_framework(node)
    ]
    report(
        failures, f"a function takes at most {PARAMETERS_MAX} parameters; group what belongs together in a dataclass."
    )


def _parameters(node: Function) -> int:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    handed = {"self", "cls"} | (
        {"context"} if any(ast.unparse(one).startswith("tool") for one in node.decorator_list) else set()
    )
    return sum(argument.arg not in handed for argument in arguments)


def _is_fed_by_a_framework(node: Function) -> bool:
    """Commands of click take one parameter per option, tools one per argument; nobody calls them by hand."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(".option" in one or one.startswith("tool(") for one in decorators)


def test_nesting_is_shallow() -> None:
    failures = [
        f"{source.at(node)} {node.name}: {depth} levels"
        for source in sources()
        for node in functions(source)
        if (depth := _depth(node)) > NESTING_MAX
    ]
    report(failures, f"blocks nest at most {NESTING_MAX} deep; return early, or name the inner part.")


def _depth(node: ast.AST) -> int:
    """How deep loops, conditions and handlers nest; `elif` and `with` add nothing."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        adds = isinstance(child, ast.If | ast.For | ast.AsyncFor | ast.While | ast.Try | ast.Match) and not is_elif
        deepest = max(deepest, _depth(child) + adds)
    return deepest


def test_everything_public_says_what_it_is() -> None:
    failures = [
        f"{place} {name} has no docstring"
        for source in sources()
        for place, name, node in _public(source)
        if not ast.get_docstring(node)
    ]
    report(
        failures,
        "public modules, classes, functions and methods say what they give, in which units, and when they raise.",
    )


def _public(source: Source) -> Iterator[tuple[str, str, ast.Module | ast.ClassDef | Function]]:
    yield f"{source.path}:1", source.name, source.tree
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield source.at(node), node.name, node
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, Function) and not method.name.startswith("_") and not _is_overload(method):
                        yield source.at(method), f"{node.name}.{method.name}", method


def _is_overload(node: Function) -> bool:
    return any(
        ast.unparse(decorator).endswith(("overload", ".setter", "override")) for decorator in node.decorator_list
    )


def test_banned_calls() -> None:
    failures = [
        f"{source.at(node)} calls {called}: {advice}"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        for called in [ast.unparse(node.func)]
        for banned, (allowed, advice) in BANNED.items()
        if called == banned or (banned.endswith(".") and called.startswith(banned))
        if source.path not in allowed
    ]
    report(
        failures, "clock, randomness, environment and terminal each have one place; see BANNED in tests/test_tidy.py."
    )


def test_the_environment_is_read_in_one_place() -> None:
    failures = [
        f"{source.at(node)} reads os.environ"
        for source in sources()
        if source.path != "pattern_server/config.py"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "os.environ"
    ]
    report(failures, "settings are read once, by pattern_server/config.py, and handed down.")


def test_nothing_is_caught_broadly() -> None:
    broad = {"Exception", "BaseException", "BaseExceptionGroup", "ExceptionGroup", "trio.Cancelled"}
    failures = [
        f"{source.at(node)} catches {caught}"
        for source in sources()
        if source.path not in BORDERS + CARRIERS
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ExceptHandler)
        for caught in [ast.unparse(node.type) if node.type else "everything"]
        if (node.type is None or broad & {part.strip(" ()") for part in caught.split(",")})
        if not _raises_again(node)
    ]
    report(failures, "catch what you expect by name; bugs must reach the task's border. Clean-up may raise again.")


def _raises_again(node: ast.ExceptHandler) -> bool:
    return any(isinstance(child, ast.Raise) for child in node.body)


def test_stand_ins_behave_and_nothing_is_mocked() -> None:
    failures = [
        f"{source.at(node)}: {ast.unparse(node)}"
        for source in (*sources(), *sources_of_tests())
        for node in ast.walk(source.tree)
        if (isinstance(node, ast.Import) and MOCKS & {alias.name for alias in node.names})
        or (isinstance(node, ast.ImportFrom) and (node.module in MOCKS or node.module == "unittest"))
    ]
    report(
        failures, "tests use stand-ins that behave (pattern_core/testing), which survive a refactoring; mocks do not."
    )


def test_exceptions_to_the_checkers_have_a_code_and_a_reason() -> None:
    silenced = re.compile(r"#\s*(type:\s*ignore|noqa)(?P<rest>[^#]*)(?P<reason>#.*)?$")
    failures = [
        f"{source.path}:{number}: {line.strip()}"
        for source in (*sources(), *sources_of_tests())
        if source.path != "tests/test_tidy.py"
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


def test_no_module_takes_a_name_of_the_standard_library() -> None:
    names = {(source.path, part) for source in sources() for part in source.name.split(".")[1:]}
    failures = [
        f"{path}: {part}"
        for path, part in sorted(names)
        if part in sys.stdlib_module_names and part not in STDLIB_NAMES_ALLOWED
    ]
    report(failures, "a module named as one of the standard library's misleads readers and tools; choose another noun.")


def test_nothing_is_left_to_do_in_a_comment() -> None:
    unfinished = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")
    failures = [
        f"{source.path}:{number}: {line.strip()}"
        for source in (*sources(), *sources_of_tests())
        if source.path != "tests/test_tidy.py"
        for number, line in enumerate(source.text.splitlines(), 1)
        if unfinished.search(line)
    ]
    report(failures, "do it now, or say in the issue tracker that it is missing.")
