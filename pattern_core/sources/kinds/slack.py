"""Slack: the agent is an app that people write to, in direct messages, channels and threads. Events come by a WebSocket
that the server opens (Socket Mode), so no public address is needed.

Sources: docs.slack.dev, "Using Socket Mode", "The Events API", "chat.postMessage", "conversations.history", "Rate
limits", "Formatting message text". An envelope is acknowledged once its event is stored. If that lasts longer than
three seconds the service sends it again, which does no harm: a message is known by its channel and its timestamp.

A session cannot be resumed, so each connection first reads what was said in the places that are known, behind the last
message of each. An answer has a `client_msg_id`, by which the service knows it again; how long is not documented, so an
answer with an unknown outcome is in doubt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar
from urllib.parse import urlencode

from pattern_core.errors import InvalidInput, NotFound, Overloaded, PatternError, PermissionDenied, Unavailable
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.service import REFUSED_S, hiding
from pattern_core.sources.source import (
    IS_UNCLEAR,
    UNREADABLE,
    Arrivals,
    Outgoing,
    Receive,
    SourceAccount,
    SourceEvent,
    SourceKind,
    take_fields,
)
from pattern_core.web.download import Download
from pattern_core.web.policy import SourceSettings
from pattern_core.web.websocket import WebSocket, WebSocketClosed, follow, json_object, open_websocket
from pattern_db.columns import Json

SLACK = "https://slack.com/api"
ENVELOPE_BYTES_MAX = 16 * 1024 * 1024
PLACES_MAX = 40  # of which the last message is known; the service allows 50 questions a minute for what was missed
PAGE = 50  # messages that are read at once
MISSED_MAX = 1_000  # of one place
NAMES_MAX = 500  # of people and channels that are kept
NAMED_MAX = 20  # mentions of a message that are shown as names
AGAIN_S = 1.0  # before the next connection
BLOCK_CHARS_MAX = 3_000
ANSWERS = {"approve": "primary", "deny": "danger"}  # buttons, with their styles
_SAID = (None, "file_share", "me_message", "thread_broadcast", "bot_message")  # subtypes that are words of someone
_ID = re.compile(r"[A-Z0-9]{1,30}")
_STAMP = re.compile(r"[0-9]{10}\.[0-9]{6}")  # names a message in its channel; later ones are greater, also as texts
_WORD = re.compile(r"[!-~]{1,1000}")
_MARKUP = re.compile(r"<([@#!]?)([^<>|]+)(?:\|([^<>]*))?>")
_TOKENS = "copy both tokens again from api.slack.com/apps: `app_token` begins with xapp-, `token` with xoxb-"
_DENIED = {
    **dict.fromkeys(
        ("invalid_auth", "not_authed", "token_revoked", "token_expired", "not_allowed_token_type"), _TOKENS
    ),
    "account_inactive": "install the app in its workspace again",
    "missing_scope": "add the scope below OAuth & Permissions at api.slack.com/apps, and install the app again",
}
_UNCLEAR = ("internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_added_to_org")
_ENDS = {
    "link_disabled": (
        PermissionDenied,
        "Socket Mode is off; switch it on at api.slack.com/apps, Socket Mode",
        REFUSED_S,
    ),
    "too_many_websockets": (Unavailable, "too many programs use this app token; stop the others", 60.0),
}


class SlackChannel(SourceKind):
    """People talk to an app: each direct chat and each thread is a conversation, and a mention begins a thread."""

    fields: ClassVar = {
        "token": "name of a secret below [sources.secrets] with the bot's token, which begins with xoxb-",
        "app_token": "name of a secret with a token of the app, which begins with xapp-, with connections:write",
        "base_url": "address of the API",
    }
    secret_fields: ClassVar = ("token", "app_token")
    chars_max: ClassVar = 4000

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        found = take_fields(self, config, {"token": None, "app_token": None, "base_url": SLACK})
        settings.check_service(found["base_url"], SLACK)
        return found

    async def listen(self, account: SourceAccount, receive: Receive) -> float:
        """Hand over events for as long as a connection lasts, as `SourceKind.listen`."""
        return await _Connection(account).run(receive)

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return what was missed in the known places, as `SourceKind.poll`; this proves both tokens."""
        connection, events = _Connection(account), list[SourceEvent]()

        async def keep(arrived: Arrivals) -> None:
            events.extend(arrived.events)

        await connection.address()
        await connection.read_missed(keep)
        return Arrivals(events=events, cursor=connection.cursor)

    async def send(self, account: SourceAccount, chat: str, said: Outgoing, send_id: str) -> None:
        """Send a message, with two buttons if it is a question, as `SourceKind.send`. It notifies no one by name."""
        channel, _, thread = chat.partition(":")
        name = blake2b(send_id.encode(), digest_size=16).hexdigest()
        message = {
            "channel": _checked(channel),
            "text": said.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
            "client_msg_id": "-".join((name[:8], name[8:12], name[12:16], name[16:20], name[20:])),
            "unfurl_links": "false",
            "unfurl_media": "false",
        }
        if thread:
            message["thread_ts"] = _checked(thread, _STAMP)
        if said.approval is not None:
            each = {"type": "button", "value": said.approval}
            buttons = [
                {**each, "action_id": name, "style": style, "text": _plain(name.title())}
                for name, style in ANSWERS.items()
            ]
            words = {"type": "section", "text": _plain(said.text[:BLOCK_CHARS_MAX])}
            message["blocks"] = json.dumps([words, {"type": "actions", "elements": buttons}])
        await _call(account, "chat.postMessage", message)


