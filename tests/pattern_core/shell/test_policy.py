"""Which commands run without a question: that those who do are harmless is shown by running them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.shell.policy import COMMAND_CHARS_MAX, NETWORK, READERS, ShellSettings, _plain, verdict

DEFAULT = ShellSettings()
# Control characters stand in the file as their Unicode pictures, U+00A0 as an open box.
_PICTURES = str.maketrans({0x2400 + code: code for code in range(32)} | {"␣": "\u00a0"})
ATTACKS = [
    line.translate(_PICTURES)
    for line in Path(__file__).with_name("attacks.txt").read_text("utf-8").split("\n")
    if line and not line.startswith("## ")
]
"""Lines that make the file `p`, or run the program `evil`, which does: most look harmless, and most do it."""

# What the lines of `attacks.txt` find in their directory.
BAIT = {
    "f": "a\nb\n",
    "x": "touch p\n",
    "rc": "--pre=./evil\n",
    "prog.awk": 'BEGIN{printf "" > "p"}',
    "script.sed": "w p\n",
    "tricky": "a[$(touch p)]",
    "tricky2": "a[$(touch${IFS}p)]",
    "promptish": "$(touch p)",
    "outp": "--output=p",
    "fpr": ". -fprint p",
    "wp": "wp",
    "two": "f p",
    "tv": "-v a[$(touch${IFS}p)]",
    "-op": "",
    "-fprint": "",
    ".jq": 'def input: "touch p";',
    ".gitattributes": "f diff=x filter=x\n",
}
HOSTILE_REPOSITORY = """
[core]
    fsmonitor = {evil}
    pager = {evil}
    hooksPath = .
[diff]
    external = {evil}
[diff "x"]
    textconv = {evil}
[filter "x"]
    clean = {evil}
    smudge = {evil}
[gpg]
    program = {evil}
[alias]
    st = !{evil}
