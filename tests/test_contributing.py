"""CONTRIBUTING is complete: a copy of the project gets one extension of each kind, by its tables alone, and runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sources import PACKAGES, ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
IMPORTS = "from __future__ import annotations\n"
MIGRATIONS = "migrations/constellation"
NEXT = len(list((ROOT / MIGRATIONS).glob("*.sql"))) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """New files by path; the file of the table and what to replace there; code that uses the extension."""

    files: Mapping[str, str]
    table: str = ""
    replacements: Mapping[str, str]
    proof: str


TOOL = Addition(
    files={
        "pattern_core/tools/builtin/dummy.py": '''
from pattern_core.tools.tool import ToolContext, tool

@tool()
async def dummy(context: ToolContext) -> str:
    """Do nothing."""
    return "done"
'''
    },
    table="pattern_core/tools/builtin/__init__.py",
    replacements={
        IMPORTS: IMPORTS + "from pattern_core.tools.builtin.dummy import dummy\n",
        "= (\n    block,\n": "= (\n    dummy,\n    block,\n",
    },
    proof="""
from pattern_core.tools.builtin import BUILTIN
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import ToolSettings
registry = ToolRegistry(BUILTIN, ToolSettings())
dummy = registry.get("dummy", ["dummy"])
assert registry.specs(["dummy"])[0].description == "Do nothing."
assert (dummy.effect, dummy.returns_untrusted_text, "dummy" in registry.named(["auto"])) == ("unsafe", True, False)
""",
)
PROVIDER = Addition(
    files={
        "pattern_core/models/providers/dummy.py": """
from pattern_core.models.providers.embedded import EmbeddedProvider as DummyProvider
"""
    },
    table="pattern_core/models/providers/__init__.py",
    replacements={
        "    {\n": "    {\n"
        '        "dummy": ProviderKind(maker="pattern_core.models.providers.dummy:DummyProvider",'
        ' variables="DUMMY", default_model="dummy-1"),\n'
        '        "keyless": ProviderKind(maker="pattern_core.models.providers.dummy:DummyProvider",'
        ' default_model="keyless-1"),\n',
    },
    proof="""
import os
from pathlib import Path
from pattern_core.models.errors import ModelNotConfigured
from pattern_core.models.providers import make_provider, not_configured
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_server.cli.doctor import examine
from pattern_server.config import load
config = load(data_dir=Path("data"))
assert (config.providers["keyless"].kind, config.default_provider) == ("keyless", "keyless")
assert "keyless; new agents use keyless/keyless-1" in [one.message for one in examine(config)]
assert make_provider("keyless", ProviderSettings(kind="keyless")).name == "keyless"
assert "api_key" not in not_configured("keyless").message
os.environ["DUMMY_API_KEY"] = "key"
config = load(data_dir=Path("data"))
assert (config.default_provider, config.default_model) == ("dummy", "dummy-1")
assert make_provider("dummy", ProviderSettings(kind="dummy", api_key=Secret("key"))).name == "dummy"
try:
    make_provider("dummy", ProviderSettings(kind="dummy"))
except ModelNotConfigured as error:
    assert "Set DUMMY_API_KEY" in error.message
else:
    raise AssertionError("a missing key was accepted")
""",
)
EMBEDDING_PROVIDER = Addition(
    files={
        "pattern_core/embeddings/providers/dummy.py": """
from pattern_core.embeddings.embedder import AbsentEmbedder
from pattern_core.embeddings.settings import EmbedderSettings

def make_dummy(settings: EmbedderSettings) -> AbsentEmbedder:
    return AbsentEmbedder("dummy")
"""
    },
    table="pattern_core/embeddings/providers/__init__.py",
    replacements={
        "    {\n": '    {\n        "dummy": "pattern_core.embeddings.providers.dummy:make_dummy",\n',
    },
    proof="""
from pathlib import Path
from pattern_server.config import load
from pattern_server.settings import embedder_shelf
config = load(data_dir=Path("data"), embeddings={"provider": "dummy"})
assert config.embeddings.provider == "dummy"
embedder_shelf(config)
""",
)
RULE_KIND = Addition(
    files={},
    table="pattern_core/rules/kinds.py",
    replacements={
        "\nKINDS: ": '''
class Dummy(ToolRule):
    """After the tool ran the turn ends."""

    name = "dummy"
    ends = True
    in_words = sentence("{tool} is a dummy.")


KINDS: ''',
    },
    proof="""
