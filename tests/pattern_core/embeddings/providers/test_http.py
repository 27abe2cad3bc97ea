from __future__ import annotations

import pytest

from pattern_core.embeddings.providers.http import HttpWire, why
from pattern_core.embeddings.providers.remote import Unreached
from pattern_core.testing.wire import Play, document, serve_wire


async def test_get_and_post() -> None:
    async with serve_wire([document({"a": 1}), document({"b": 2}, status=418, headers={"X-Odd": "yes"})]) as server:
        wire = HttpWire(server.url + "/", {"x-key": "k"})
        assert (await wire.ask("/about", None)).body == b'{"a": 1}'
        answer = await wire.ask("/ask", {"text": "ż"})
        assert (answer.status, answer.body, answer.headers["x-odd"]) == (418, b'{"b": 2}', "yes")
        get, post = server.requests
        assert (get.method, get.path, get.headers["x-key"]) == ("GET", "/about", "k")
        assert (post.method, post.json()) == ("POST", {"text": "ż"})
        assert server.connections == 1
        await wire.aclose()
        await wire.aclose()


async def test_what_breaks_is_one_error() -> None:
    async with serve_wire([Play(chunks=(b"x" * 100,), stops_after=10)]) as server:
        wire = HttpWire(server.url)
        with pytest.raises(Unreached):
            await wire.ask("/", None)
        await wire.aclose()
    wire = HttpWire("nonsense://x y")
    with pytest.raises(Unreached):
        await wire.ask("/", None)
    await wire.aclose()


def test_reasons_name_the_host_and_no_password() -> None:
    assert why(OSError("refused"), "http://me:secret@host:1/v1") == "refused (host:1)"
    assert why(OSError(), "http://host") == "OSError (host)"
