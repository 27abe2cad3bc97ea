"""Bodies are whole, bounded and in time; answers are compressed; pages of other sites change nothing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, MutableMapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import trio.testing
import zstandard

from pattern_core.testing.model import Paced, ScriptedProvider, says
from pattern_server.http import ABORT, border
from pattern_server.http.border import ClientGone, HttpExchange, client_of
from pattern_server.http.errors import RequestTimeout, TooLarge, problem
from tests.pattern_server.http.test_app import AGENTS, is_problem
from tests.pattern_server.place import API, Place, config_for, read_events, serving

MORE = {"type": "http.request", "body": b"12345", "more_body": True}
LAST = {"type": "http.request", "body": b"6", "more_body": False}
GONE = {"type": "http.disconnect"}


def scope(**headers: str) -> dict[str, Any]:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "headers": raw}


def messages(*given: dict[str, Any]) -> Callable[[], Any]:
    """A `receive` that gives these, then waits for ever."""
    left = list(given)

    async def receive() -> dict[str, Any]:
        if not left:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return left.pop(0)

    return receive


async def read(asked: dict[str, Any], receive: Callable[[], Any], bytes_max: int) -> bytes | None:
    """The body of a request, read whole."""
    exchange = HttpExchange(asked, receive, nowhere, "req")
    await exchange.read_body(bytes_max)
    return exchange.body


async def nowhere(_message: object) -> None:
    """A `send` for requests that are not answered."""


async def test_a_body_arrives_in_pieces() -> None:
    assert await read(scope(), messages(MORE, MORE, LAST), 11) == b"12345123456"


async def test_one_byte_too_many_is_too_large() -> None:
    with pytest.raises(TooLarge, match="10 bytes"):
        await read(scope(), messages(MORE, MORE, LAST), 10)


async def test_a_declared_length_is_believed_at_once() -> None:
    with pytest.raises(TooLarge):
        await read(scope(content_length="11"), messages(), 10)


async def test_a_client_that_leaves_or_is_too_slow(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(ClientGone):
        await read(scope(), messages(MORE, GONE), 100)
    with pytest.raises(RequestTimeout):
        await read(scope(), messages(MORE), 100)


async def test_the_rest_is_dropped(autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[bool] = []

    async def drop(receive: Callable[[], Any], **state: object) -> None:
        await HttpExchange({**scope(), "state": state}, receive, nowhere, "req").drop_rest()

    abort = {ABORT: lambda: aborted.append(True)}
    await drop(messages(MORE, LAST), **abort)
    await drop(messages(GONE), **abort)
    assert not aborted
    await drop(messages(MORE), **abort)  # never goes on
    monkeypatch.setattr(border, "DROPPED_BYTES_MAX", 9)
    await drop(messages(MORE, MORE, MORE), **abort)  # never ends
    assert len(aborted) == 2
    await drop(messages(MORE, MORE, MORE))  # nobody offers to close


async def test_the_application_gets_the_body_once() -> None:
    exchange = HttpExchange(scope(), messages(LAST, GONE), nowhere, "req")
    await exchange.read_body(10)
    assert await exchange.receive() == {"type": "http.request", "body": b"6", "more_body": False}
    assert await exchange.receive() == GONE


@pytest.mark.parametrize(
    ("headers", "is_read_first"),
    [
        ({}, False),
        ({"content_length": "0"}, False),
        ({"content_length": "6"}, True),
        ({"transfer_encoding": "x"}, True),
    ],
)
async def test_a_refusal_ends_after_the_body_that_was_announced(headers: dict[str, str], is_read_first: bool) -> None:
    order: list[Any] = []
    last = messages(LAST)

    async def receive() -> Any:
        order.append("read")
        return await last()

    async def send(message: MutableMapping[str, Any]) -> None:
        order.append(message.get("body", message.get("status")))

    exchange = HttpExchange(scope(**headers), receive, send, "req")
    response = problem("overloaded", "try again")
    await exchange.refuse(response)
    whole = [429, response.body]
    assert order == ([*whole, "read", b""] if is_read_first else whole)
    assert (response.headers.get("connection") == "close") == is_read_first
    assert (exchange.status, exchange.size) == (429, len(response.body))
    await exchange.refuse(response)
    assert order[-1] != 429, "an answer that has begun is not answered again"


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", ["198.51.100.1, 203.0.113.9"], "203.0.113.9"),  # the first may be forged
        ("127.0.0.1", ["198.51.100.1", "203.0.113.9, 10.1.2.3"], "203.0.113.9"),  # a proxy behind a proxy
        ("127.0.0.1", ["10.1.2.3"], "10.1.2.3"),
        ("127.0.0.1", ["not an address"], "127.0.0.1"),
        ("127.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),  # not from a proxy
        ("", ["198.51.100.1"], ""),
    ],
)
def test_only_trusted_proxies_name_the_client(peer: str, forwarded: list[str], expected: str) -> None:
    proxies = [ip_network("127.0.0.1"), ip_network("10.0.0.0/8")]
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    scope = {"type": "http", "client": (peer, 1), "headers": headers}
    assert client_of(scope, proxies) == expected
    assert client_of(scope, []) == peer
    hops = ",".join(forwarded).split(",") if forwarded else []
    standard = ", ".join(
        f'for="[{hop.strip()}]:4711";proto=https' if ":" in hop else f"For={hop.strip()}" for hop in hops
    )
    assert client_of({**scope, "headers": [(b"forwarded", standard.encode())]}, proxies) == expected


@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [
        ('for=192.0.2.43, For="[2001:db8:cafe::17]"', "2001:db8:cafe::17"),
        ("by=203.0.113.43;for=192.0.2.60:80;proto=http", "192.0.2.60"),
        ('for="_hidden";by=1.2.3.4', "127.0.0.1"),
        ("for=unknown", "127.0.0.1"),
        ("host=for=1.2.3.4", "127.0.0.1"),
        ("", "127.0.0.1"),
    ],
)
def test_the_standard_header_is_read_as_it_is_written(forwarded: str, expected: str) -> None:
    scope = {"type": "http", "client": ("127.0.0.1", 1), "headers": [(b"forwarded", forwarded.encode())]}
    assert client_of(scope, [ip_network("127.0.0.1")]) == expected


async def test_long_answers_are_compressed_for_clients_that_say_so(home: Place) -> None:
    """With the better of the encodings that the client accepts; short answers and streams are not."""
    text = "A long text that says the same thing again. " * 2_000
    await home.admin.post(f"{AGENTS}/ada/archival", json={"content": text})
    expected = (await home.admin.get(f"{AGENTS}/ada/archival", headers={"Accept-Encoding": "identity"})).content
    assert len(expected) > border.COMPRESSED_HERE_BYTES_MAX

    async def raw(path: str, accepted: str) -> tuple[str | None, bytes]:
        async with home.admin.stream("GET", path, headers={"Accept-Encoding": accepted}) as answer:
            body = b"".join([piece async for piece in answer.aiter_raw()])
            assert int(answer.headers["content-length"]) == len(body)
            if len(body) > 1024 or "content-encoding" in answer.headers:
                assert answer.headers["vary"] == "Accept-Encoding"
            return answer.headers.get("content-encoding"), body

    for accepted, encoding, unpack in (
        ("gzip", "gzip", gzip.decompress),
        ("gzip;q=0.5, zstd ; q=0.1", "zstd", zstandard.decompress),
        ("gzip;q=0, zstd;q=0.000, *;q=0.1", None, bytes),
        ("deflate, br", None, bytes),
        ("", None, bytes),
    ):
        found, body = await raw(f"{AGENTS}/ada/archival", accepted)
        assert (found, unpack(body)) == (encoding, expected), accepted
        assert encoding is None or len(body) < len(expected) / 10
    assert (await raw("/me", "gzip"))[0] is None, "too short"
    compressed, described = await raw(home.url + "/openapi.json", "zstd")
    assert compressed == "zstd"
    assert json.loads(zstandard.decompress(described))["openapi"]
    await home.admin.patch(f"{AGENTS}/ada", json={"system_prompt": text[:3_000]})
    tagged = await home.admin.get(f"{AGENTS}/ada", headers={"Accept-Encoding": "gzip"})
    assert "etag" in tagged.headers
    assert len(tagged.content) > border.COMPRESSED_BYTES_MIN
    assert "content-encoding" not in tagged.headers
    async with home.admin.stream("GET", "/constellations/home/events", headers={"Accept-Encoding": "gzip"}) as stream:
        assert "content-encoding" not in stream.headers
        assert await anext(stream.aiter_raw()) == b"retry: 1000\n\n"


FOREIGN = "https://evil.example"
PAGES = [
    # method, headers, whether the request is served
    ("POST", {"Origin": FOREIGN}, False),
    ("PATCH", {"Origin": FOREIGN}, False),
    ("DELETE", {"Origin": "null"}, False),
    ("POST", {"Origin": "http://["}, False),
    ("POST", {"Origin": "http://203.0.113.5"}, False),  # an address is somebody else's as a name is
    ("POST", {"Origin": "http://127.0.0.1.evil.example"}, False),
    ("POST", {"Sec-Fetch-Site": "cross-site"}, False),
    ("POST", {"Sec-Fetch-Site": "same-site"}, False),
    ("GET", {"Origin": FOREIGN, "Upgrade": "websocket"}, False),
    ("GET", {"Origin": FOREIGN, "Sec-Fetch-Site": "cross-site"}, True),  # the browser shows no answer to it
    ("POST", {}, True),
    ("POST", {"Sec-Fetch-Site": "same-origin"}, True),
    ("POST", {"Sec-Fetch-Site": "none"}, True),
    ("POST", {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "cross-site"}, True),
    ("POST", {"Origin": "https://a.pattern.example.org", "Host": "127.0.0.1"}, True),
    ("POST", {"Origin": "http://10.0.0.9:8470", "Host": "10.0.0.9:8470"}, True),
    ("POST", {"Origin": "https://chat.example"}, True),  # one that is configured
]


@pytest.mark.parametrize(("method", "headers", "is_served"), PAGES)
async def test_pages_of_other_sites_change_nothing(
    alone: Path, method: str, headers: dict[str, str], is_served: bool
) -> None:
    config = config_for(alone, http={"cors_origins": ["https://chat.example"]}, allowed_hosts=["pattern.example.org"])
    async with serving(config) as place:
        for path in (f"{API}/constellations", f"{API}/auth/login", f"{API}/no/such/route"):
            answer = await place.admin.request(method, place.url + path, headers=headers, json={})
            assert (answer.status_code != 403) == is_served, answer.text
            if not is_served:
                assert is_problem(answer, 403, "permission_denied")


async def test_pages_of_configured_origins_may_use_the_api(alone: Path) -> None:
    config = config_for(alone, http={"cors_origins": ["https://chat.example"]})
    async with serving(config) as place, httpx2.AsyncClient(trust_env=False) as browser:
        asked = {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "authorization,if-match"}
        url = f"{place.url}{API}/constellations/home/agents/ada"
        answer = await browser.options(url, headers={"Origin": "https://chat.example", **asked})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        assert "PATCH" in answer.headers["access-control-allow-methods"]
        assert "authorization" in answer.headers["access-control-allow-headers"].lower()
        assert "access-control-allow-credentials" not in answer.headers
        foreign = await browser.options(url, headers={"Origin": FOREIGN, **asked})
        assert foreign.status_code == 400
        assert "access-control-allow-origin" not in foreign.headers
        for given in ({"Authorization": place.admin.headers["authorization"]}, {}):  # refusals can be read, too
            answer = await browser.get(f"{place.url}{API}/me", headers={"Origin": "https://chat.example", **given})
            assert answer.headers["access-control-allow-origin"] == "https://chat.example"
            assert "Retry-After" in answer.headers["access-control-expose-headers"]


async def test_without_configured_origins_no_page_elsewhere_reads_anything(place: Place) -> None:
    for method in ("OPTIONS", "GET"):
        headers = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "GET"}
        answer = await place.admin.request(method, "/me", headers=headers)
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_an_answer_has_a_time_limit_and_what_was_accepted_continues(
    alone: Path, scripted: ScriptedProvider
) -> None:
    gate = trio.Event()
    scripted._script = iter([Paced(answer=says("Late."), gate=gate)])
    config = config_for(alone)
    async with serving(config, {"scripted": scripted}) as place:
        await place.constellation()
        config.http.__dict__["answer_timeout_s"] = 0.5  # only now: what was made before may need longer
        answer = await place.say("Hello")
        assert is_problem(answer, 503, "unavailable")
        assert "within 0.5 s" in answer.json()["detail"]
        (turn,) = (await place.admin.get("/constellations/home/turns")).json()["items"]
        async with place.admin.stream("GET", f"/constellations/home/turns/{turn['turn_id']}/events") as stream:
            await trio.sleep(0.6)  # a stream may last longer
            gate.set()
            *_, last = await read_events(stream)
        config.http.__dict__["answer_timeout_s"] = 60.0
        assert (last["event"], last["data"]["text"]) == ("turn.completed", "Late.")
        assert (await place.admin.get("/me")).status_code == 200, "the connection is still usable"