from pattern_core.rules.ruleset import RuleSet
assert RuleSet.of([{"tool": "block", "type": "dummy"}]).lines == ("`block` is a dummy.",)
""",
)
COORDINATION = Addition(
    files={
        "pattern_core/groups/coordinations/dummy.py": '''
from dataclasses import dataclass
from pattern_core.groups.coordination import Coordination, Room

@dataclass(frozen=True, slots=True, kw_only=True)
class Dummy(Coordination):
    """It has nothing to configure."""

    async def run(self, room: Room) -> str:
        """Ask nobody."""
        return "done"
'''
    },
    table="pattern_core/groups/coordinations/__init__.py",
    replacements={
        "import Debate\n": "import Debate\nfrom pattern_core.groups.coordinations.dummy import Dummy\n",
        '        "debate": Debate,\n': '        "debate": Debate,\n        "dummy": Dummy,\n',
    },
    proof="""
import trio
from pattern_core.groups.group import coordination_of
coordination = coordination_of("dummy", {"max_turns": 3})
assert (trio.run(coordination.run, None), coordination.max_turns) == ("done", 3)
""",
)
ROUTE = Addition(
    files={
        "pattern_server/http/routes/dummies.py": '''
from pattern_server.http.routing import MayRead, Router

router = Router(prefix="/dummies", tags=["dummies"])

@router.get("")
async def list_all(caller: MayRead) -> object:
    """List nothing."""
    return []
'''
    },
    table="pattern_server/http/app.py",
    replacements={
        "\nRESOURCES = (\n": '\nRESOURCES = (\n    "pattern_server.http.routes.dummies",\n',
    },
    proof="""
from pattern_server.http.app import api_routes
assert "/api/v1/dummies" in {route.path for route in api_routes()}
""",
)
TOOLSET = Addition(
    files={
        "pattern_server/http/toolsets/dummy.py": '''
from pattern_core.tools.tool import tool
from pattern_server.http.toolsets.toolset import ServedCall

@tool()
async def dummy(call: ServedCall) -> object:
    """Do nothing."""
    return {}

TOOLS = {"chat": (dummy,)}
'''
    },
    table="pattern_server/http/toolsets/__init__.py",
    replacements={
        "import agents, archive, delia, delta, lodestone": "import agents, archive, delia, delta, dummy, lodestone",
        "    memory.TOOLS,\n": "    memory.TOOLS,\n    dummy.TOOLS,\n",
    },
    proof="""
from pattern_server.http.toolsets import SERVED
assert (SERVED["dummy"][0], SERVED["dummy"][1].description) == ("chat", "Do nothing.")
""",
)
DUMMY_SOURCE = '''
from pattern_core.sources.source import Arrivals, SourceEvent, SourceKind, take_fields

class Dummy(SourceKind):
    """Has one event."""

    fields = {"word": "what it says"}

    def checked(self, config, settings):
        return take_fields(self, config, {"word": "hello"})

    async def poll(self, account):
        return Arrivals(events=[SourceEvent(native="1", text=account.config["word"])], wait_s=60)
'''
SOURCE_PROOF = """
import trio
from pattern_core.sources.kinds import kind_of
from pattern_core.sources.source import Outgoing, SourceAccount
from pattern_core.testing import StoppedClock
from pattern_core.web.policy import SourceSettings
from pattern_db.tables.sources import SourceRow
kind = kind_of("dummy")
row = SourceRow("src_1", "it", "dummy", kind.checked({}, SourceSettings()), "", "")
account = SourceAccount(row=row, settings=SourceSettings(), clock=StoppedClock())
assert trio.run(account.call, kind.poll).events[0].text == "hello"
"""
SOURCE = Addition(
    files={"pattern_core/sources/kinds/dummy.py": DUMMY_SOURCE},
    table="pattern_core/sources/kinds/__init__.py",
    replacements={"    {\n": '    {\n        "dummy": "pattern_core.sources.kinds.dummy:Dummy",\n'},
    proof=SOURCE_PROOF + "assert not kind.chars_max\n",
)
CHANNEL = Addition(
    files={
        "pattern_core/sources/kinds/dummy.py": DUMMY_SOURCE
        + """
    chars_max = 100
    sent = []

    async def send(self, account, chat, said, send_id):
        self.sent.append((chat, said.text))
"""
    },
    table="pattern_core/sources/kinds/__init__.py",
    replacements={"    {\n": '    {\n        "dummy": "pattern_core.sources.kinds.dummy:Dummy",\n'},
    proof=SOURCE_PROOF
    + """
