"""The users' pages are true: generated parts are fresh, links lead somewhere, and every example runs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import click
import pytest

from pattern_core.agent_settings import MessagePolicy, Strategy
from pattern_core.embeddings.providers import EMBEDDERS
from pattern_core.memory.block import TEMPLATES
from pattern_core.models.providers import PROVIDERS
from pattern_db.enums import BlockType, EffectClass, Permission
from pattern_server.cli.output import SKIPPED
from pattern_server.cli.up import LOCAL_SERVERS
from pattern_server.config import load
from pattern_server.http.errors import STATUS
from tests.docs import PAGES, errors, every_command, generated, pages, sections
from tests.machine import Machine
from tests.sources import ROOT

README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *pages()]
README_LINES_MAX = 120
LINE_CHARS_MAX = 120
BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Those that a reader can try on an empty machine; the others follow on "Getting started", whose result they find.
ON_AN_EMPTY_MACHINE = {"README.md", "getting-started.md"}
ADDRESS = "http://127.0.0.1:8470"  # of a server, in the examples


def named(paths: Iterable[Path]) -> list[object]:
    """Parameters of a test, one per document."""
    return [pytest.param(path, id=path.name) for path in paths]


def prose(path: Path) -> str:
    """A document without its blocks of code."""
    return BLOCK.sub("", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", named(pages()))
def test_what_is_generated_is_fresh(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert generated(text) == text, "the code has changed: python -m tests.docs --write"


@pytest.mark.parametrize("path", named([README, *pages()]))
def test_pages_read_well_in_a_terminal(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > LINE_CHARS_MAX] == []
    cells = [cell for line in prose(path).splitlines() if line.startswith("|") for cell in line.split("|")]
    assert [cell for cell in cells if re.search(r"[.!?] [A-Z]", cell)] == [], "a cell has one sentence at most"


@pytest.mark.parametrize("path", named(pages()))
def test_pages_begin_with_what_the_reader_wants(path: Path) -> None:
    title, _, rest = path.read_text(encoding="utf-8").partition("\n\n")
    assert title.startswith("# ")
    assert re.match(r"\*You (want|have) |Choose what you want", rest)
    assert path.name == "index.md" or f"({path.name})" in (PAGES / "index.md").read_text(encoding="utf-8")


def test_the_pages_are_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "data/docs" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= README_LINES_MAX


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", named(DOCUMENTS))
def test_links_lead_to_files_and_headings(path: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", prose(path))
    broken = []
    for link in filter(None, (one for pair in links for one in pair)):
        place, _, anchor = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        if not link.startswith("https://") and not (
            target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target))
        ):
            broken.append(link)
    assert broken == []


def test_the_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    targets = re.findall(r"(?:`|^)make ([a-z_]+)(?:`| *#|$)", text, re.MULTILINE)
    assert targets, "no target was found; are they written in another way?"
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"there is no `make {target}`"


# What exists is documented


@pytest.mark.parametrize(("name", "command"), every_command().items(), ids=lambda value: str(value))
def test_every_command_explains_itself_and_takes_a_data_directory(name: str, command: click.Command) -> None:
    assert command.help, f"`pattern {name}` needs a docstring"
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--data-dir" in options, f"`pattern {name}` must take --data-dir"
    if name != "demo":
        assert "--config" in options, f"`pattern {name}` must take --config"
    if name not in ("serve", "demo"):
        assert "--json" in options, f"`pattern {name}` must take --json"


def test_every_section_of_the_configuration_has_its_keys_on_the_page() -> None:
    places = set(re.findall(r"generated: settings ?(\S*) -->", (PAGES / "configuration.md").read_text("utf-8")))
    alike = {"embeddings.former", "budgets", "budgets.agent", "budgets.constellation"}  # told in words
    missing = {place for place in sections() if not re.search(r"\.(day|month|total)$", place)} - alike - places
    assert not missing, (
        f"add to configuration.md: {', '.join(f'<!-- generated: settings {one} -->' for one in missing)}"
    )


def test_every_setting_says_what_it_means() -> None:
    silent = re.findall(r"^- \*\*`(\w+)`\*\*[^:]*:$", (PAGES / "configuration.md").read_text("utf-8"), re.MULTILINE)
    assert silent == [], "put a comment behind each of these fields"


def test_every_error_has_a_cause_and_a_remedy() -> None:
    assert [code for code, texts in errors().items() if not all(texts)] == [], "give its class a `remedy`"
    assert set(STATUS) <= set(errors())


@pytest.mark.parametrize(
    ("names", "page"),
    [
        (PROVIDERS, "models"), (EMBEDDERS.keys() - {"deterministic"}, "search"), (EffectClass, "tools-and-rules"),
        (TEMPLATES, "memory"), (BlockType, "memory"), (Permission, "memory"), (get_args(Strategy), "memory"),
        (get_args(MessagePolicy), "api"),
    ],
    ids=["provider", "embedder", "effect", "template", "type", "permission", "strategy", "policy"],
)  # fmt: skip
def test_what_exists_is_on_its_page(names: Iterable[str], page: str) -> None:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    missing = [name for name in names if f"`{name}`" not in text]
    assert not missing, f"add these to {page}.md: {', '.join(missing)}"


@pytest.mark.parametrize("path", named(pages()))
def test_examples_of_the_configuration_are_accepted(path: Path, tmp_path: Path) -> None:
    for found in BLOCK.finditer(path.read_text(encoding="utf-8")):
        if found[1] == "toml":
            (tmp_path / "pattern.toml").write_text(found[3], encoding="utf-8")
            load(tmp_path / "pattern.toml", data_dir=tmp_path)


# Examples


@dataclass(frozen=True, slots=True)
class Example:
    """A block of code: its language, why it is not run (empty: it is), its line and its text."""

    language: str
    skip: str
    line: int
    text: str


def examples(path: Path) -> list[Example]:
    """The blocks of a document that could be run."""
    text = path.read_text(encoding="utf-8")
    return [
        Example(found[1], found[2].removeprefix(" skip:").strip(), text.count("\n", 0, found.start()) + 1, found[3])
        for found in BLOCK.finditer(text)
        if found[1] in ("sh", "python")
    ]


def script(path: Path, url: str) -> str:
    """All examples of a document as one shell script. It names the lines that fail on descriptor 9, and goes on."""
    lines = ["set -E -o pipefail", f"trap '[ $? = {SKIPPED} ] || echo \"$at: $BASH_COMMAND\" >&9' ERR"]
    for example in examples(path):
        if not example.skip:
            text = example.text.replace(ADDRESS, url or ADDRESS)
            lines.append(f"at='{path.name}:{example.line}'")
            lines.append(f"python - <<'END'\n{text}\nEND" if example.language == "python" else text)
    return "\n".join(lines)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine; a server that examples leave running there is stopped at the end."""
    made = Machine(tmp_path)
    yield made
    made.stop()


