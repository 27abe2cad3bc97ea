"""A stand-in for the program age, as far as Pattern calls it: `age -r RECIPIENT -o OUT IN`, `age -d -i KEYS -o OUT IN`.

It encrypts nothing that should stay secret: a recipient is `age1` and the digest of the key, which is the pad.
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

START = b"age-encryption.org/v1\n-> stand-in "


def recipient_of(key: str) -> str:
    """The public half of a key."""
    return "age1" + sha256(key.encode()).hexdigest()


def fail(reason: str) -> None:
    """End as age does."""
    sys.exit(f"age: error: {reason}")


def main(words: list[str]) -> None:
    """Read the command line and do what it says."""
    is_decrypting = words[0] == "-d"
    option, name, output, target, source = words[is_decrypting:]
    if (option, output) != ("-i" if is_decrypting else "-r", "-o"):
        fail("an option that this stand-in does not know")
    data = Path(source).read_bytes()
    if not is_decrypting:
        body = bytes(a ^ b for a, b in zip(data, cycle(name.encode()), strict=False))
        Path(target).write_bytes(START + name.encode() + b"\n" + body + sha256(body).digest())
        return
    head, _, rest = data.removeprefix(START).partition(b"\n")
    keys = [line for line in Path(name).read_text().splitlines() if line.startswith("AGE-SECRET-KEY-")]
    if not any(recipient_of(key).encode() == head for key in keys):
        fail("no identity matched any of the recipients")
    body, digest = rest[:-32], rest[-32:]
    if sha256(body).digest() != digest:
        fail("failed to decrypt and authenticate payload chunk")
    Path(target).write_bytes(bytes(a ^ b for a, b in zip(body, cycle(head), strict=False)))


def use_stand_in_age(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """Let this program be the age that is found; return a recipient, and the file with the key."""
    (programs := folder / "programs").mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    (keys := folder / "key.txt").write_text("# a key\nAGE-SECRET-KEY-1\n")
    return install(programs), keys


def install(programs: Path) -> str:
    """Let this program be the age in a folder; return the recipient that `AGE-SECRET-KEY-1` is the key of."""
    program = programs / "age"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    program.chmod(0o700)
    return recipient_of("AGE-SECRET-KEY-1")


if __name__ == "__main__":
    main(sys.argv[1:])
