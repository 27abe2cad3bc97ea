"""Jetstream: public posts of Bluesky as they are written, by some people, by those of a list, or with some words.

Sources: github.com/bluesky-social/jetstream (`/subscribe`, `options_update`); the lexicons app.bsky.actor.getProfiles
and app.bsky.graph.getList. A place in the stream is a time, and the stream is only nearly in that order, so that each
connection begins some seconds before its place; what comes again is known. Frames are asked for without compression.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar
from urllib.parse import urlencode

import trio

from pattern_core.errors import InvalidInput, Unavailable
from pattern_core.sources.kinds.bluesky_posts import FILTERS, POST, at, line, passes, take_filters, words
from pattern_core.sources.service import ServiceApi
from pattern_core.sources.source import UNREADABLE, Arrivals, Receive, SourceAccount, SourceEvent, SourceKind
from pattern_core.web.policy import SourceSettings
from pattern_core.web.websocket import WebSocketClosed, follow, open_websocket
from pattern_db.columns import Json

JETSTREAM, PUBLIC = "jetstream2.us-east.bsky.network", "https://public.api.bsky.app"
BACK_US = 5_000_000  # how long before its place a connection begins
CONNECTION_S = 3_600.0  # then the list is read again
AGAIN_S = 1.0  # before the next connection
FRAME_BYTES_MAX, EVENT_BYTES_MAX = 1024 * 1024, 256 * 1024  # the service leaves out larger events
PEOPLE_MAX = 10_000  # as many as the service knows for a connection
NAMED_AT_ONCE, MEMBERS_AT_ONCE = 25, 100
_API = ServiceApi(name="Bluesky", advice="it needs none here: correct `base_url`")
_ENDPOINT = re.compile(r"(?:(wss?|https?)://)?([^\s/?#:]+(?::\d+)?(?:/[^\s/?#]+)*?)(?:/subscribe)?/*")
_LIST = re.compile(r"(?:at://|https://bsky\.app/profile/)([^\s/]+)/(?:app\.bsky\.graph\.list|lists)/([^\s/]+)")


class JetstreamSource(SourceKind):
    """Listens to new posts. Changes and deletions of posts are not heard."""

    fields: ClassVar = {
        "endpoint": "host or address of a Jetstream server",
        "base_url": "address of the public API, which knows people's handles and lists",
        "list": "address of a list, as its page has it; its members are heard, too",
        "friends": FILTERS["friends"],
        "authors": "handles or DIDs of the people who are heard; none, and no list: all who say one of `words`",
        "exclude_authors": "people who are not heard",
        "words": FILTERS["words"],
        "exclude_words": "words that no post may have",
        "languages": FILTERS["languages"],
    }

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        found = take_filters(self, config, {"endpoint": JETSTREAM, "base_url": PUBLIC, "list": ""})
        if found["list"] and not _LIST.fullmatch(found["list"]):
            raise InvalidInput("`list` is such as https://bsky.app/profile/ada.example.org/lists/3kxyz")
        if not (found["list"] or found["authors"] or found["words"]):
            raise InvalidInput("name `authors`, a `list` or `words`: else all posts of the network would come")
        found["endpoint"] = address(found["endpoint"])
        for url in (found["base_url"], f"http{found['endpoint'].removeprefix('ws')}"):
            settings.check(url)
        return found

    async def listen(self, account: SourceAccount, receive: Receive) -> float:
        """Hand over posts for as long as a connection lasts, an hour at most, as `SourceKind.listen`."""
        settings, since, ended = account.settings, account.cursor.get("at"), "nothing came"
        handles, wanted = await _people(account)
        event_of = partial(_event, {**account.config, "authors": []}, handles, frozenset(wanted))
        query = {"requireHello": "true", **({} if since is None else {"cursor": since - BACK_US})}
        bounds: dict[str, Any] = {"timeout_s": settings.timeout_s, "silent_s": settings.timeout_s}
        url = f"{account.config['endpoint']}?{urlencode(query)}"
        socket = await open_websocket(settings, url, bytes_max=FRAME_BYTES_MAX, **bounds)
        began, stored, seen = trio.current_time(), since or account.clock.now_ms() * 1000, 0

        async def hear(frame: Mapping[str, Any]) -> bool:
            nonlocal seen
            seen = max(seen, _time_us(account, frame))
            return event_of(frame) is not None

        async def store(frames: Sequence[Mapping[str, Any]]) -> None:
            nonlocal stored
            stored = max(stored, *(_time_us(account, one) for one in frames))
            events = [event for event in map(event_of, frames) if event is not None]
            await receive(Arrivals(events=events, cursor={"at": stored}))

        async def beat() -> None:
            with trio.move_on_after(CONNECTION_S):
                await socket.beat(settings.timeout_s / 3)
            await socket.abort()

        async with socket:
            if since is None:  # what is written from now on is not missed if the process dies
                await receive(Arrivals(cursor={"at": stored}))
            try:
                asked = {"wantedCollections": [POST], "wantedDids": wanted, "maxMessageSizeBytes": EVENT_BYTES_MAX}
                await socket.send(json.dumps({"type": "options_update", "payload": asked}))
                await follow(socket, hear, store, beat)
            except WebSocketClosed as error:
                ended = str(error)
        # One that is silent ends sooner, unless the service answered.
        if not seen and trio.current_time() < began + 2 * settings.timeout_s:
            raise Unavailable(f"the Jetstream server was of no use: {ended}")
        await receive(Arrivals(cursor={"at": max(stored, seen)}))
        return AGAIN_S


def address(given: str) -> str:
    """Return the address of a server's stream, which may be given as a host, and with another scheme.

    Raises:
        InvalidInput: it is not an address.
    """
    if (found := _ENDPOINT.fullmatch(given.strip())) is None:
        raise InvalidInput(f"`endpoint` is such as {JETSTREAM} or wss://{JETSTREAM}/subscribe")
    return f"{'ws' if found[1] in ('ws', 'http') else 'wss'}://{found[2]}/subscribe"


def _time_us(account: SourceAccount, frame: Mapping[str, Any]) -> int:
    """Return when a frame was sent: nothing is later than now, so that a wrong time makes no one miss others."""
    sent = frame.get("time_us")
    return min(sent, account.clock.now_ms() * 1000) if type(sent) is int else 0


def _event(
    config: Mapping[str, Json], handles: Mapping[str, str], wanted: frozenset[str], frame: Mapping[str, Any]
) -> SourceEvent | None:
    """Return the event of a frame; None if it is not a new post that is heard, or cannot be read."""
    if at(frame, "commit", "operation") != "create" or at(frame, "commit", "collection") != POST:
        return None
    with suppress(*UNREADABLE):
        did, record = frame["did"], frame["commit"]["record"]
        uri, handle = f"at://{did}/{POST}/{frame['commit']['rkey']}", handles.get(did, did)
        if (wanted and did not in wanted) or not passes(config, {"did": did, "handle": handle}, record):
            return None
        text = words({"record": record, "embed": record.get("embed")}) or "[a post without words]"
        if above := line(at(record, "reply", "parent", "uri")):
            text += f"\n[in answer to {_page(above)}]"
        return SourceEvent(native=uri, text=text, link=_page(uri), author=did, author_name=handle)
    return None


def _page(uri: str) -> str:
    return uri.replace("at://", "https://bsky.app/profile/").replace(f"/{POST}/", "/post/")


async def _people(account: SourceAccount) -> tuple[dict[str, str], list[str]]:
    """Return the handles of the people who are named, by their DIDs, and the DIDs of those who are heard; none: all.

    Raises:
        PatternError: the service could not be asked, or knows none of them.
    """
    config = account.config
    found, excluded = [await _named(account, config[name]) for name in ("authors", "exclude_authors")]
    if config["list"]:
        uri, page = await _list(account), dict[str, str]()
        for _ in range(PEOPLE_MAX // MEMBERS_AT_ONCE):
            answer = await _ask(account, "app.bsky.graph.getList", {"list": uri, "limit": MEMBERS_AT_ONCE, **page})
            found |= {one["subject"]["did"]: one["subject"]["handle"] for one in answer["items"]}
            if not answer.get("cursor"):
                break
            page = {"cursor": answer["cursor"]}
    if not found and (config["list"] or config["authors"]):
        raise InvalidInput("none of the `authors`, and no member of the `list`, is known to Bluesky")
    friends = await _named(account, config["friends"])
    return excluded | friends | found, [*(friends | found)][:PEOPLE_MAX] if found else []


async def _list(account: SourceAccount) -> str:
    """Return the URI of the list, which may be configured with its owner's handle."""
    _scheme, owner, key = _LIST.split(account.config["list"])[:3]
    return f"at://{next(iter(await _named(account, [owner])), owner)}/app.bsky.graph.list/{key}"


async def _named(account: SourceAccount, names: Sequence[str]) -> dict[str, str]:
    """Return the handles of people by their DIDs, from either; those who are gone are left out."""
    found = dict[str, str]()
    for start in range(0, len(names), NAMED_AT_ONCE):
        actors = [one.removeprefix("@") for one in names[start : start + NAMED_AT_ONCE]]
        answer = await _ask(account, "app.bsky.actor.getProfiles", {"actors": actors})
        found |= {one["did"]: one["handle"] for one in answer["profiles"]}
    return found


async def _ask(account: SourceAccount, method: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
    url = f"{account.config['base_url'].rstrip('/')}/xrpc/{method}?{urlencode(query, doseq=True)}"
    return dict((await _API.call(account, url, secrets=()))[0])
