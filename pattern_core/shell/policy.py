"""The operator's policy for the shell: the section `[shell]`, and its verdict on a command line.

The sandbox is the boundary. This only saves people questions: a line runs without one if it is certain, from the line
alone, that it just looks. That holds for a *plain* line (one program with its arguments, or several joined by `|`,
and nothing that the shell would expand, redirect, compute or run) of programs that are known to read, with options that
are known to be harmless. Everything else asks a person, so nothing here has to understand the shell, and a program or
an option that is missing here costs a question only.

`git` is missing on purpose: even `git status` runs programs that the repository's own configuration names.

Sources: Bash Reference Manual 5.2, "Shell Syntax" and "Shell Expansions"; the manuals of GNU coreutils 9.4, findutils
4.9, diffutils 3.10, grep 3.11, procps-ng 4, util-linux 2.40, file 5.45, jq 1.7, ripgrep 14, tree 2.1.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

Means = Literal["namespaces", "landlock"]

COMMAND_CHARS_MAX = 10_000  # what a person can be asked to read
SHOWN_CHARS_MAX = 80  # of a command that is named in a reason
# Blanks, a pipe, or a word: bare characters without a meaning for the shell, and quotes in which nothing is expanded.
_TOKEN = re.compile(r"""[ \t]+|\||(?:[\w@%+=:,./-]|'[^'\n]*'|"[^"$`\\!\n]*")+""")
_ROUGH_TOKEN = re.compile(r"[\w.-]+|\S")
_INVISIBLE = ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp")  # categories of Unicode
_QUOTING = re.compile(r"""['"\\]""")