class _Connection:
    """One connection. `cursor` is what is handed over: the bot, and for each known place the last message: a channel,
    or a thread as `CHANNEL:TIMESTAMP`.
    """

    def __init__(self, account: SourceAccount) -> None:
        self.cursor: dict[str, Any] = json.loads(json.dumps({"places": {}, **account.cursor}))
        self._places: dict[str, str] = self.cursor["places"]
        self._account = account
        self._names: dict[str, str] = {}
        self._is_connected = False
        self._reason = ""  # why the service ended the connection

    async def run(self, receive: Receive) -> float:
        """Have `receive` store what comes until the connection ends; return when to connect again.

        Raises:
            PatternError: there was no connection that was of use.
        """
        url, settings = await self.address(), self._account.settings
        bounds: dict[str, Any] = {
            "bytes_max": ENVELOPE_BYTES_MAX,
            "silent_s": 2 * settings.timeout_s,
        }  # pings are answered sooner
        try:
            socket = await open_websocket(settings, url, timeout_s=settings.timeout_s, **bounds)
        except (Unavailable, NotFound) as error:  # the address holds what lets in
            raise Unavailable(error.message.replace(url, "the address that Slack gave")) from None
        with suppress(WebSocketClosed):
            async with socket:
                beat = partial(socket.beat, settings.timeout_s)
                await follow(socket, self._hear, partial(self._store, socket, receive), beat)
        if self._reason in _ENDS:
            kind, words, after_s = _ENDS[self._reason]
            raise kind(words, retry_after_s=after_s)
        if not self._is_connected:
            raise Unavailable("Slack ended the connection before it was of use")
        return AGAIN_S

    async def address(self) -> str:
        """Return where to connect, and note who the bot is."""
        self.cursor["bot"] = _checked((await _call(self._account, "auth.test"))["user_id"])
        url: str = _checked((await _call(self._account, "apps.connections.open", token="app_token"))["url"], _WORD)
        if self._account.config["base_url"].startswith("https:") and not url.startswith("wss:"):
            raise InvalidInput("Slack names a connection that is not encrypted")
        return url

    async def read_missed(self, receive: Receive) -> None:
        """Hand over what was said in the known places behind the last messages that are known, and in threads that
        began there.
        """
        read = set[str]()
        while (place := next((one for one in self._places if one not in read), None)) is not None:
            read.add(place)
            channel = place.partition(":")[0]
            try:
                messages = await self._behind(place)
            except PatternError as error:
                if not error.details.get(IS_FINAL):
                    raise
                self._places.pop(place, None)  # it was deleted, or the app is not there any more
                continue
            payloads = [{"event": {**one, "channel": channel}} for one in messages]
            events = [event for one in payloads for event in await self._events("events_api", one)]
            await receive(self._arrivals(events))

    async def _behind(self, place: str) -> Sequence[Mapping[str, Any]]:
        """Return the messages of a place behind the last one that is known, oldest first."""
        channel, _, thread = place.partition(":")
        asked = {"channel": channel, "oldest": self._places[place], "limit": str(PAGE)}
        asked |= {"ts": thread} if thread else {}
        found: dict[str, Mapping[str, Any]] = {}
        while len(found) < MISSED_MAX:
            answer = await _call(self._account, f"conversations.{'replies' if thread else 'history'}", asked)
            for one in answer["messages"]:
                with suppress(*UNREADABLE):
                    found[_checked(one["ts"], _STAMP)] = one
            following = (answer.get("response_metadata") or {}).get("next_cursor")
            if not following or following == asked.get("cursor"):
                break
            asked["cursor"] = following
        return [found[one] for one in sorted(found) if one > asked["oldest"]]

    async def _hear(self, envelope: Mapping[str, Any]) -> bool | None:
        """Return True, since all is acknowledged; None if the connection is to end: what still comes, comes again."""
        if envelope.get("type") == "disconnect":
            self._reason = str(envelope.get("reason"))
            return None
        self._is_connected = self._is_connected or envelope.get("type") == "hello"
        return True

    async def _store(self, socket: WebSocket, receive: Receive, batch: Sequence[Mapping[str, Any]]) -> None:
        """Store events, then acknowledge them; what was missed comes before the first one."""
        events = list[SourceEvent]()
        for envelope in batch:
            if envelope.get("type") == "hello":
                await self.read_missed(receive)
                await receive(self._arrivals([]))
            events += await self._events(envelope.get("type"), envelope.get("payload"))
        if events:
            await receive(self._arrivals(events))
        for envelope in batch:
            if isinstance(envelope.get("envelope_id"), str):
                await socket.send(json.dumps({"envelope_id": envelope["envelope_id"]}))

    def _arrivals(self, events: Sequence[SourceEvent]) -> Arrivals:
        return Arrivals(events=events, cursor=json.loads(json.dumps(self.cursor)))

    async def _events(self, kind: object, payload: Any) -> Sequence[SourceEvent]:
        """Return the event of an envelope; none if it cannot be read, or is not for the bot."""
        with suppress(*UNREADABLE):
            if kind == "events_api" and payload["event"]["type"] in ("message", "app_mention"):
                return await self._message(payload["event"])
            if kind == "interactive" and payload["actions"][0]["action_id"] in ANSWERS:
                return [await self._pressed(payload)]
        return []

    async def _message(self, data: Mapping[str, Any]) -> Sequence[SourceEvent]:
        """Return the event of a message if it is for the bot. Others are not even stored: a room may have thousands."""
        channel, said, edited = _checked(data["channel"]), data, ""
        if data.get("subtype") == "message_changed":
            said = data["message"]
            edited = f"/{_checked(said['edited']['ts'], _STAMP)}"  # it has none when only a preview was added
        number, text, bot = _checked(said["ts"], _STAMP), str(said.get("text") or ""), self.cursor["bot"]
        author = _checked(said.get("user") or said["bot_id"])
        thread = f"{channel}:{_checked(said.get('thread_ts') or number, _STAMP)}"
        place = channel if thread.endswith(number) else thread
        if place in self._places:
            self._places[place] = max(self._places[place], number)
        is_direct = channel.startswith("D")
        is_meant = data.get("channel_type", "im") == "im" if is_direct else f"<@{bot}" in text
        if author == bot or said.get("subtype") not in _SAID or not is_meant:
            return []
        for one in (place,) if is_direct else (place, thread):  # in a room, the answer begins a thread
            self._remember(one, number)
        files = [f"[file {one.get('name', '')}]" for one in said.get("files", ())]
        shown = "\n".join(filter(None, [(await self._words(text)).strip(), *files]))
        about: dict[str, Any] = {
            "native": f"{channel}/{number}{edited}",
            "text": f"{'(edited) ' if edited else ''}{shown or '[something that cannot be shown]'}",
            "author": author,
            "author_name": await self._name("users.info", "user", author),
            "is_bot": "bot_id" in said,
        }
        return [SourceEvent(**about, **await self._where(channel, place if is_direct else thread))]

    async def _pressed(self, payload: Mapping[str, Any]) -> SourceEvent:
        action, where, user = payload["actions"][0], payload["container"], payload["user"]
        channel, author, thread = _checked(where["channel_id"]), _checked(user["id"]), where.get("thread_ts")
        return SourceEvent(
            native=f"{channel}/{_checked(action['action_ts'], _STAMP)}/{author}",
            text="",
            author=author,
            author_name=str(user.get("name") or author),
            decides=(_checked(action["value"], _WORD), action["action_id"] == "approve"),
            **await self._where(channel, f"{channel}:{_checked(thread, _STAMP)}" if thread else channel),
        )

    async def _where(self, channel: str, chat: str) -> Mapping[str, Any]:
        """Return the fields of an event that say where it was. A thread is in the room of its channel."""
        if channel.startswith("D"):
            return {"chat": chat}
        name = await self._name("conversations.info", "channel", channel)
        return {"chat": chat, "room": channel, "chat_name": f"#{name}"}

    def _remember(self, place: str, number: str) -> None:
        self._places[place] = max(self._places.pop(place, number), number)
        while len(self._places) > PLACES_MAX:
            del self._places[next(iter(self._places))]

    async def _words(self, text: str) -> str:
        """Return what a message says, with names instead of ids; the bot's is left out."""
        names, people = {self.cursor["bot"]: ""}, [native for sign, native, _ in _MARKUP.findall(text) if sign == "@"]
        for native in dict.fromkeys(people[:NAMED_MAX]):
            names.setdefault(native, f"@{await self._name('users.info', 'user', native)}")

        def shown(found: re.Match[str]) -> str:
            sign, native, label = found[1], found[2], found[3] or found[2]
            if sign:
                return (
                    names.get(native, f"@{native}") if sign == "@" else f"{sign.replace('!', '@')}{label.lstrip('@')}"
                )
            return native if label in native else f"{label} ({native})"

        words = _MARKUP.sub(shown, text)
        return words.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")

    async def _name(self, method: str, about: str, native: str) -> str:
        """Return what a person or a channel is called; its id if the app may not know."""
        if native not in self._names:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            self._names[native] = native
            with suppress(PatternError, *UNREADABLE):
                found = (await _call(self._account, method, {about: native}))[about]
                profile = found.get("profile") or {}
                self._names[native] = str(profile.get("display_name") or found.get("real_name") or found["name"])
        return self._names[native]


