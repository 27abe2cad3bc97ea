"""Where commands may run: directories below the configured roots, reached without following a link."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied
from pattern_core.files.disk import check_root

_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An open directory: its descriptor, which its owner closes, its path, and all roots by their paths."""

    descriptor: int
    path: Path
    roots: Sequence[Path]

    @contextmanager
    def closed_unless_taken(self) -> Iterator[Callable[[], Place]]:
        """Close it at the end of the block, unless the function that is given here handed it to another owner."""
        is_taken = False

        def take() -> Place:
            nonlocal is_taken
            is_taken = True
            return self

        try:
            yield take
        finally:
            if not is_taken:
                os.close(self.descriptor)


def open_place(roots: Sequence[Path], kept_out: Sequence[Path], directory: str | None) -> Place:
    """Open the directory in which a command shall run; without one the first root. Blocks: call it on a thread.

    A relative `directory` is meant below the first root. Every step is one `openat` that follows no link, so that
    neither `..` nor a link that a command made leads out.

    Raises:
        PermissionDenied: no root is configured, or the directory is below none.
        InvalidInput: a root is not usable, or the directory's name is none.
        NotFound: there is no such directory.
    """
    if not roots:
        raise PermissionDenied(
            "the shell has no directory to work in; an administrator names one in pattern.toml, as"
            ' roots = ["/srv/work"] in the section [shell]'
        )
    real = [check_root(str(root), allowed=None, kept_out=kept_out) for root in roots]
    asked = Path(directory or ".")
    if "\0" in str(asked) or ".." in asked.parts:
        raise InvalidInput("name the directory without `..`, such as project/src")
    root, below = _split(asked, real, roots)
    try:
        descriptor = _opened(root, below)
    except OSError as error:
        raise NotFound(f"{asked} cannot be entered ({error.strerror}); links are not followed") from None
    return Place(descriptor=descriptor, path=root / below, roots=real)


def _opened(root: Path, below: Path) -> int:
    descriptor = os.open(root, _STEP)
    for part in below.parts:
        try:
            following = os.open(part, _STEP, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = following
    return descriptor


def _split(asked: Path, real: Sequence[Path], roots: Sequence[Path]) -> tuple[Path, Path]:
    """The root that an asked directory is below, and the way from there."""
    if not asked.is_absolute():
        return real[0], asked
    for known, target in [*zip(real, real, strict=True), *zip(roots, real, strict=True)]:
        if asked.is_relative_to(known):
            return target, asked.relative_to(known)
    raise PermissionDenied(f"{asked} is not below {', '.join(str(root) for root in real)}; commands run only there")