trio.run(kind.send, account, "7", Outgoing(text="Hi"), "say_1")
assert (kind.chars_max, kind.sent) == (100, [("7", "Hi")])
""",
)
COMMAND = Addition(
    files={
        "pattern_server/cli/dummy.py": '''
import click

@click.command()
def dummy() -> None:
    """Do nothing."""
    click.get_current_context().exit(3)
'''
    },
    table="pattern_server/cli/__init__.py",
    replacements={
        '        "serve": Entry(': (
            '        "dummy": Entry("pattern_server.cli.dummy", "Do nothing."),\n        "serve": Entry('
        )
    },
    proof="""
from pattern_server.cli import run
assert run(["dummy"]) == 3
""",
)
TABLE = Addition(
    files={
        "pattern_db/tables/dummies.py": """
def add(connection, name):
    connection.execute("INSERT INTO dummies (name) VALUES (?)", (name,))

def names(connection):
    return [row[0] for row in connection.execute("SELECT name FROM dummies")]
""",
        f"{MIGRATIONS}/{NEXT:04d}_dummies.sql": "CREATE TABLE dummies (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;\n",
    },
    replacements={},
    proof="""
from pattern_db import template
from pattern_db.migrate import migrations_of
from pattern_db.tables import dummies
connection = template.in_memory(migrations_of("constellation"), now="2026-01-01T00:00:00.000Z")
dummies.add(connection, "one")
assert dummies.names(connection) == ["one"]
""",
)
ADDITIONS: Mapping[str, Addition] = {
    "tool": TOOL,
    "model provider": PROVIDER,
    "embedding provider": EMBEDDING_PROVIDER,
    "rule kind": RULE_KIND,
    "coordination": COORDINATION,
    "source": SOURCE,
    "channel": CHANNEL,
    "route": ROUTE,
    "toolset": TOOLSET,
    "command": COMMAND,
    "table": TABLE,
}


def rows(heading: str) -> dict[str, list[str]]:
    """Return the rows of the table whose first column has this heading: the other cells, by the first."""
    table = TEXT.split(f"| {heading} | ")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    return {name.strip(): others for name, *others in cells}


@pytest.mark.parametrize("name", ADDITIONS)
def test_an_extension_is_a_file_and_an_entry(name: str, tmp_path: Path) -> None:
    addition = ADDITIONS[name]
    for folder in (*PACKAGES, "migrations", "data"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in addition.files.items():
        assert not (tmp_path / path).exists()
        (tmp_path / path).write_text(text, encoding="utf-8")
    for before, after in addition.replacements.items():
        table = (tmp_path / addition.table).read_text(encoding="utf-8")
        assert table.count(before) == 1, f"{before!r} is not once in {addition.table}"
        (tmp_path / addition.table).write_text(table.replace(before, after), encoding="utf-8")
    proof = f"import pattern_db\nassert pattern_db.__file__.startswith({str(tmp_path)!r})\n{addition.proof}"
    done = subprocess.run([sys.executable, "-c", proof], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_table_of_extensions_names_what_the_test_adds() -> None:
    table = rows("extension")
    assert set(table) == set(ADDITIONS)
    for name, (write, entry, *_) in table.items():
        addition = ADDITIONS[name]
        patterns = [re.sub(r"<\w+>|NNNN", "*", path) for path in re.findall(r"`([^`]+\.(?:py|sql))`", write)]
        files = [*addition.files] or [addition.table]
        assert len(files) == len(patterns)
        assert all(Path(path).match(pattern) for path, pattern in zip(files, patterns, strict=True)), name
        assert addition.table in (re.findall(r"`([^`]+\.py)`", entry) or [""]), name


@pytest.mark.parametrize("heading", ["extension", "addition"])
def test_what_the_tables_name_exists(heading: str) -> None:
    for name, cells in rows(heading).items():
        for cell in cells:
            paths = [path for path in re.findall(r"`([^`]+)`", cell) if "/" in path or path.endswith(".md")]
            for path in paths:
                folder = re.split(r"<|NNNN", path)[0]
                assert (ROOT / folder).exists(), f"{name}: there is no {path}"
            for table in re.findall(r"`([A-Z_]+)` in `", cell):
                text = (ROOT / paths[-1]).read_text(encoding="utf-8")
                assert re.search(rf"^{table}\b.*=", text, re.MULTILINE), f"{name}: there is no {table} in {paths[-1]}"
