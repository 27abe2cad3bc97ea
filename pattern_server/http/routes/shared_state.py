"""State that agents and people share. The version of a value is its ETag, as that of a memory block."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from pattern_core.shared_state import Value
from pattern_server.http.bodies import Demanded, PagedTexts, RequestModel, answer_of, page_of, tagged
from pattern_server.http.routing import AwakeAccess, Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/state", tags=["state"])

VALUE = answer_of(Value, "key value version updated_at updated_by")


class SharedValueRequest(RequestModel):
    """The value to store: any JSON but null."""

    value: Any


@router.get("", response_model=page_of(VALUE))
async def list_all(home: ToRead, paging: PagedTexts) -> object:
    """List the values of the shared state by key."""
    return paging.cut(await home.constellation.state.page(paging.one_more, paging.after), lambda one: one.key)


@router.get("/{key}", response_model=VALUE)
async def get(key: str, home: ToRead, response: Response) -> object:
    """Show a value of the shared state; its `ETag` is its version."""
    value = await home.constellation.state.get(key)
    return tagged(response, value.version, value)


@router.put("/{key}", response_model=VALUE)
async def put(key: str, body: SharedValueRequest, home: ToWrite, demanded: Demanded, response: Response) -> object:
    """Set a value of the shared state.

    Create or replace the value. With `If-Match` it must still have this version, with `If-None-Match: *` it must not
    exist; otherwise the answer is 412 with the newest version, and nothing changes.
    """
    expected = await _expected(home, key, demanded)
    author = home.caller.author
    value = await home.constellation.state.set(key, body.value, expected=expected, author=author)
    return tagged(response, value.version, value)


@router.delete("/{key}", status_code=204)
async def delete(key: str, home: ToWrite, demanded: Demanded) -> None:
    """Delete a value of the shared state; with `If-Match` it must still have this version."""
    await home.constellation.state.get(key)
    expected = await _expected(home, key, demanded)
    await home.constellation.state.delete(key, expected=expected, author=home.caller.author)


async def _expected(home: AwakeAccess, key: str, demanded: Demanded) -> int:
    """Return the version of the key, 0 if there is none; the change is refused if it has another one by then."""
    found = await home.constellation.state.find(key)
    demanded.check(f"the key {key!r}", None if found is None else found.version)
    return 0 if found is None else found.version