"""

RUN = [
    "ls",
    "ls -la --color=never src",
    "cat notes.md 'a file' \"it's\" Ünï.txt",
    "  head -n 5 a.txt\t",
    "tail -n +5 a.txt | head -20",
    "grep -rn 'rm -rf /' . --include='*.md'",
    "grep -E '^(a|b)$' a.txt | sort -k1,1 -rn | uniq -c",
    "find . -name '*.py' -not -path './.git/*' -type f",
    "rg -n --glob '*.py' trio src",
    "sed -n '1,20p' a.py",
    "sed -n 5p a.py",
    "cut -d: -f1 /etc/passwd",
    "ps aux | grep python",
    "date +%F",
    "date",
    "jq '.a[0].b' a.json",
    "diff -ru old new",
    "echo 'hello; world'",
    "du -sh .",
    "tr a-z A-Z",
]
JOINED = ["; rm a", "&& ls", "|| ls", "&", "|& cat", "|", "| | ls", "| tee out.txt", "> a", "2>/dev/null", "< a"]
EXPANDED = ["*.md", "?.md", "{a,b}", "~/a", "$HOME", '"$HOME"', "`pwd`", "a\\b", "'unfinished", "# comment", "'a\nb'"]
UNKNOWN = ["rm a", "| ls", "! ls", "ls\nls", "LANG=C ls", "/bin/ls", "./ls", "lsof", "git status", "git log", "env ls"]
UNKNOWN += ["xargs cat", "bash -c ls", "python3 --version", "sudo ls", "if ls", "time ls"]
OPTIONS = ["ls --output=a", "sort -o a a", "sort -uo a a", "sort --output=a a", "uniq a b", "find . -delete"]
OPTIONS += ["find . -exec ls '{}' +", "sed -i s/a/b/ a", "sed 's/a/b/w out' a", "sed -n 5p -e 'w out' a", "sed 5w a"]
OPTIONS += ["date -s 2020-01-01", "date 01010000", "rg --pre ./evil a", "file -C -m a"]
OPTIONS += ["head --line=5 a"]  # they may not be shortened
ASK = [*(f"ls {more}" for more in JOINED), *(f"echo {more}" for more in EXPANDED), *UNKNOWN, *OPTIONS]


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A directory in which everything lies in wait for a careless reader."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    for name, text in BAIT.items():
        (tmp_path / name).write_text(text)
    for arguments in (["init", "-q"], ["add", "f"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, env=environment, check=True, capture_output=True)
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\n: > '{tmp_path}/p'\n")
    for name in ("evil", "ls", "cat", "post-index-change"):
        (tmp_path / name).write_text(evil.read_text())
        (tmp_path / name).chmod(0o755)
    (tmp_path / "f").write_text("a\nc\n")
    with (tmp_path / ".git" / "config").open("a") as config:
        config.write(HOSTILE_REPOSITORY.format(evil=evil))
    return tmp_path


def state(directory: Path) -> Mapping[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def run(line: str, directory: Path, *, timeout_s: float = 5.0) -> None:
    """Run the line as the shell does, without its sandbox."""
    environment = {
        "PATH": DEFAULT.path,
        "HOME": str(directory),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": str(directory),
    }
    subprocess.run(
        ["timeout", str(timeout_s), "bash", "--norc", "--noprofile", "-c", line],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


def test_the_trap_works(trap: Path) -> None:
    for line in ("git status", "sort -o p f", "PATH=.:$PATH ls"):
        run(line, trap)
        assert (trap / "p").exists(), line
        (trap / "p").unlink()


def test_no_attack_runs_without_a_question(trap: Path) -> None:
    before = state(trap)
    for line in ATTACKS:
        if verdict(line, DEFAULT).action == "run":
            run(line, trap)
            assert state(trap) == before, line


@pytest.mark.parametrize("program", READERS)
def test_no_option_that_runs_without_a_question_changes_anything(program: str, trap: Path) -> None:
    """Each option that a reader may have, and some that it may not, before one name and before two."""
    before = state(trap)
    letters, *names = READERS[program].split()
    options = ["", letters, *(f"-{letter}" for letter in letters[1:]), *names, "-o p", "-op", "--output=p"]
    lines = [f"{program} {option} {rest}" for option, rest in product(options, ("f p", "p", ""))]
    judged = [line for line in lines if verdict(line, DEFAULT).action == "run"]
    assert judged
    run("\n".join(f"{line} &" for line in judged) + "\nwait", trap, timeout_s=1.0)
    assert state(trap) == before


@settings(max_examples=200, deadline=None)
@given(st.text("ab=-,.:/@%+'\" \té中$*~#\\|", max_size=8))
def test_bash_reads_a_plain_line_as_we_do(rest: str) -> None:
    line = f"printf '%s\\0' 'begin' {rest}"
    commands = _plain(line)
    if commands is not None and len(commands) == 1:
        environment = {"LANG": "C.UTF-8", "PATH": DEFAULT.path}
        done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, check=True)
        assert commands[0][2:] == done.stdout.decode().removesuffix("\0").split("\0")


@pytest.mark.parametrize(("command", "action"), [*product(RUN, ["run"]), *product(ASK, ["ask"])])
def test_what_only_reads_runs_and_everything_else_asks(command: str, action: str) -> None:
    assert verdict(command, DEFAULT).action == action


def test_the_reason_names_the_command_that_decides() -> None:
    assert verdict("ls | rm 'a  b'", DEFAULT).reason == "`rm a b` may change something."
    assert verdict("ls;\n rm a", DEFAULT).reason == "`ls; rm a` may change something."
    assert len(verdict("rm " + "a" * 1000, DEFAULT).reason) < 120


def test_what_is_allowed_runs_without_a_question() -> None:
    own = ShellSettings(allow=["git commit", "make", ""])
    for command in ("git commit -m 'x y'", "make test | tail -n 5"):
        assert verdict(command, own).action == "run", command
    for command in ("git push", "git", "make; rm a", "make $x", "./make", "make | sh", "'git commit' a"):
        assert verdict(command, own).action == "ask", command


def test_what_is_denied_never_runs() -> None:
    own = ShellSettings(deny=["git push", "ls", ">", ""], allow=["ls", "git"])
    for command in ("git push", "cat a | ls", "true; git  push", "env /usr/bin/git push", "g''it pu\\sh", "rm a >b"):
        assert verdict(command, own).action == "refuse", command
    assert verdict("ls", own).reason == "This server does not run `ls`."
    assert verdict("git fetch", own).action == "run"
    assert verdict("cat ls", own).action == "run"
    assert verdict("grep 'git push' a", own).action == "run"


def test_without_a_network_no_question_is_asked_about_it() -> None:
    online = ShellSettings(network=True)
    assert verdict("curl https://a.b | head", online).action == "ask"
    refused = verdict("curl https://a.b | head", DEFAULT)
    assert refused.action == "refuse"
    assert refused.reason == "`curl https://a.b` reaches other machines. Commands on this server have no network."
    assert not NETWORK & set(READERS)


def test_what_a_person_cannot_read_is_refused() -> None:
    for line in ("ls\u00a0a", "ls\ra", "ls \u202e a", "ls\0a", "ls \x1b[2K"):
        assert "invisible character" in verdict(line, ShellSettings(allow=["ls"])).reason
    assert verdict("ls " + "a" * COMMAND_CHARS_MAX, DEFAULT).action == "refuse"