# Program → the letters of its harmless short options, then its harmless long ones. A cluster such as `-rnk2` holds
# letters of the first alone; what is not a letter is part of a value.
READERS: Mapping[str, str] = {
    "ls": "-AaBbCcdFfGghiklLmNnopqQRrSstuUvXx --all --color --human-readable --recursive --reverse --sort --time",
    "tree": "-adfhilnpstuxCDFILP --dirsfirst --noreport --gitignore --prune --du",
    "find": "- -P -L -H -name -iname -path -ipath -wholename -regex -iregex -type -size -empty -perm -user -group"
    " -maxdepth -mindepth -mtime -mmin -atime -amin -ctime -cmin -newer -newermt -samefile -links -readable -writable"
    " -executable -not -a -and -o -or -true -false -prune -depth -xdev -mount -daystart -print -print0 -printf -ls"
    " -quit",
    "cat": "-AbEensTtuv --number",
    "tac": "-bs",
    "head": "-cnqvz --lines --bytes",
    "tail": "-cFfnqvz --lines --bytes --follow",
    "wc": "-cLlmw --lines --words --bytes --chars",
    "nl": "-abn",
    "grep": "-ABabCcEeFfGHhIiLlmnoPqRrsTUuvwxyZz --include --exclude --exclude-dir --color --colour --recursive"
    " --ignore-case --line-number --count --files-with-matches --files-without-match --invert-match --word-regexp"
    " --fixed-strings --extended-regexp --perl-regexp --only-matching --max-count --context --after-context"
    " --before-context --null --quiet --no-messages --with-filename --no-filename --text",
    "rg": "-ABabCcEeFfgHhIiLlMmNnoPpqrSsTtUuvwx --hidden --no-ignore --files --type --glob --iglob --count --color"
    " --context --files-with-matches --ignore-case --line-number --max-count --multiline --only-matching --no-heading"
    " --sort --stats --word-regexp --fixed-strings --json",
    "cut": "-bcdfnsz --bytes --characters --complement --delimiter --fields --output-delimiter",
    "tr": "-Ccdst",
    "sort": "-bCcdfghikMmnRrstuVz --field-separator --human-numeric-sort --ignore-case --key --numeric-sort --reverse"
    " --unique --version-sort",
    "uniq": "-cdiuz --count --repeated --unique --ignore-case",
    "comm": "-z",
    "paste": "-dsz --delimiters --serial",
    "column": "-cnstx --table --separator",
    "fold": "-bsw --width",
    "rev": "-",
    "sed": "-n --quiet",
    "diff": "-aBbcdEeiNnpqrsTtUuWwxy --brief --color --exclude --ignore-all-space --new-file --recursive"
    " --side-by-side --unified",
    "cmp": "-bilns",
    "od": "-AabcdfijlNnostvwx",
    "hexdump": "-bCcdnosvx",
    "base64": "-diw --decode --wrap",
    "stat": "-cfLt --format --printf --terse",
    "du": "-abcdhkLmsx --all --apparent-size --bytes --exclude --human-readable --max-depth --summarize --total",
    "df": "-ahHiklPT --human-readable --total",
    "file": "-bhikLN --brief --mime --mime-encoding --mime-type",
    "jq": "-aCcejMnRrSs --arg --argjson --compact-output --indent --null-input --raw-input --raw-output --slurp"
    " --sort-keys --tab",
    **dict.fromkeys(("md5sum", "sha1sum", "sha256sum", "sha512sum", "b2sum", "cksum"), "-bctz --check"),
    "basename": "-asz",
    "dirname": "-z",
    "realpath": "-eLmPsz --relative-to --relative-base",
    "readlink": "-efmn",
    "pwd": "-LP",
    "echo": "-Een",
    "seq": "-fsw",
    "sleep": "-",
    "date": "-uR --utc --iso-8601 --rfc-3339",
    "id": "-Ggnru",
    "uname": "-aimnoprsv",
    "ps": "-AaCeFfHjLlopTUuwx --sort --forest",
    "free": "-bghkmt",
    "uptime": "-ps",
    "which": "-a",
    **dict.fromkeys(("true", "false", "whoami", "groups", "nproc", "printenv"), "-"),
}
# What the first argument without a dash must look like where it decides what the program does: `date` can set the
# clock, a script of `sed` write files and run commands, and `uniq` writes the second file that it is given.
_FIRST_OPERAND = {"date": r"\+.*", "sed": r"[0-9$,]+[dpq]", "uniq": r"(?!)"}
# They only reach other machines, so without a network a question would be useless.
NETWORK = frozenset(
    ("curl", "wget", "ssh", "scp", "sftp", "ftp", "rsync", "nc", "ncat", "telnet", "ping", "dig", "host", "nslookup")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSection:
    """The section `[shell]`; without `roots` no command runs.

    `allow` and `deny` hold beginnings of commands, such as `git commit` or `pytest`. What is allowed runs without a
    question, what is denied never. The bounds `cpu_s` (seconds of processor time), `memory_mb` (of address space) and
    `file_mb` (of the longest file) hold for each process.
    """

    # directories in which commands run, the only ones that they may write; none: no command runs
    roots: Sequence[Path] = ()
    readable: Sequence[Path] = ()  # directories that commands may read in addition to the system's programs
    allow: Sequence[str] = ()  # beginnings of commands that run without a question, such as `git status`
    deny: Sequence[str] = ()  # beginnings of commands that never run
    network: bool = False  # whether commands may use the network
    require_sandbox: bool = True  # run nothing where files and network cannot be confined
    path: str = "/usr/local/bin:/usr/bin:/bin"  # where programs are looked up
    children_max: Annotated[int, Field(ge=1, le=64)] = 8  # commands at once of one constellation
    processes_max: Annotated[int, Field(ge=4)] = 128  # processes of one command
    cpu_s: Annotated[int, Field(ge=1)] = 600  # processor time of each process
    memory_mb: Annotated[int, Field(ge=64)] = 4096  # address space of each process, in MiB
    file_mb: Annotated[int, Field(ge=1)] = 1024  # longest file of each process, in MiB
    idle_s: Annotated[float, Field(gt=0)] = 3600.0  # a background command that no one reads is ended after this time


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings(ShellSection):
    """What the shell needs to know: the section, and what no operator decides.

    `kept_out` are the server's own directories, which no root may hold; `means` are the system's means of confinement
    that are tried; `open_files` holds for each process.
    """

    kept_out: Sequence[Path] = ()
    means: Sequence[Means] = ("namespaces", "landlock")
    open_files: int = 1024
    grace_s: float = 2.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandVerdict:
    """Whether a command line runs, a person is asked first, or it is refused; and a sentence that says why."""

    action: Literal["run", "ask", "refuse"]
    reason: str


def verdict(command: str, settings: ShellSettings) -> CommandVerdict:
    """Return the settings' verdict on the command line. Pure, and never fails."""
    if len(command) > COMMAND_CHARS_MAX:
        return CommandVerdict(action="refuse", reason=f"The command is longer than {COMMAND_CHARS_MAX} characters.")
    if odd := next(
        (char for char in command if char not in " \n\t" and unicodedata.category(char) in _INVISIBLE), None
    ):
        # A person who is asked must see what they agree to.
        return CommandVerdict(action="refuse", reason=f"The command holds the invisible character U+{ord(odd):04X}.")
    commands = _plain(command)
    others = [words for words in commands or () if not _only_reads(words)]
    for entry in settings.deny:
        is_begun = any(_begins(words, entry.split()) for words in commands or ())
        if is_begun or ((others or commands is None) and _stands_in(command, entry)):
            return CommandVerdict(action="refuse", reason=f"This server does not run `{entry}`.")
    if commands is None:
        return CommandVerdict(action="ask", reason=f"`{_shown(command)}` may change something.")
    for words in others:
        if words[0] in NETWORK and not settings.network:
            reason = f"`{_shown(' '.join(words))}` reaches other machines. Commands on this server have no network."
            return CommandVerdict(action="refuse", reason=reason)
        if not any(_begins(words, entry.split()) for entry in settings.allow):
            return CommandVerdict(action="ask", reason=f"`{_shown(' '.join(words))}` may change something.")
    return CommandVerdict(action="run", reason="It only reads, or this server allows it.")


def _plain(line: str) -> list[list[str]] | None:
    """Return the words of each command of a plain line, None for any other line."""
    tokens = _TOKEN.findall(line)
    if "".join(tokens) != line:
        return None
    commands: list[list[str]] = [[]]
    for token in tokens:
        if token == "|":
            commands.append([])
        elif not token.isspace():
            commands[-1] += shlex.split(token)  # removes the quotes
    return commands if all(commands) else None


def _only_reads(words: Sequence[str]) -> bool:
    program, *arguments = words
    if program not in READERS:
        return False
    letters, *names = READERS[program].split()
    options = [argument for argument in arguments if argument.startswith("-") and argument not in ("-", "--")]
    for option in options:
        is_cluster = not option.startswith("--") and all(char in letters or not char.isalpha() for char in option)
        if not is_cluster and option.partition("=")[0] not in names:
            return False
    operand = next((argument for argument in arguments if argument not in options), None)
    return operand is None or re.fullmatch(_FIRST_OPERAND.get(program, "(?s:.*)"), operand) is not None


def _begins(words: Sequence[str], named: Sequence[str]) -> bool:
    return bool(named) and words[: len(named)] == named


def _stands_in(line: str, entry: str) -> bool:
    """Return whether the entry occurs anywhere in the line, as far as that can be seen without a shell."""
    words, named = (_ROUGH_TOKEN.findall(_QUOTING.sub("", text)) for text in (line, entry))
    return any(_begins(words[at:], named) for at in range(len(words)))


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"