IN_A_TERMINAL = "operating.md"  # by tests/scenarios/test_operating_page.py
RUNNABLE = [
    path for path in [README, *pages()] if path.name != IN_A_TERMINAL and any(not one.skip for one in examples(path))
]


def listens(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("bash") and shutil.which("curl")), reason="examples need bash and curl")
@pytest.mark.parametrize("path", named(RUNNABLE))
def test_the_examples_run(path: Path, machine: Machine) -> None:
    is_empty = path.name in ON_AN_EMPTY_MACHINE
    found = [name for name, port in LOCAL_SERVERS.items() if is_empty and listens(port)]
    if found:
        pytest.skip(f"{', '.join(found)} would answer in place of the built-in rules")
    with nullcontext("") if is_empty else machine.serving() as url:
        failed, output = machine.run(script(path, url))
    assert not failed, f"{failed}\n{output}"


@pytest.mark.slow
def test_the_python_client_of_the_guide_survives_a_killed_server(machine: Machine) -> None:
    (code,) = [one.text for one in examples(PAGES / "api.md") if one.language == "python"]
    code = code.replace("lab/agents/eva", "home/agents/ada").replace("Where does Ruth live?", "Remember the cat Fig.")
    asked = "pattern approvals list -c home --json | grep -o 'apr_[0-9a-z]*'"
    with machine.serving() as url:
        machine.run("pattern rule add block_edit requires_consent -c home -a ada")
        program = [sys.executable, "-c", code.replace(ADDRESS, url)]
        with subprocess.Popen(program, cwd=machine.home, env=machine.environment, stdout=subprocess.PIPE) as client:
            machine.run(f"until {asked}; do sleep 0.2; done")
            os.kill(machine.server["pid"], signal.SIGKILL)
            with machine.start(int(url.rpartition(":")[2])) as second:
                machine.run(f"pattern approvals approve -c home $({asked})")
                output, _ = client.communicate(timeout=60)
                second.terminate()
    assert output.decode().count("The agent asks:") == 1
    assert "\ncompleted I will remember that" in output.decode()


def test_examples_that_are_not_run_say_why() -> None:
    found = [example for path in [README, *pages()] for example in examples(path)]
    left_out = [example for example in found if example.skip]
    assert all(len(example.skip.split()) > 1 or example.skip == "interactive" for example in left_out)
    assert len(left_out) * 3 < len(found), "most examples are to be run"
