"""Requests and responses as JSON. Requests are parsed once, strictly; responses are the core's values.

A route returns one of the core's dataclasses. If some of its fields are internal, or their order in JSON differs,
`answer_of` makes the model that selects them.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

import trio
from fastapi import Depends, Header, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, create_model

from pattern_core.errors import InvalidInput, NotFound, VersionMismatch

PAGE_MAX = 500
PIECE_BYTES = 256 * 1024  # of a file that is downloaded
_NUMBER = re.compile(r"[0-9]{1,18}")
_WRONG_CURSOR = "the cursor is invalid; send `next_cursor` of the previous page, or leave it out"
BY_VALUE = Field(strict=False)  # for enums, which arrive as their values; strict mode would refuse them

T = TypeVar("T")

PageLimit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="How many at most.")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.")]


class RequestModel(BaseModel):
    """Base of requests. Strict: no unknown keys, no numbers in quotes."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Page(BaseModel, Generic[T]):
    """A page of a list. Send `next_cursor` as `cursor` to get the next page; it is null on the last one."""

    items: list[T]
    next_cursor: str | None


class Items(BaseModel, Generic[T]):
    """A whole list."""

    items: list[T]


def answer_of(source: type, names: str, title: str = "", /, **other: Any) -> type[BaseModel]:
    """Return the model of a response that is made from a `source`: its attributes `names`, in that order.

    Other attributes stay internal. `other` are additional fields with their types. The model has the name of the
    source, or `title` if there are two models of one source.
    """
    types = {**get_type_hints(source), **other}
    fields: dict[str, Any] = {name: (types[name], ...) for name in (*names.split(), *other)}
    return create_model(
        title or source.__name__.removesuffix("Row").removesuffix("View"),
        __config__=ConfigDict(from_attributes=True),
        **fields,
    )


def fields_with(row: Any, /, **more: object) -> dict[str, Any]:
    """Return the fields of a dataclass by name, uncopied (unlike `asdict`, which copies deeply), and `more`."""
    return {**{field.name: getattr(row, field.name) for field in fields(row)}, **more}


def page_of(answer: type[BaseModel]) -> Any:
    """Return the model of a page of such responses."""
    return Page.__class_getitem__(answer)


def items_of(answer: type[BaseModel]) -> Any:
    """Return the model of a whole list of such responses."""
    return Items.__class_getitem__(answer)


def require_values(changes: Mapping[str, object], *names: str) -> None:
    """Refuse null as the new value of these fields.

    Raises:
        InvalidInput: one of them is null.
    """
    for name in names:
        if changes.get(name, "") is None:
            raise InvalidInput(f"`{name}` cannot be null; leave it out to keep it")


def tagged(response: Response, version: object, answer: T) -> T:
    """Return an answer; the version of what it shows becomes its ETag."""
    response.headers["etag"] = f'"{version}"'
    return answer


