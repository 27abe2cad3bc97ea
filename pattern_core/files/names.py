"""Names of files: paths within a folder, with slashes, that cannot lead out of it."""

from __future__ import annotations

import unicodedata

from pattern_core.errors import InvalidInput

NAME_CHARS_MAX = 500
PART_BYTES_MAX = 255  # what file systems take for one name
DEPTH_MAX = 20
# Directories that hold what programs make or fetch; nobody wants to find it.
IGNORED = frozenset(
    {
        "__pycache__",
        "node_modules",
        "bower_components",
        "site-packages",
        "venv",
        "env",
        "target",
        "dist",
        "build",
        "coverage",
        "htmlcov",
        "DerivedData",
        "Pods",
        "$RECYCLE.BIN",
        "System Volume Information",
    }
)
# Ends of names of what programs leave beside files.
_LEFTOVERS = ("~", ".swp", ".swo", ".tmp", ".part", ".crdownload", ".pyc", ".min.js", ".min.css", ".map")


def check_name(name: str) -> str:
    """`name` in Unicode's composed form (NFC), if it is a path of a visible file within a folder.

    Raises:
        InvalidInput: it is empty, absolute or too long or deep, leads upwards, or has a part that is hidden.
    """
    normal = unicodedata.normalize("NFC", name)
    if not normal:
        raise InvalidInput("a file needs a name, such as notes/garden.md")
    if len(normal) > NAME_CHARS_MAX:
        raise InvalidInput(f"the file's name has {len(normal)} characters; at most {NAME_CHARS_MAX} are taken")
    parts = normal.split("/")
    if len(parts) > DEPTH_MAX:
        raise InvalidInput(f"the file's name has {len(parts)} parts; folders go at most {DEPTH_MAX} deep")
    for part in parts:
        problem = _problem(part)
        if problem:
            raise InvalidInput(
                f"the file's name {normal[:100]!r} {problem}; write a path inside the folder, such as notes/garden.md"
            )
    return normal


def _problem(part: str) -> str | None:
    if part in ("", ".", ".."):
        return "begins or ends with a slash, has two in a row, or a part that is only dots"
    if part.startswith("."):
        return "has a hidden part (one that begins with a dot)"
    if "\\" in part:
        return "has a backslash"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in part):
        return "has control characters or half characters"
    if len(part.encode()) > PART_BYTES_MAX:
        return f"has a part of more than {PART_BYTES_MAX} bytes"
    return None


def is_left_out(part: str, *, is_directory: bool) -> bool:
    """Whether a file or directory of this name is passed over in silence: hidden, fetched or left behind."""
    if part.startswith("."):
        return True
    return part in IGNORED if is_directory else part.endswith(_LEFTOVERS)
