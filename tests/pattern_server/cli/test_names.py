"""Names and ids on the command line: what may be left out, shortened, mistyped, and completed by a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from pattern_server.cli.client import running_server
from pattern_server.cli.names import WORKSPACE
from tests.pattern_server.cli.conftest import Pattern, serving
from tests.pattern_server.cli.terminal import terminal


def test_a_single_constellation_and_a_single_agent_need_not_be_named(
    home: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home("memory", "append", "human", "Likes tea.").code == 0
    assert home("memory", "show", "human").out == "Likes tea.\n"
    assert home("memory", "list", "--everyone").code == 0
    assert home("memory", "sync", "mirror", "--once").code == 0
    assert home("archive", "add", "Ruth moved to Lisbon.").code == 0
    assert home("agent", "create", "bob", "--provider", "embedded").code == 0
    several = home("memory", "show", "human")
    assert (several.code, several.err.splitlines()[1]) == (2, "Name one with -a: ada, bob")
    assert home("agent", "archive", "bob").code == 0
    assert home("memory", "show", "human").code == 0  # archived agents do not count
    assert home("constellation", "create", "work").code == 0
    several = home("agent", "list")
    default = "(export PATTERN_CONSTELLATION=home makes one the default)"
    assert (several.code, several.err.splitlines()[1]) == (2, f"Name one with -c: home, work {default}")
    assert home("chat", "Hello").code == home("model", "set", "embedded/rules-1", "-a", "ada").code == 2
    assert home("model", "set", "embedded/rules-1").code == 0  # the default model is of no constellation
    monkeypatch.setenv("PATTERN_DEFAULT_CONSTELLATION", "home")
    assert "ada" in home("agent", "list").out
    assert home("model", "set", "embedded/rules-1", "-a", "ada").code == 0
    monkeypatch.setenv("PATTERN_CONSTELLATION", "work")
    assert "There are no agents yet" in home("agent", "list").out
    assert "ada" in home("agent", "list", "-c", "home").out
    assert "unknown" not in home("doctor").out  # PATTERN_CONSTELLATION is no misspelled setting


def test_without_any_constellation_the_way_to_one_is_shown(pattern: Pattern) -> None:
    assert pattern("constellation", "create", "home").code == 0
    assert pattern("constellation", "delete", "home", "--yes").code == 0
    ran = pattern("agent", "list")
    assert (ran.code, "pattern constellation create NAME" in ran.err) == (1, True)


def test_ids_may_be_shortened(home: Pattern, data_dir: Path) -> None:
    assert home("chat", "Remember that Ruth lives in Lisbon.").code == 0
    turn = home("turn", "list", "--json").json[0]["turn_id"]
    agent = home("agent", "show", "ada", "--json").json["id"]
    constellation = home("constellation", "list", "--json").json[0]["id"]
    entries = [home("archive", "add", text, "--json").json["id"] for text in ("Tea.", "Rye bread.")]
    assert home("turn", "show", turn[:9], "--json").json["turn_id"] == turn
    assert home("turn", "cancel", turn[:9], "--json").json["turn_id"] == turn
    assert home("why", turn[:9], "--json").json["turn_id"] == turn
    assert home("usage", "--turn", turn[:9], "--by", "turn", "--json").json["items"][0]["key"] == turn
    assert home("agent", "show", agent[:9], "-c", constellation[:8], "--json").json["id"] == agent
    assert len(home("search", "Lisbon", "-a", agent[:9], "--json").json["hits"]) > 0
    assert home("chat", "-a", agent[:9], "Hello").code == 0
    assert home("model", "set", "embedded/rules-1", "-c", constellation[:8], "-a", agent[:9]).code == 0
    assert home("memory", "sync", "mirror", "-c", constellation[:8], "-a", agent[:9], "--once").code == 0
    assert (data_dir.parent / "mirror" / "ada" / "human.md").is_file()
    unclear = home("archive", "delete", entries[0][:8], "--yes")
    assert (unclear.code, all(entry in unclear.err for entry in entries)) == (2, True)
    assert len(home("archive", "list", "--json").json) == 2
    same = next(at for at, (one, other) in enumerate(zip(*entries, strict=True)) if one != other)
    assert home("archive", "show", entries[1][: same + 1], "--json").json["id"] == entries[1]
    unknown = home("turn", "show", turn[:-1] + ("0" if turn[-1] != "0" else "1"))
    assert (unknown.code, "Did you mean" in unknown.err) == (1, False)
    assert home("db", "status", "-c", constellation[:8], "--json").json[0]["database"] == "home"


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("agent show aada", "ada"),
        ("agent list -c hme", "home"),
        ("memory show humen", "human"),
        ("memory list -a adda", "ada"),
        ("constellation show hom", "home"),
        ("group show dsk", "desk"),
        ("chat -a adda Hello", "ada"),
        ("chat -g dsk Hello", "desk"),
        ("schedule run mornin", "morning"),
    ],
)
def test_a_name_that_resembles_another_is_answered_with_it(home: Pattern, line: str, meant: str) -> None:
    assert home("group", "create", "desk", "--pattern", "voting", "--members", "ada").code == 0
    assert home("schedule", "create", "morning", "Plan.", "-g", "desk", "--every", "1d").code == 0
    ran = home(*line.split())
    assert (ran.code, ran.err.splitlines()[-1]) == (1, f"Did you mean {meant!r}?")
    assert "Did you mean" not in home("agent", "show", "zzz").err


def test_people_and_agents_appear_by_name(home: Pattern) -> None:
    assert home("memory", "append", "human", "Likes tea.").code == 0
    assert home("chat", "Remember that Ruth lives in Lisbon.").code == 0
    for line in ("memory history human", "memory blame human"):
        shown = home(*line.split()).out
        assert "admin" in shown and "ada" in shown and "user_0" not in shown and "agent_0" not in shown
    assert home("budget", "set", "--dollars", "5", "-a", "ada").code == 0
    assert "agent.total.microdollars.ada " in home("budget", "list").out
    assert home("budget", "remove", "agent.total.microdollars.ada").code == 0
    assert "No budgets are set" in home("budget", "list").out
    assert "sender     admin" in home("turn", "show", home("turn", "list", "--json").json[0]["turn_id"]).out
    assert home("memory", "undo", "human", "--author", "admin").code == 0
    nothing = home("memory", "undo", "human", "--author", "admin")
    assert nothing.code != 0 and "admin" in nothing.err and "user_0" not in nothing.err
    assert home("memory", "undo", "human", "--author", "ada").code == 0


def test_an_administrator_sees_other_users_by_name(
    home: Pattern, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home("user", "add", "ben").code == 0
    token = home("token", "create", "--user", "ben", "--json").json["token"]
    with serving(data_dir, data_dir.parent):
        server = running_server(data_dir)
        assert server is not None
        with monkeypatch.context() as his:
            his.setenv("PATTERN_TOKEN", token)
            his.setenv("PATTERN_SERVER", server.url)
            assert home("constellation", "create", "bens").code == 0
            assert home("agent", "create", "eve", "--provider", "embedded", "--memory", "human=Tea.").code == 0
            assert ", ben, " in home("memory", "history", "human").out
        assert ", ben, " in home("memory", "history", "human", "-c", "bens").out


def completed(data_dir: Path, line: str) -> list[str]:
    """What bash would offer at the end of a line."""
    words = line.split()
    code = "import sys; sys.argv = ['pattern']; from pattern_server.cli import main; main()"
    env = {**os.environ, "_PATTERN_COMPLETE": "bash_complete", "COMP_WORDS": line, "PATTERN_DATA_DIR": str(data_dir)}
    env["COMP_CWORD"] = str(len(words) if line.endswith(" ") else len(words) - 1)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stderr == ""
    return [row.partition(",")[2] for row in done.stdout.splitlines() if row]


def test_a_shell_completes_names_while_a_server_runs(home: Pattern, data_dir: Path) -> None:
    assert completed(data_dir, "pattern agent show ") == []
    assert completed(data_dir.parent / "none", "pattern agent show ") == []
    assert not (data_dir.parent / "none").exists()
    with serving(data_dir, data_dir.parent):
        assert home("agent", "create", "bob", "--provider", "embedded").code == 0
        assert completed(data_dir, "pattern agent show ") == ["ada", "bob"]
        assert completed(data_dir, "pattern agent show b") == ["bob"]
        assert completed(data_dir, "pattern agent list -c h") == ["home"]
        assert completed(data_dir, "pattern memory show -a ada h") == ["human"]
        assert completed(data_dir, "pattern memory show -c none -a ada h") == []


def test_commands_are_completed_with_their_whole_help_and_without_loading_them(data_dir: Path) -> None:
    code = "import sys; sys.argv = ['pattern']; from pattern_server.cli import main; main()"
    env = {**os.environ, "_PATTERN_COMPLETE": "fish_complete", "COMP_WORDS": "pattern ag", "COMP_CWORD": "ag"}
    first = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, env=env)
    assert first.stdout == "plain,agent\tAgents: create, list, show, edit, compact …\n"
    assert "pattern_server.cli.agents" not in first.stderr
    env |= {"COMP_WORDS": "pattern agent com", "COMP_CWORD": "com"}
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    whole = "Replace the older part of the conversation by a summary in the prompt. Nothing is deleted."
    assert second.stdout == f"plain,compact\t{whole}\n"


# Each says READY when it has loaded the script.
SHELLS = {
    "bash": (["bash", "--norc", "-i"], 'eval "$(pattern completion bash)"; echo REA""DY'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -U compinit; compinit -u -D; eval "$(pattern completion zsh)"; echo REA""DY',
    ),
    "fish": (["fish", "--no-config", "-i"], 'pattern completion fish | source; echo REA""DY'),
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes_names(home: Pattern, data_dir: Path, shell: str) -> None:
    command, load = SHELLS[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = data_dir.parent / "bin" / "pattern"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pattern_server "$@"\n')
    program.chmod(0o755)
    assert home("agent", "create", "zenobia", "--provider", "embedded").code == 0

    async def type_lines() -> None:
        path = f"{program.parent}:{os.environ['PATH']}"
        async with terminal(
            program=command, columns=120, PATH=path, PATTERN_DATA_DIR=str(data_dir), HOME=str(data_dir.parent)
        ) as tty:
            await tty.type(f"{load}\r")
            await tty.until("READY")
            await tty.type("pattern agent show ze\t")
            await tty.until("agent show zenobia")
            await tty.type("-c ho\t")
            await tty.until("agent show zenobia -c home")

    with serving(data_dir, data_dir.parent):
        trio.run(type_lines)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(pattern: Pattern, data_dir: Path, shell: str) -> None:
    ran = pattern("completion", shell)
    assert (ran.code, "_PATTERN_COMPLETE" in ran.out, f"pattern completion {shell}" in ran.out) == (0, True, True)
    assert not data_dir.exists()


def test_a_search_without_a_server_is_by_words_and_says_so(home: Pattern) -> None:
    assert home("memory", "append", "human", "Likes tea.").code == 0
    found = home("search", "tea")
    assert (found.code, "by words only" in found.err, "Likes tea." in found.out) == (0, True, True)
    assert "no server" not in home("search", "tea", "--mode", "hybrid").err
    assert "by words only" in home("archive", "search", "tea").err


@pytest.mark.parametrize(("given", "known"), [("shop", "shop"), (".", ""), ("src", "src"), ("./src", "/src")])
def test_a_folder_of_a_workspace_becomes_a_whole_path(given: str, known: str) -> None:
    whole = f"{Path.cwd()}{known}" if given != known else known
    assert WORKSPACE.convert(given, None, None) == whole