def encode_cursor(*place: str) -> str:
    """Return an opaque cursor for a place in a list."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None, length: int) -> tuple[str, ...] | None:
    """Return the place that `encode_cursor` encoded; None for None.

    Raises:
        InvalidInput: the cursor is invalid.
    """
    if cursor is None:
        return None
    try:
        padded = cursor.encode() + b"=" * (-len(cursor) % 4)
        place = json.loads(base64.b64decode(padded, b"-_", validate=True))
    except (ValueError, binascii.Error):
        place = None
    if not isinstance(place, list) or len(place) != length or not all(isinstance(part, str) for part in place):
        raise InvalidInput(_WRONG_CURSOR)
    return tuple(place)


def file_here(file: str) -> Path:
    """Return the path of a file on the server's machine, as a request names it.

    Raises:
        InvalidInput: it is not an absolute path.
        NotFound: there is no such file.
    """
    path = Path(file)
    if not path.is_absolute() or "\0" in file:
        raise InvalidInput("`file` is not an absolute path; send one of the server's machine")
    if not path.is_file():
        raise NotFound(f"there is no file {file} on the server's machine")
    return path


def streamed(path: Path, media_type: str) -> StreamingResponse:
    """Return the answer that downloads a file."""
    headers = {"content-disposition": f'attachment; filename="{path.name}"'}
    return StreamingResponse(_pieces(path), media_type=media_type, headers=headers)


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    try:
        async with await trio.open_file(path, "rb") as file:
            while piece := await file.read(PIECE_BYTES):
                yield piece
    except FileNotFoundError:
        raise NotFound(f"the file {path.name} was deleted; make another one") from None


@dataclass(frozen=True, slots=True)
class Paging:
    """The requested page of a list."""

    limit: int
    cursor: str | None

    @property
    def after(self) -> str | None:
        """The last key of the previous page, in a list ordered by one key; None for the first page.

        Raises:
            InvalidInput: the cursor is invalid.
        """
        place = decode_cursor(self.cursor, 1)
        return None if place is None else place[0]

    @property
    def before(self) -> int | None:
        """The last number of the previous page, in a list ordered by a number; None for the first page.

        Raises:
            InvalidInput: the cursor is invalid.
        """
        number = self.after
        if number is not None and not _NUMBER.fullmatch(number):
            raise InvalidInput(_WRONG_CURSOR)
        return None if number is None else int(number)

    @property
    def one_more(self) -> int:
        """Number of rows to read: one more than the page holds, to know whether another page follows."""
        return self.limit + 1

    def cut(self, rows: Sequence[T], key: Callable[[T], str]) -> dict[str, Any]:
        """Return the page of `rows`, of which `one_more` were read."""
        shown = rows[: self.limit]
        return {"items": shown, "next_cursor": encode_cursor(key(shown[-1])) if len(rows) > self.limit else None}

    def of_all(self, rows: Sequence[T], key: Callable[[T], tuple[str, str]]) -> dict[str, Any]:
        """Return the page of a complete list of rows, ordered by `key`.

        Raises:
            InvalidInput: the cursor is invalid.
        """
        place = decode_cursor(self.cursor, 2)
        ordered = sorted((row for row in rows if place is None or key(row) > place), key=key)
        shown = ordered[: self.limit]
        return {"items": shown, "next_cursor": encode_cursor(*key(shown[-1])) if len(ordered) > self.limit else None}


async def _short_paging(limit: PageLimit = 50, cursor: Cursor = None) -> Paging:
    return Paging(limit, cursor)


async def _paging(limit: PageLimit = 100, cursor: Cursor = None) -> Paging:
    return Paging(limit, cursor)


Paged = Annotated[Paging, Depends(_paging)]
PagedTexts = Annotated[Paging, Depends(_short_paging)]  # of rows that may be long


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The precondition of a request, on the version of an object."""

    must_exist: bool = False
    must_be_new: bool = False
    version: int | None = None

    def check(self, what: str, version: int | None) -> None:
        """Check the precondition; `version` is that of the object, None if there is none.

        Raises:
            VersionMismatch: it does not hold.
        """
        if version is None and self.must_exist:
            raise VersionMismatch(f"{what} no longer exists")
        if version is not None and self.must_be_new:
            raise VersionMismatch(f"{what} already exists", version=version)
        if version is not None and self.version not in (None, version):
            raise VersionMismatch(f"{what} is at version {version}, not {self.version}; read it again", version=version)


async def _conditions(
    if_match: Annotated[str | None, Header(description='The expected version, such as `"3"`, or `*` for any.')] = None,
    if_none_match: Annotated[str | None, Header(description="`*`: only create it.")] = None,
) -> Conditions:
    if if_none_match not in (None, "*"):
        raise InvalidInput("If-None-Match is invalid; send `*` to change nothing if it exists")
    text = await _tag(if_match)
    if text is not None and not _NUMBER.fullmatch(text):
        raise InvalidInput('If-Match is invalid; send the version as GET returns it in `ETag`, such as "3"')
    version = None if text is None else int(text)
    return Conditions(must_exist=if_match is not None, must_be_new=if_none_match is not None, version=version)


async def _tag(
    if_match: Annotated[
        str | None, Header(description="The `ETag` of what is changed: refused (412) if it has changed since.")
    ] = None,
) -> str | None:
    return None if if_match in (None, "*") else str(if_match).strip().removeprefix("W/").strip('"')


Demanded = Annotated[Conditions, Depends(_conditions)]
IfMatch = Annotated[str | None, Depends(_tag)]  # the version that a change needs; None if any will do
