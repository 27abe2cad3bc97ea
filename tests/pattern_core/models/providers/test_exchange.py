from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from typing import Any

import httpx2
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.models.errors import ModelError, ModelGarbage, ModelNotConfigured, ModelTimeout, ModelUnreachable
from pattern_core.models.model import Delta
from pattern_core.models.providers import PROVIDERS, make_provider, not_configured
from pattern_core.models.providers.draft import Malformed, StreamEvent
from pattern_core.models.providers.exchange import EVENT_BYTES_MAX, EventDecoder
from pattern_core.models.providers.openai import OpenAIProvider
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_core.testing import says
from pattern_core.testing.wire import Play, WireServer, document
from pattern_core.testing.wire_openai import replies
from tests.pattern_core.models.providers.rig import OPENAI, connected

HELLO = replies(says("hello"))


async def test_it_opens_again_after_closing_and_keeps_the_id_of_the_request() -> None:
    named = Play(chunks=HELLO.chunks, headers={"x-request-id": "r-1"})
    async with connected(OPENAI, named, HELLO) as client:
        await client.provider.aclose()
        assert (await client.ask()).request_id == "r-1"
        await client.provider.aclose()
        await client.ask()
        assert client.server.connections == 2


async def test_closing_waits_for_the_answer_under_way() -> None:
    slow = Play(chunks=HELLO.chunks[:1], headers=HELLO.headers, never_ends=True)
    async with connected(OPENAI, slow, HELLO) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.ask)
                exchange = await client.server.arrived()
                await client.provider.aclose()
                await trio.testing.wait_all_tasks_blocked()
                assert not exchange.client_gone.is_set()
                scope.cancel()
        with trio.fail_after(60):
            await exchange.client_gone.wait()
            assert (await client.ask()).parts == says("hello").parts
            while client.server.open_connections:  # nobody else will close what that opened
                await trio.lowlevel.checkpoint()


async def test_no_proxy_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with connected(OPENAI, HELLO) as client:
        assert (await client.ask()).parts == says("hello").parts


LISTS = {
    "openai": ("/v1/models", {"data": [{"id": "a"}, {"id": "b"}, {"no": "name"}]}),
    "anthropic": ("/v1/models", {"data": [{"type": "model", "id": "a"}, {"type": "model", "id": "b"}]}),
    "google": ("/v1beta/models", {"models": [{"name": "models/a"}, {"name": "models/b"}]}),
}


@pytest.mark.parametrize("kind", LISTS)
async def test_the_models_that_a_server_lists(kind: str) -> None:
    path, answer = LISTS[kind]
    async with WireServer([document(answer), document({"hello": "world"})]) as server:
        base_url = server.url + ("/v1" if kind == "openai" else "")
        provider: Any = make_provider("x", ProviderSettings(kind=kind, base_url=base_url, api_key=Secret("k")))
        assert await provider.models() == ["a", "b"]
        assert [(request.method, request.path) for request in server.requests] == [("GET", path)]
        with pytest.raises(ModelGarbage, match="no list of models"):
            await provider.models()
        await provider.aclose()


async def test_a_body_that_does_not_end_after_the_reply_is_not_waited_for() -> None:
    async with connected(OPENAI, Play(chunks=HELLO.chunks, never_ends=True)) as client:
        with trio.fail_after(60):
            assert (await client.ask()).parts == says("hello").parts
            await client.server.exchanges[0].client_gone.wait()


@pytest.mark.parametrize(
    "bad", [(b"data: {\n\n",), (b"data: ", *[b"x" * 1_000_000] * 9), (b" " * 5_000_000, b" " * 5_000_000)]
)
async def test_what_breaks_the_format_is_given_up_at_once(bad: tuple[bytes, ...]) -> None:
    headers = {"content-type": "application/json"} if bad[0].startswith(b" ") else {}
    async with connected(OPENAI, Play(chunks=bad, headers=headers, never_ends=True)) as client:
        with trio.fail_after(60):
            with pytest.raises(ModelGarbage):
                await client.ask()
            await client.server.exchanges[0].client_gone.wait()


async def ignore(delta: Delta) -> None:
    """Show nothing."""


class Unconnected(OpenAIProvider):
    """A provider whose connections fail."""

    failure: Exception

    def _load(self) -> httpx2.AsyncClient:
        def connect(request: httpx2.Request) -> httpx2.Response:
            raise self.failure

        return httpx2.AsyncClient(transport=httpx2.MockTransport(connect))


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (httpx2.ConnectTimeout("too slow"), ModelTimeout, r"No connection to vendor \(host:1\) within 10 s\."),
        (httpx2.RemoteProtocolError("It went away."), ModelUnreachable, r"failed: It went away\. Does it run"),
    ],
)
async def test_failures_to_connect(failure: Exception, kind: type[ModelError], words: str) -> None:
    provider = Unconnected("vendor", ProviderSettings(kind="openai", base_url="http://me:pw@host:1/v1"))
    provider.failure = failure
    with pytest.raises(kind, match=words):
        await provider.ask(OPENAI.request, ignore)
    await provider.aclose()


async def test_words_that_are_no_unicode_are_no_fault_of_the_network() -> None:
    async with connected(OPENAI, HELLO) as client:
        with pytest.raises(ModelGarbage, match="surrogates"):
            await client.ask(replace(OPENAI.request, system=("\ud800",)))


