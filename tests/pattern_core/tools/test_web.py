from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pattern_core.errors import InvalidInput, Unavailable
from pattern_core.testing.wire import WireServer, document
from pattern_core.tools.builtin.web import PAGE_CHARS, web
from pattern_core.web.policy import EngineSettings
from pattern_core.web.web import Web
from tests.pattern_core.memory.rig import ADA, BOB
from tests.pattern_core.tools.rig import ToolRig
from tests.pattern_core.web.rig import Names, at_home, page

TEXT = "".join(f"{number:09d}\n" for number in range(2_500)).strip()


@pytest.fixture
async def server() -> AsyncIterator[WireServer]:
    async with WireServer(otherwise=page(TEXT, "text/plain")) as server:
        yield server


@pytest.fixture
def online(tools: ToolRig, server: WireServer) -> ToolRig:
    settings = at_home(server, search=EngineSettings(kind="searxng", base_url=server.url))
    tools.web = Web(settings, clock=tools.rig.clock, resolve=Names())
    return tools


async def test_a_long_page_is_read_in_pieces(online: ToolRig, server: WireServer) -> None:
    url = f"http://example.org:{server.port}/"
    first = await online.call(web, op="fetch", url=url)
    assert len(first["data"]["content"]) == PAGE_CHARS == first["data"]["next_offset"]
    assert first["data"]["metadata"] == {
        "url": url,
        "title": "",
        "status": 200,
        "content_type": "text/plain",
        "format": "markdown",
        "total_length": 24_999,
        "offset": 0,
        "has_more": True,
    }
    assert "read on with continue_from=10000" in first["message"]
    second = await online.call(web, op="fetch", url=url, continue_from=10_000)
    third = await online.call(web, op="fetch", continue_from=20_000)  # the page fetched last
    assert first["data"]["content"] + second["data"]["content"] + third["data"]["content"] == TEXT
    assert third["data"]["metadata"]["has_more"] is False and "next_offset" not in third["data"]
    assert len(server.requests) == 1


async def test_reading_on_is_each_agents_own(online: ToolRig, server: WireServer) -> None:
    await online.call(web, op="fetch", url=f"http://example.org:{server.port}/", format="text")
    online.agent_id = BOB
    with pytest.raises(InvalidInput, match="name the page by `url`"):
        await online.call(web, op="fetch", continue_from=10_000)
    online.agent_id = ADA
    again = await online.call(web, op="fetch", continue_from=10_000)
    assert again["data"]["metadata"]["format"] == "text"
    for arguments in ({}, {"url": ""}):
        with pytest.raises(InvalidInput, match="name the page by `url`"):
            await online.call(web, op="fetch", **arguments)
    for offset in (-1, 24_999):
        with pytest.raises(InvalidInput, match="24999 characters"):
            await online.call(web, op="fetch", url=f"http://example.org:{server.port}/", continue_from=offset)


async def test_search(online: ToolRig, server: WireServer) -> None:
    hits = [{"title": f"Tea {number}", "url": f"https://t.org/{number}", "content": "s"} for number in range(30)]
    server._otherwise = document({"results": hits})
    found = await online.call(web, op="search", query=" green tea ")
    assert server.requests[0].path == "/search?q=green+tea&format=json"
    assert found["message"] == "Found 10 pages"
    assert found["data"]["results"][0] == {"title": "Tea 0", "url": "https://t.org/0", "snippet": "s"}
    assert len((await online.call(web, op="search", query="tea", limit=99))["data"]["results"]) == 20
    assert len((await online.call(web, op="search", query="tea", limit=0))["data"]["results"]) == 1
    with pytest.raises(InvalidInput, match="needs `query`"):
        await online.call(web, op="search")


async def test_without_a_web_the_answer_says_so(tools: ToolRig) -> None:
    with pytest.raises(Unavailable, match=r"a section \[web\]"):
        await tools.call(web, op="search", query="tea")
