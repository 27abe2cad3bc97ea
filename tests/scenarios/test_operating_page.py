"""The page for operators, typed into a shell in a terminal from top to bottom, with the questions that are asked there.

Copies of every released schema are among what it restores and migrates, and files of every eighth among what it
migrates and puts back.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from pattern_db import maintenance
from pattern_db.connection import open_connection, opened_at
from pattern_db.tables import constellations, users
from pattern_db.tables.constellations import ConstellationRow
from tests.docs import PAGES
from tests.machine import Machine
from tests.pattern_core.legacy.test_review import sick
from tests.pattern_db.older import NOW, VERSIONS, create_older
from tests.pattern_server.age_program import install
from tests.pattern_server.cli.terminal import CTRL_C, ENTER, Terminal, terminal
from tests.test_docs import examples

PAGE = PAGES / "operating.md"
PROMPT = re.compile(r"\[(\d+):(\d+)\]\$$")  # the number of the next command, and the exit code of the last one
ANSWERS = {  # to the questions at the end of the screen
    re.compile(r"Continue\? \[y/N\]:$"): "y",
    re.compile(r"\(\? explains, q stops\):$"): "",
    re.compile(r"Agent \(Ada, Ben\):$"): "Ada",
    re.compile(r"Its text:$"): "Likes tea.",
}
CODES = {"old.car --analyze-only": 3, "--follow": 1}  # of lines that find what is to be found
# What a reader does at the head of a section, after what came before it.
FIRST = {"## Check": ["pattern db migrate", "pattern up"]}


class Typist:
    """Types lines into a shell, answers what is asked, and looks at the exit codes."""

    def __init__(self, shell: Terminal) -> None:
        self.shell = shell
        self.typed = 0

    async def type(self, line: str) -> str:
        """Type a line, and return what the screen shows of it when it has ended."""
        before = await self.shell.until(lambda text: self._prompt(text) is not None)
        self.typed += 1
        await self.shell.type(line + ENTER)
        if "--follow" in line:
            await self.shell.until(lambda text: text.count("\n") > before.count("\n") + 1)
            await self.shell.type(CTRL_C)
        seen = ""
        while True:
            seen = await self.shell.until(partial(self._is_waiting, seen))
            if (code := self._prompt(seen)) is not None:
                shown = seen[len(before) :]
                wanted = next((code for words, code in CODES.items() if words in line), 0)
                assert int(code) == wanted, f"{line}: exit code {code}\n{shown}"
                assert "Traceback" not in shown, shown
                return shown
            answer = next(answer for question, answer in ANSWERS.items() if question.search(seen))
            await self.shell.type(answer + ENTER)

    def _is_waiting(self, answered: str, text: str) -> bool:
        """Return whether there is a prompt, or a question after the one that was answered."""
        is_asking = text != answered and any(question.search(text) for question in ANSWERS)
        return is_asking or self._prompt(text) is not None

    def _prompt(self, text: str) -> str | None:
        found = PROMPT.search(text)
        return found[2] if found is not None and int(found[1]) == self.typed + 1 else None


def lines_of(page: Path) -> Iterator[str]:
    """The page's commands in its order, and what comes first in a section."""
    headings = {
        number: line for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1) if line in FIRST
    }
    for example in examples(page):
        for number in [number for number in headings if number < example.line]:
            yield from FIRST[headings.pop(number)]
        if not example.skip:
            yield from example.text.splitlines()


def list_older(registry: Path, older: Mapping[str, Path], form: str) -> None:
    """List constellations of every older schema in a registry, and copy their files to paths of this form below its
    folder.
    """
    with closing(open_connection(registry)) as connection, connection:
        owner = users.list_all(connection)[0].id
        for each, file in older.items():
            path = registry.parent / form.format(each)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, path)
            place = f"constellations/{each}/pattern.db"
            constellations.create(connection, ConstellationRow(each, owner, f"schema-{file.stem}", place, NOW, NOW))


def assert_as_made(data: Path, older: Iterable[str], *, is_migrated: bool) -> None:
    """The older constellations are there with their rows, at the newest schema or at their own."""
    for each in older:
        version = int(each.removeprefix("con_"))
        with opened_at(data / "constellations" / each / "pattern.db") as connection:
            assert connection.pragma("user_version") == (VERSIONS[-1] if is_migrated else version)
            assert connection.execute("SELECT name FROM agents").get == "ada"
            if version >= 5:
                assert connection.execute("SELECT content FROM messages").get == "tea 猫"
            if is_migrated:
                assert maintenance.check(connection) == []


@pytest.mark.slow
async def test_an_operator_reads_the_page_from_top_to_bottom(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    data, recipient = tmp_path / ".local/share/pattern", install(tmp_path / "bin")
    (tmp_path / "key.txt").write_text("AGE-SECRET-KEY-1\n")
    sick(tmp_path)
    (tmp_path / "sick.car").rename(tmp_path / "old.car")
    older = {f"con_{version:026d}": tmp_path / f"old-{version}.db" for version in VERSIONS}
    for version, (each, path) in zip(VERSIONS, older.items(), strict=True):
        create_older(path, version, each)
    some = dict([*older.items()][::8])
    environment = {**machine.environment, "PS1": r"[\#:$?]$ ", "COLUMNS": "200"}
    try:
        async with terminal(program=["bash", "--norc", "--noprofile"], columns=200, rows=24, **environment) as shell:
            typist = Typist(shell)
            for line in (f"cd {tmp_path}", "pattern constellation create home", "pattern agent create ada -c home"):
                await typist.type(line)
            for line in lines_of(PAGE):
                if "old.db" in line:
                    for file in some.values():
                        await typist.type(f"cp {file.name} old.db")
                        await typist.type(line.replace("--as old", f"--as {file.stem}"))
                    continue
                if line == "pattern restore --all sunday --to restored --dry-run":
                    list_older(tmp_path / "sunday/global.db", older, "old.{}.db")
                if line == "pattern db migrate --dry-run":  # as if the server had been of that time
                    list_older(data / "global.db", some, "constellations/{}/pattern.db")
                await typist.type(re.sub(r"age1\w+", recipient, line))
                if line.endswith("--data-dir restored"):
                    assert_as_made(tmp_path / "restored", older, is_migrated="migrate" in line)
                if line == "pattern db migrate":
                    assert_as_made(data, some, is_migrated=True)
                if line == "pattern db rollback":
                    assert_as_made(data, some, is_migrated=False)
    finally:
        machine.stop()