def decoded(*chunks: bytes) -> list[tuple[str, str]]:
    decoder = EventDecoder()
    events: list[StreamEvent] = []
    for chunk in chunks:
        events += decoder.feed(chunk)
    return [(event.event, event.data) for event in events + decoder.end()]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [("", "a")]),
        (b"data:a\r\n\r\ndata: b\r\rdata:  c\n\n", [("", "a"), ("", "b"), ("", " c")]),
        (b"event: ping\ndata: {}\n\n", [("ping", "{}")]),
        (b"data: a\ndata: b\n\n", [("", "a\nb")]),
        (b": keep-alive\n\nid: 7\nretry: 3\n\n", []),
        (b"\xef\xbb\xbfdata: bom\n\n", [("", "bom")]),
        (b"data: no empty line", [("", "no empty line")]),
        (b"data: \xe2\x80\xa8 is no line end, nor is \xc2\x85\n\n", [("", "\u2028 is no line end, nor is \x85")]),
        (b"data: \xff\n\n", [("", "\ufffd")]),
        (b"data\n\n", [("", "")]),
        (b"", []),
    ],
)
def test_events_of_known_streams(stream: bytes, events: list[tuple[str, str]]) -> None:
    assert decoded(stream) == events
    assert decoded(*(stream[at : at + 1] for at in range(len(stream)))) == events


lines = st.sampled_from(["data: a", "data: żółw", "event: x", ": comment", "", "junk", "data", "data:😀"])


@given(st.lists(st.tuples(lines, st.sampled_from(["\n", "\r", "\r\n"]))), st.lists(st.integers(0, 200), max_size=5))
def test_any_slicing_gives_the_same_events(parts: list[tuple[str, str]], cuts: list[int]) -> None:
    stream = "".join(line + end for line, end in parts).encode()
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    assert decoded(*(stream[a:b] for a, b in itertools.pairwise(edges))) == decoded(stream)


def test_an_endless_event_is_refused() -> None:
    half = b"x" * (EVENT_BYTES_MAX // 2 + 1)
    for chunks in ([half, half], [b"data: " + half + b"\n", b"data: " + half + b"\n"]):
        decoder = EventDecoder()
        decoder.feed(chunks[0])
        with pytest.raises(Malformed):
            decoder.feed(chunks[1])


def test_long_events_take_linear_time() -> None:
    decoder = EventDecoder()
    for _ in range(20_000):
        assert decoder.feed(b"y" * 100) == []
    assert len(decoder.feed(b"\ndata: end\n\n")) == 1


# How providers are made


@pytest.mark.parametrize("kind", sorted(PROVIDERS))
async def test_every_kind_is_made_by_name_and_closes_unused(kind: str) -> None:
    provider = make_provider(
        "mine", ProviderSettings(kind=kind, api_key=Secret("sk-1"), base_url="http://127.0.0.1:9/v1")
    )
    assert provider.name == "mine"
    await provider.aclose()


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("openai", ProviderSettings(kind="openai"), "Set OPENAI_API_KEY"),
        ("anthropic", ProviderSettings(kind="anthropic", api_key=Secret("")), "Set ANTHROPIC_API_KEY"),
        ("other", ProviderSettings(kind="openai"), r"\[providers.other\]"),
        ("google", ProviderSettings(kind="google"), "Set GEMINI_API_KEY"),
        ("x", ProviderSettings(kind="x", api_key=Secret("k")), "Kinds are: anthropic, embedded, google, openai"),
        ("openai", ProviderSettings(kind="openai", api_key=Secret("sk-1\n")), "Copy it again"),
        ("openai", ProviderSettings(kind="openai", api_key=Secret("schlüssel")), "Copy it again"),
    ],
)
def test_what_is_missing_is_named(name: str, settings: ProviderSettings, words: str) -> None:
    with pytest.raises(ModelNotConfigured, match=words) as caught:
        make_provider(name, settings)
    assert "schlüssel" not in str(caught.value)


def test_a_kind_that_needs_no_key_is_not_advised_to_set_one() -> None:
    advice = not_configured("embedded").message
    assert 'kind = "embedded" under [providers.embedded]' in advice and "key" not in advice.lower()


def test_another_server_may_need_no_key() -> None:
    assert make_provider("ollama", ProviderSettings(kind="openai", base_url="http://x/v1")).name == "ollama"


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:11434/v1", True),
        ("http://[::1]:8080/v1", True),
        ("http://192.168.1.7:1234/v1", True),
        ("http://100.100.1.1/v1", True),  # a shared address, of a private network over others
        ("http://localhost:8000", True),
        ("http://ollama:11434/v1", True),
        ("http://gpu.local/v1", True),
        ("http://host.docker.internal:1234/v1", True),
        ("https://api.deepseek.com", False),
        ("http://8.8.8.8/v1", False),
        ("nonsense", False),
        (None, False),
    ],
)
def test_local_servers_are_known_by_their_address(url: str | None, local: bool) -> None:
    assert OPENAI.provider(url).is_local is local


def test_the_http_client_is_not_loaded_before_it_is_used() -> None:
    code = "import pattern_core.models.providers.openai, sys; print({'httpx2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_settings_do_not_show_their_key() -> None:
    assert "very" not in f"{ProviderSettings(kind='openai', api_key=Secret('sk-very-secret'))}"
