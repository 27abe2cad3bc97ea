from __future__ import annotations

from pattern_core.shell.danger import Danger, Judgement
from pattern_core.shell.judge import judge
from pattern_core.shell.script import UNCERTAIN, SimpleCommand, Stdin, word


def command(line: str, stdin: Stdin = Stdin.NONE) -> SimpleCommand:
    return SimpleCommand(words=tuple(UNCERTAIN if part == "?" else word(part) for part in line.split()), stdin=stdin)


def worst(line: str, stdin: Stdin = Stdin.NONE) -> Danger:
    return max(one.danger for one in judge(command(line, stdin)) if isinstance(one, Judgement))


def test_wrappers_are_looked_through() -> None:
    for wrapper in ("env", "nice -n 5", "nohup", "timeout 5", "timeout -s KILL 5", "stdbuf -oL", "command", "time"):
        assert worst(f"{wrapper} ls") is Danger.READ_ONLY, wrapper
        assert worst(f"{wrapper} rm a") is Danger.WRITE, wrapper
        assert worst(f"{wrapper} sudo ls") is Danger.DANGEROUS, wrapper
        assert worst(f"{wrapper} ?") is Danger.DANGEROUS, wrapper


def test_a_shells_text_is_handed_back_to_be_judged() -> None:
    text = SimpleCommand(words=(word("bash"), word("-eu"), word("-c"), word("ls; rm a")))
    assert judge(text) == ["ls; rm a"]
    trap = SimpleCommand(words=(word("trap"), word("rm a"), word("EXIT")))
    assert judge(trap) == ["rm a"]


def test_code_from_a_stream_is_nobodys() -> None:
    for stdin in (Stdin.PIPE, Stdin.FILE):
        assert worst("python3", stdin) is Danger.DANGEROUS
        assert worst("sh", stdin) is Danger.DANGEROUS
    assert worst("python3 /dev/stdin") is Danger.DANGEROUS
    assert worst("python3 a.py", Stdin.PIPE) is Danger.WRITE
    assert worst("python3 -", Stdin.TEXT) is Danger.WRITE


def test_the_words_of_a_judgement_begin_with_the_programs_name() -> None:
    [judged] = judge(command("/usr/bin/git commit -m x"))
    assert isinstance(judged, Judgement)
    assert judged.words[:2] == ["git", "commit"]


def test_git() -> None:
    for line in ("status", "log -p", "diff", "branch", "stash list", "config --get a", "remote -v", "-P log"):
        assert worst(f"git {line}") is Danger.READ_ONLY, line
    for line in ("commit", "branch new", "config a b", "grep -O x", "log --output=a", "reflog expire"):
        assert worst(f"git {line}") is Danger.WRITE, line
    for line in ("-c a=b log", "rebase -x a", "bisect run a", "? a"):
        assert worst(f"git {line}") is Danger.DANGEROUS, line


def test_find_and_xargs_run_what_they_are_given() -> None:
    assert worst("find . -exec cat {} ;") is Danger.READ_ONLY
    assert worst("find . -exec cat {} ; -exec rm {} +") is Danger.WRITE
    assert worst("find . -exec {} ;") is Danger.DANGEROUS
    assert worst("find . -exec sudo cat {} ;") is Danger.DANGEROUS
    assert worst("xargs -n 1 cat") is Danger.READ_ONLY
    assert worst("xargs -I X mv X a") is Danger.WRITE
    assert worst("xargs git") is Danger.DANGEROUS


def test_whole_trees() -> None:
    for line in ("rm -r a/b", "rm a*", "chmod -R u+x build", "rm -rf ./build"):
        assert worst(line) is Danger.WRITE, line
    for line in (
        "rm -r ?",
        "rm -rf //",
        "rm -rf ./",
        "rm -rf ~ann",
        "chmod -R 777 ..",
        "rm /etc/passwd",
        "cp a /usr/bin/a",
    ):
        assert worst(line) is Danger.DANGEROUS, line
