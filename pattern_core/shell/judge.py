"""One simple command: what it may do, and which commands it would run in turn.

The answer is a list of judgements, and of command lines (as text) that have to be judged themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from pattern_core.shell.danger import Judgement, reaches, reads, refused, writes
from pattern_core.shell.options import after_options, has_option, operands
from pattern_core.shell.programs import (
    DANGEROUS,
    GIT_NETWORK,
    GIT_READERS,
    GIT_RISKY,
    HARMLESS_VARIABLES,
    INTERPRETERS,
    NETWORK,
    PROGRAM_FOLDERS,
    READERS,
    RULING_VARIABLES,
    SECOND_NAME_IS_WRITTEN,
    SHELLS,
    SYSTEM_FOLDERS,
    WRAPPER_FLAGS,
    WRAPPER_OPERANDS,
    WRAPPERS,
)
from pattern_core.shell.script import UNCERTAIN, SimpleCommand, Stdin, Word, word

Found = list[Judgement | str]
_SWEEPING = frozenset(("rm", "chmod", "chown", "chgrp", "mv", "setfacl", "chattr", "rmdir", "unlink", "truncate", "cp"))
_ENV_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_SED_SCRIPT = re.compile(
    r"(?:(?:\d+|\$)(?:,(?:\d+|\$|\+\d+))?|/[^/\\\n]*/)?\s*(?:[pdq=]|s([/|,#:])(?:(?!\1|\\|\n).)*\1(?:(?!\1|\\|\n).)*\1[gipI0-9]*)"
)
_TAR_LOOKS = re.compile(r"-[tvzjJfaPC]+|--(?:list|verbose|gzip|bzip2|xz|zstd|auto-compress|file=.+|exclude=.+)")
_AWK_RISKY = re.compile(r"system|getline|[|>@]|close|include|load|extension")
# What bash and a plain POSIX shell read differently: within quotes that only one of them knows commands can hide.
_NOT_POSIX = re.compile(r"\$['\"]|[<>]\(|<<<|\[\[|\(\(|&>|\|&|\b(?:function|coproc|select|time)\b|\{")
_FIND_RUNS = ("-exec", "-execdir", "-ok", "-okdir")
_FIND_WRITES = ("-delete", "-fprint", "-fprint0", "-fprintf", "-fls")


def judge(command: SimpleCommand) -> Found:
    """What the command may do at worst, and the command lines that it runs."""
    first, *rest = command.words
    if first.text is None:
        return [refused((), f"which program `{command.shown[:60]}` runs is known only when it runs")]
    name = _name(first.text)
    shown = [one.shown for one in command.words]
    if name is None:
        return [writes(shown, "runs a program that is not one of the system's")]
    shown = [name, *shown[1:]]
    if name in DANGEROUS or name.startswith(("mkfs", "fsck.")):
        return [refused(shown, DANGEROUS.get(name, "changes disks"))]
    special = _SPECIAL.get(name)
    if special is not None:
        return special(shown, rest, command.stdin)
    if name in WRAPPERS:
        return _wrapper(name, shown, rest, command.stdin)
    if name in SHELLS:
        return _shell(shown, rest, command.stdin)
    if name in INTERPRETERS or re.fullmatch(r"python\d\.\d+", name):
        return _interpreter(shown, rest, command.stdin)
    if name in NETWORK:
        return [reaches(shown)]
    if name in _SWEEPING:
        return [_sweeping(shown, rest)]
    if name in SECOND_NAME_IS_WRITTEN:
        is_reading = len(operands(rest)) < 2 and not has_option(rest, ("r", "revert"))
        return [reads(shown) if is_reading and all(one.is_one for one in rest) else writes(shown)]
    if name in READERS:
        return [writes(shown) if READERS[name] and has_option(rest, READERS[name]) else reads(shown)]
    return [writes(shown)]


def _name(text: str) -> str | None:
    """The program's own name; None for one outside the system's folders."""
    if "/" not in text:
        return text
    folder = next((folder for folder in PROGRAM_FOLDERS if text.startswith(folder)), None)
    rest = text.removeprefix(folder or "/")
    return rest if folder is not None and "/" not in rest and rest not in ("", ".", "..") else None


def _inner(words: Sequence[Word], stdin: Stdin) -> Found:
    return judge(SimpleCommand(words=tuple(words), stdin=stdin)) if words else []


def _wrapper(name: str, shown: Sequence[str], rest: Sequence[Word], stdin: Stdin) -> Found:
    if name == "exec" and not rest:
        return []  # it only redirects
    if name == "command" and rest and rest[0].text in ("-v", "-V"):
        return [reads(shown)]
    words = after_options(rest, WRAPPERS[name], WRAPPER_FLAGS.get(name, ()))
    found: Found = []
    if words is not None and name == "env":
        while words and words[0].text is not None and (given := _ENV_ASSIGNMENT.match(words[0].text)):
            found += _variable(given[1])
            words = words[1:]
    if words is None or (name == "env" and words and words[0].text is None):
        return [refused(shown, "runs a command that is not certain")]
    words = words[WRAPPER_OPERANDS.get(name, 0) :]
    if name == "xargs":
        return found + _xargs(rest, words)
    # A wrapper without a command prints something.
    return found + (_inner(words, stdin) or [reads(shown)])


def _variable(name: str) -> Found:
    if name in RULING_VARIABLES or name.startswith(("LD_", "DYLD_", "BASH_FUNC_", "PYTHON", "PERL", "GIT_", "NODE_")):
        return [refused((f"{name}=",), "decides what other programs run")]
    if name in HARMLESS_VARIABLES or name.startswith("LC_"):
        return []
    return [writes((f"{name}=",), "sets a variable that programs may obey")]


def _xargs(rest: Sequence[Word], words: Sequence[Word]) -> Found:
    """xargs adds words that nobody knows yet, at the end or in place of a marker; a marker may stand in any word."""
    if not words:
        return [reads(("xargs",))]
    has_marker = any(one.text is None or one.text.startswith(("-I", "-i", "--replace")) for one in rest[: -len(words)])
    known = [words[0], *(UNCERTAIN if has_marker and not _is_option(one) else one for one in words[1:])]
    if has_marker and not re.fullmatch(r"[\w./+-]+", words[0].text or ""):
        known[0] = UNCERTAIN
    return _inner([*known, UNCERTAIN], Stdin.NONE)


def _is_option(one: Word) -> bool:
    return one.text is not None and bool(re.fullmatch(r"-[A-Za-z]+|--[a-z-]+", one.text))


def _shell(shown: Sequence[str], rest: Sequence[Word], stdin: Stdin) -> Found:
    place = 0
    while place < len(rest):
        text = rest[place].text
        if text is None:
            return [refused(shown, "runs commands that are not certain")]
        if not text.startswith(("-", "+")):
            is_stream = text.startswith(("/dev/", "/proc/"))
            return [refused(shown, "runs what it reads as commands") if is_stream else writes(shown, "runs a script")]
        if re.fullmatch(r"-[a-z]*c[a-z]*", text):
            script = rest[place + 1].text if place + 1 < len(rest) else None
            if script is None or len(rest) > place + 2:
                # Further words become $0, $1 … in it, which makes what it runs uncertain.
                return [refused(shown, "runs commands that are not certain")]
            if shown[0] != "bash" and (shown[0] not in ("sh", "dash", "ash") or _NOT_POSIX.search(script)):
                return [refused(shown, "is read by a shell of other rules; use bash -c")]
            return [script, *_startup(shown, rest[: place + 1])]
        if text not in ("-e", "-u", "-x", "-eu", "-ex", "-eux", "--norc", "--noprofile", "--version", "--help"):
            return [refused(shown, "runs commands with options that change their meaning")]
        place += 1
    if any(one.text in ("--version", "--help") for one in rest):
        return [reads(shown)]
    source = {Stdin.PIPE: "what another command prints", Stdin.FILE: "what a file holds", Stdin.TEXT: "a text"}
    return [refused(shown, f"runs {source.get(stdin, 'what it reads')} as commands")]


def _startup(shown: Sequence[str], options: Sequence[Word]) -> Found:
    is_odd = any(re.search(r"[il]", one.text or "") and not (one.text or "").startswith("--") for one in options)
    return [refused(shown, "runs the files with which a terminal begins")] if is_odd else []


def _interpreter(shown: Sequence[str], rest: Sequence[Word], stdin: Stdin) -> Found:
    if len(rest) == 1 and rest[0].text in ("--version", "-V", "-v", "--help", "-h"):
        return [reads(shown)]
    takes_stdin = not rest or all((one.text or "").startswith("-") and not one.may_be_option for one in rest)
    takes_stdin = takes_stdin or (len(rest) == 1 and rest[0].text == "-")
    is_stream = any((one.text or "").startswith(("/dev/", "/proc/")) for one in rest[:1])
    if is_stream or (takes_stdin and stdin in (Stdin.PIPE, Stdin.FILE)):
        return [refused(shown, "runs as code what nobody has read")]
    if any(one.text is None and one.may_be_option for one in rest[:1]):
        return [refused(shown, "runs code that is not certain")]
    if any(rest[place].text in ("-c", "-e", "-E", "-r", "--eval") for place in range(len(rest))):
        code = next(
            (rest[at + 1] for at, one in enumerate(rest[:-1]) if one.text in ("-c", "-e", "-E", "-r", "--eval")), None
        )
        if code is None or code.text is None:
            return [refused(shown, "runs code that is not certain")]
    return [writes(shown, "runs code")]


def _sweeping(shown: Sequence[str], rest: Sequence[Word]) -> Judgement:
    """A change of files; of whole trees only where it is certain which."""
    is_recursive = has_option([one for one in rest if one.text is not None], ("r", "R", "recursive"))
    if shown[0] in ("mv", "cp"):
        return refused(shown, "would change the system itself") if _is_system(rest[-1:]) else writes(shown)
    if has_option([one for one in rest if one.text is not None], ("no-preserve-root",)):
        return refused(shown, "would change everything below the root")
    known = [one.text for one in rest]
    before = rest[: known.index("--")] if "--" in known else rest
    if any(one.text is None and one.may_be_option and not one.is_glob for one in before):
        return refused(shown, "is given words that are not certain, which may be options; put them after --")
    if is_recursive and any(one.text is None and not _is_below_here(one) for one in rest):
        return refused(shown, "goes through whole directories, and it is not certain which")
    if is_recursive and any(_is_vast(one) for one in operands(rest)):
        return refused(shown, "would reach everything below the root, a home or the place where it runs")
    return refused(shown, "would change the system itself") if _is_system(operands(rest)) else writes(shown)


def _is_below_here(one: Word) -> bool:
    """An uncertain word that surely names something below the place where the command runs, or a named directory."""
    start = one.start.removeprefix("./")
    return one.is_one and bool(re.match(r"[A-Za-z0-9_]", start)) and ".." not in start


def _is_vast(one: Word) -> bool:
    text = one.text
    if text is None:
        return one.start in ("", "/", "~", "~/", ".", "./", "../", "..")
    path = re.sub(r"/+", "/", text).rstrip("/") or "/"
    is_above = all(part in ("..", ".", "") for part in path.split("/"))
    return path in ("/", "~", "*", "~/*", "/*") or is_above or bool(re.fullmatch(r"~\w*", path))


def _is_system(words: Sequence[Word]) -> bool:
    for one in words:
        path = re.sub(r"/+", "/", one.text if one.text is not None else one.start)
        if path.rstrip("/") in SYSTEM_FOLDERS or path.startswith(
            ("/etc/", "/usr/", "/bin/", "/sbin/", "/lib", "/boot/", "/dev/", "/proc/", "/sys/")
        ):
            return True
    return False


def _find(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    if any(one.text is None and one.may_be_option for one in rest):
        return [refused(shown, "may run a command that is not certain")]
    found: Found = []
    for place, one in enumerate(rest):
        if one.text in _FIND_RUNS:
            end = next((at for at in range(place + 1, len(rest)) if rest[at].text in (";", "+")), len(rest))
            inner = [UNCERTAIN if "{}" in (part.text or "{}") else part for part in rest[place + 1 : end]]
            # What find puts in place of {} begins with the directory that it was given.
            found += _inner([Word(text=None, start="./x") if part is UNCERTAIN else part for part in inner], Stdin.NONE)
        elif one.text == "-delete" and not _is_narrowed(rest):
            found.append(refused(shown, "would delete everything that it finds"))
        elif one.text in _FIND_WRITES:
            found.append(writes(shown))
    return found or [reads(shown)]


def _is_narrowed(rest: Sequence[Word]) -> bool:
    """Whether find looks in a named directory, or here for some names only."""
    roots = operands(rest)[:1] if rest and not rest[0].may_be_option else [word(".")]
    has_names = any(one.text in ("-name", "-iname", "-path", "-ipath", "-regex", "-empty") for one in rest)
    return not any(_is_vast(root) for root in roots) or (has_names and roots[0].text in (".", "./"))


def _git(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    words = list(rest)
    while words and words[0].text in ("--no-pager", "--version", "--help", "-P", "-C"):
        has_value = words[0].text == "-C"
        if has_value and (len(words) < 2 or not words[1].is_one):
            return [refused(shown, "works in a place that is not certain")]
        words = words[2 if has_value else 1 :]
    if not words:
        return [reads(shown)]
    command, *options = words
    if command.text is None or command.text.startswith("-"):
        return [refused(shown, "may run what a setting of git says")]
    shown = ["git", *(one.shown for one in words)]
    if command.text == "config":
        return [
            reads(shown)
            if any(one.text in ("--get", "--list", "-l", "get", "list") for one in options[:1])
            else writes(shown)
        ]
    if command.text == "stash":  # alone it puts all changes away
        return [reads(shown) if options and options[0].text in ("list", "show") else writes(shown)]
    if command.text in ("branch", "tag", "worktree", "remote", "notes"):
        lists = not options or all(
            one.text in ("-l", "--list", "list", "-v", "-vv", "-a", "-r", "--all") for one in options
        )
        if lists:
            return [reads(shown)]
    if command.text in GIT_NETWORK:
        return [reaches(shown)]
    if has_option(options, GIT_RISKY - {"c", "p"}):
        return [writes(shown)]
    if command.text == "reflog" and any(one.text in (None, "expire", "delete", "drop") for one in options):
        return [writes(shown)]
    if command.text in ("filter-branch", "bisect", "submodule", "rebase", "difftool", "mergetool"):
        is_running = any(one.text is None or one.text in ("run", "foreach", "-x", "--exec", "-i") for one in options)
        return [refused(shown, "runs commands that git is given")] if is_running else [writes(shown)]
    return [reads(shown) if command.text in GIT_READERS else writes(shown)]


def _sed(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    if any(one.text is None and one.may_be_option for one in rest) or has_option(rest, ("f", "file")):
        return [writes(shown)]
    given = [one.text for one in rest if one.text is not None]
    if any(text.startswith("-") and text not in ("-n", "-E", "-r", "-e", "-ne", "-nE", "-En") for text in given):
        return [writes(shown)]
    scripts = [given[at + 1] for at in range(len(given) - 1) if given[at] in ("-e", "-ne")]
    scripts = scripts or [text for text in given if not text.startswith("-")][:1]
    parts = [part.strip() for script in scripts for part in re.split(r"[;\n]", script)]
    is_reading = bool(parts) and all(_SED_SCRIPT.fullmatch(part) for part in parts if part)
    return [reads(shown) if is_reading else writes(shown)]


def _awk(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    if any(one.text is None and one.may_be_option for one in rest):
        return [refused(shown, "runs a program that is not certain")]
    given = [one.text for one in rest if one.text is not None]
    options = [text for text in given if text.startswith("-") and not re.fullmatch(r"-F.?|-v", text)]
    is_reading = not options and not any(_AWK_RISKY.search(text) for text in given)
    return [reads(shown) if is_reading else writes(shown)]


def _dd(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    for one in rest:
        start = one.text if one.text is not None else one.start
        if one.text is None and not one.start.startswith(("if=", "bs=", "count=")):
            return [refused(shown, "writes where it is not certain")]
        if start.startswith("of=/dev/") and start not in ("of=/dev/null", "of=/dev/stdout"):
            return [refused(shown, "writes to a device")]
    return [writes(shown)]


def _tar(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    risky = (
        "to-command",
        "checkpoint-action",
        "use-compress-program",
        "I",
        "info-script",
        "F",
        "rsh-command",
        "new-volume-script",
    )
    if has_option(rest, risky):
        return [refused(shown, "may run a command that an option names")]
    mode = rest[0].text or "" if rest else ""
    is_listing = bool(re.fullmatch(r"-?t[vzjJf]*", mode)) or mode == "--list"
    # Others may name a file that is written, such as --index-file.
    is_listing = is_listing and not any(one.may_be_option and not _TAR_LOOKS.fullmatch(one.text or "") for one in rest)
    if any(":" in (one.text or ":") for one in rest):  # host:file
        return [reaches(shown)]
    return [reads(shown) if is_listing else writes(shown)]


def _set(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    is_known = all(
        one.text is not None and re.fullmatch(r"[-+][efuxvC]+|-[eux]*o|pipefail|errexit|nounset", one.text)
        for one in rest
    )
    return [reads(shown) if is_known else refused(shown, "changes how the shell reads what follows")]


def _sets_names(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    """Builtins whose words name variables to set; a name may hold `[$(…)]`."""
    found: Found = []
    for one in rest:
        if one.text is None or "[" in one.text or (shown[0] == "unset" and one.text.startswith("-f")):
            return [refused(shown, "sets a variable that is not certain, or takes a function away")]
        name, _, value = one.text.partition("=")
        named = _variable(name.removesuffix("+")) if value or name in RULING_VARIABLES else []
        found += named
    return found or [reads(shown)]


def _declares(shown: Sequence[str], rest: Sequence[Word], stdin: Stdin) -> Found:
    # -n makes one name stand for another, -i evaluates values as arithmetic, -f shows functions.
    is_odd = any(re.fullmatch(r"[-+][A-Za-z]*[niF][A-Za-z]*", one.text or "") for one in rest)
    return [refused(shown, "gives names another meaning")] if is_odd else _sets_names(shown, rest, stdin)


def _printf(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    first = rest[0] if rest else word("")
    if first.text is None and first.may_be_option:
        return [refused(shown, "may set a variable that decides what other programs run")]
    return [
        refused(shown, "sets a variable by a name that may hold a command")
        if (first.text or "").startswith("-v")
        else reads(shown)
    ]


def _trap(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    rest = rest[1:] if rest and rest[0].text == "--" else rest
    if not rest or rest[0].text in ("-", "-l", "-p", ""):
        return [reads(shown)]
    return [refused(shown, "runs a command later that is not certain")] if rest[0].text is None else [rest[0].text]


def _kill(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    if any(one.text in ("-1", "0") for one in rest[1:]) or (rest and rest[-1].text in ("-1", "0")):
        return [refused(shown, "would end every process that it may")]
    return [writes(shown, "ends processes")]


def _jobs(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    is_plain = all(re.fullmatch(r"-[lnprs]+|%?\d+|%[-+%]", one.text or "") for one in rest)
    return [reads(shown) if is_plain else refused(shown, "may run a command, or set a variable by its name")]


def _let(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    is_plain = all(one.text is not None and re.fullmatch(r"[\d\s+*/%()<>=-]*", one.text) for one in rest)
    return [reads(shown) if is_plain else refused(shown, "computes with values that may hold a command")]


def _test(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    is_odd = any(one.text in ("-v", "-R") or (one.text is None and not one.is_one) for one in rest)
    # Where an operator may stand, a word that nobody knows may become one.
    for one, following in pairwise(rest):
        is_operator = bool(re.fullmatch(r"=|==|!=|<|>|-[a-z]{1,2}|\)", following.text or ""))
        is_odd = is_odd or (one.text is None and not is_operator and one.may_be_option)
    return [refused(shown, "may run a command that a name holds") if is_odd else reads(shown)]


def _hostname(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    is_asking = all(one.text is not None and one.text.startswith("-") and one.text not in ("-F", "-b") for one in rest)
    return [reads(shown) if is_asking else refused(shown, "changes the machine's settings")]


def _shopt(shown: Sequence[str], rest: Sequence[Word], _stdin: Stdin) -> Found:
    is_known = all(
        one.text in ("-s", "-u", "-q", "nullglob", "globstar", "dotglob", "failglob", "nocaseglob") for one in rest
    )
    return [reads(shown) if is_known else refused(shown, "changes how the shell reads what follows")]


_SPECIAL: Mapping[str, Callable[[Sequence[str], Sequence[Word], Stdin], Found]] = {
    "find": _find,
    "git": _git,
    "sed": _sed,
    "dd": _dd,
    "tar": _tar,
    "set": _set,
    "printf": _printf,
    "trap": _trap,
    "kill": _kill,
    "let": _let,
    "jobs": _jobs,
    "wait": _jobs,
    "test": _test,
    "[": _test,
    "hostname": _hostname,
    "shopt": _shopt,
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    **dict.fromkeys(("read", "unset", "getopts"), _sets_names),
    **dict.fromkeys(("declare", "typeset", "local", "export", "readonly"), _declares),
}