async def _call(
    account: SourceAccount, method: str, given: Mapping[str, str] | None = None, *, token: str = "token"
) -> Mapping[str, Any]:
    """Call a method of the Web API, and return its answer. No error shows the token.

    Raises:
        Overloaded: too many requests; `details["retry_after_s"]` says when to continue.
        InvalidInput: the service will never accept this.
        PermissionDenied: the app may not do this, or a token is wrong.
        Unavailable: there was no answer that could be read; whether it was done is unclear, unless it was not sent.
    """
    secret = await account.secret(token)
    if not _WORD.fullmatch(secret):
        raise InvalidInput(f"the secret of `{token}` holds characters that no token has; copy it again")
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/x-www-form-urlencoded"}
    url = f"{account.config['base_url'].rstrip('/')}/{method}"
    body = urlencode(given or {}, errors="replace").encode()
    with hiding(url, (secret,)):
        page = await account.fetch(url, headers=headers, body=body, redirects_max=0)
    return _result(page)


def _result(page: Download) -> Mapping[str, Any]:
    answer = json_object(page.body.decode("utf-8", "replace"))
    code = str(answer.get("error") or f"HTTP status {page.status}")[:100]
    if page.status == 429 or code in ("ratelimited", "rate_limited"):
        raise Overloaded("Slack wants fewer requests", retry_after_s=page.retry_after_s or 30)
    # One that was sent before, and deleted since, is not sent again.
    if page.status == 200 and (answer.get("ok") is True or code == "duplicate_message_not_found"):
        return answer
    if page.is_cut:
        raise InvalidInput("Slack's answer is too long to be read", **{IS_FINAL: True})
    if code in _DENIED:
        words = f"Slack answered {code} {answer.get('needed', '')}".strip()[:200]
        raise PermissionDenied(f"{words}: {_DENIED[code]}", retry_after_s=REFUSED_S)
    if page.status == 200 and "error" in answer and code not in _UNCLEAR:
        raise InvalidInput(f"Slack refused this: {code}", **{IS_FINAL: True})
    raise Unavailable(f"Slack answered with {code}", **{IS_UNCLEAR: True})


def _plain(text: str) -> Mapping[str, Json]:
    return {"type": "plain_text", "text": text, "emoji": False}


def _checked(value: object, form: re.Pattern[str] = _ID) -> str:
    """Return an id of a person or a channel, or what has another form.

    Raises:
        ValueError: it is none.
    """
    if not (isinstance(value, str) and form.fullmatch(value)):
        raise ValueError(f"not as the protocol says: {str(value)[:50]}")
    return value
