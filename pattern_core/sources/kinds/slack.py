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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar
from urllib.parse import urlencode, urlsplit

from pattern_core.errors import InvalidInput, PatternError, PermissionDenied, Unavailable
from pattern_core.sources.gateway import Gateway, GatewayKind
from pattern_core.sources.service import BUTTONS, REFUSED_S, ServiceApi, checked, hiding, pressed
from pattern_core.sources.source import UNREADABLE, Outgoing, Receive, SourceAccount, SourceEvent, SourceFile, bytes_of
from pattern_core.web.websocket import WebSocket
from pattern_db.columns import Json

PLACES_MAX = 40  # of which the last message is known; the service allows 50 questions a minute for what was missed
PAGE = 50  # messages that are read at once
MISSED_MAX = 1_000  # of one place
NAMES_MAX = 500  # of people and channels that are kept
NAMED_MAX = 20  # mentions of a message that are shown as names
BLOCK_CHARS_MAX = 3_000
STYLES = ("primary", "danger")  # of the buttons
_SAID = (None, "file_share", "me_message", "thread_broadcast", "bot_message")  # subtypes that are words of someone
_ID = re.compile(r"[A-Z0-9]{1,30}")
_STAMP = re.compile(r"[0-9]{10}\.[0-9]{6}")  # names a message in its channel; later ones are greater, also as texts
_MARKUP = re.compile(r"<([@#!]?)([^<>|]+)(?:\|([^<>]*))?>")
_API = ServiceApi(
    name="Slack",
    advice="copy both tokens again from api.slack.com/apps: `app_token` begins with xapp-, `token` with xoxb-",
    advices={
        "account_inactive": "install the app in its workspace again",
        "missing_scope": "add the scope below OAuth & Permissions at api.slack.com/apps, and install the app again",
    },
    means={
        **dict.fromkeys(("invalid_auth", "not_authed", "token_revoked", "token_expired"), 401),
        **dict.fromkeys(("not_allowed_token_type", "account_inactive", "missing_scope"), 401),
        **dict.fromkeys(("internal_error", "fatal_error", "service_unavailable", "request_timeout"), 500),
        "team_added_to_org": 500,
        **dict.fromkeys(("ratelimited", "rate_limited"), 429),
        "duplicate_message_not_found": 200,  # it was sent before, and deleted since: it is not sent again
    },
)
_ENDS: Mapping[str, tuple[type[PatternError], str, float]] = {
    "link_disabled": (PermissionDenied, "Socket Mode is off; switch it on at api.slack.com/apps", REFUSED_S),
    "too_many_websockets": (Unavailable, "too many programs use this app token; stop the others", 60.0),
}


class _Connection(Gateway):
    """One connection. `cursor` holds the bot, and for each known place the last message: a channel, or a thread as
    `CHANNEL:TIMESTAMP`.
    """

    service: ClassVar = "Slack"
    places_max: ClassVar = PLACES_MAX

    def __init__(self, account: SourceAccount) -> None:
        super().__init__(account)
        self._names: dict[str, str] = {}

    async def connected(self) -> WebSocket:
        """Return a new connection; pings are answered sooner than it may be silent."""
        return await self.open(await self._address(), silent_s=2 * self.account.settings.timeout_s)

    async def prove(self) -> None:
        """Ask whether both tokens are accepted, as `Gateway.prove`."""
        await self._address()

    async def _address(self) -> str:
        """Return where to connect, and note who the bot is."""
        self.cursor["bot"] = checked((await _call(self.account, "auth.test"))["user_id"], _ID)
        return checked((await _call(self.account, "apps.connections.open", token="app_token"))["url"])

    async def begin(self, socket: WebSocket) -> Callable[[], Awaitable[None]]:
        """Return what sends pings: their answers prove that the connection is not half open."""
        return partial(socket.beat, self.account.settings.timeout_s)

    async def behind(self, place: str) -> tuple[Sequence[SourceEvent], bool]:
        """Return what was said in a place, as `Gateway.behind`: all of it, since the newest comes first."""
        channel, _, thread = place.partition(":")
        asked = {"channel": channel, "oldest": self.places[place], "limit": str(PAGE)}
        asked |= {"ts": thread} if thread else {}
        found: dict[str, Mapping[str, Any]] = {}
        while len(found) < MISSED_MAX:
            answer = await _call(self.account, f"conversations.{'replies' if thread else 'history'}", asked)
            for one in answer["messages"]:
                with suppress(*UNREADABLE):
                    found[checked(one["ts"], _STAMP)] = one
            following = (answer.get("response_metadata") or {}).get("next_cursor")
            if not following or following == asked.get("cursor"):
                break
            asked["cursor"] = following
        new = [{"event": {**found[one], "channel": channel}} for one in sorted(found) if one > asked["oldest"]]
        return [event for one in new for event in await self.read("events_api", one)], False

    async def hear(self, socket: WebSocket, found: Mapping[str, Any]) -> bool | None:
        """Return True, since all is acknowledged; None if the connection is to end: what still comes, comes again."""
        if found.get("type") == "disconnect":
            if (end := _ENDS.get(str(found.get("reason")))) is not None:
                self.failure = end[0](end[1], retry_after_s=end[2])
            return None
        self.is_connected = self.is_connected or found.get("type") == "hello"
        return True

    async def store(self, socket: WebSocket, receive: Receive, batch: Sequence[Mapping[str, Any]]) -> None:
        """Store events, then acknowledge them; what was missed comes before the first one."""
        events = list[SourceEvent]()
        for envelope in batch:
            if envelope.get("type") == "hello":
                await self.missed(receive)
                await receive(self.arrivals())
            events += await self.read(envelope.get("type"), envelope.get("payload"))
        if events:
            await receive(self.arrivals(events))
        for envelope in batch:
            if isinstance(envelope.get("envelope_id"), str):
                await socket.send(json.dumps({"envelope_id": envelope["envelope_id"]}))

    async def events(self, name: object, data: Any) -> Sequence[SourceEvent]:
        """Return the event of an envelope, as `Gateway.events`; none if it is not for the bot."""
        if name == "events_api" and data["event"]["type"] in ("message", "app_mention"):
            return await self._message(data["event"])
        if name == "interactive" and data["actions"][0]["action_id"] in dict(BUTTONS).values():
            return [await self._pressed(data)]
        return []

    async def _message(self, data: Mapping[str, Any]) -> Sequence[SourceEvent]:
        """Return the event of a message if it is for the bot. Others are not even stored: a room may have thousands."""
        channel, said, edited = checked(data["channel"], _ID), data, ""
        if data.get("subtype") == "message_changed":
            said = data["message"]
            edited = f"/{checked(said['edited']['ts'], _STAMP)}"  # it has none when only a preview was added
        number, text, bot = checked(said["ts"], _STAMP), str(said.get("text") or ""), self.cursor["bot"]
        author = checked(said.get("user") or said["bot_id"], _ID)
        thread = f"{channel}:{checked(said.get('thread_ts') or number, _STAMP)}"
        place = channel if thread.endswith(number) else thread
        if place in self.places:
            self.places[place] = max(self.places[place], number)
        is_direct = channel.startswith("D")
        is_meant = data.get("channel_type", "im") == "im" if is_direct else f"<@{bot}" in text
        if author == bot or said.get("subtype") not in _SAID or not is_meant:
            return []
        for one in (place,) if is_direct else (place, thread):  # in a room, the answer begins a thread
            self.remember(one, max(self.places.get(one, number), number))
        files = [_file(one) for one in said.get("files", ())] if not edited else []
        shown = (await self._words(text)).strip() or ("" if files else "[something that cannot be shown]")
        event = SourceEvent(
            native=f"{channel}/{number}{edited}",
            text=f"{'(edited) ' if edited else ''}{shown}",
            files=files,
            author=author,
            author_name=await self._name("users.info", "user", author),
            is_bot="bot_id" in said,
            **await self._where(channel, place if is_direct else thread),
        )
        return [event]

    async def _pressed(self, data: Mapping[str, Any]) -> SourceEvent:
        action, where, user = data["actions"][0], data["container"], data["user"]
        channel, author, thread = checked(where["channel_id"], _ID), checked(user["id"], _ID), where.get("thread_ts")
        return SourceEvent(
            native=f"{channel}/{checked(action['action_ts'], _STAMP)}/{author}",
            text="",
            author=author,
            author_name=str(user.get("name") or author),
            decides=pressed(checked(action["value"])),
            **await self._where(channel, f"{channel}:{checked(thread, _STAMP)}" if thread else channel),
        )

    async def _where(self, channel: str, chat: str) -> Mapping[str, Any]:
        """Return the fields of an event that say where it was. A thread is in the room of its channel."""
        if channel.startswith("D"):
            return {"chat": chat}
        name = await self._name("conversations.info", "channel", channel)
        return {"chat": chat, "room": channel, "chat_name": f"#{name}"}

    async def _words(self, text: str) -> str:
        """Return what a message says, with names instead of ids; the bot's is left out."""
        names, people = {self.cursor["bot"]: ""}, [native for sign, native, _ in _MARKUP.findall(text) if sign == "@"]
        for native in dict.fromkeys(people[:NAMED_MAX]):
            names.setdefault(native, f"@{await self._name('users.info', 'user', native)}")

        def shown(found: re.Match[str]) -> str:
            sign, native, label = found[1], found[2], found[3] or found[2]
            if sign == "@":
                return names.get(native, f"@{native}")
            if sign:
                return f"{sign.replace('!', '@')}{label.lstrip('@')}"
            return native if label in native else f"{label} ({native})"

        return _MARKUP.sub(shown, text).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")

    async def _name(self, method: str, about: str, native: str) -> str:
        """Return what a person or a channel is called; its id if the app may not know."""
        if native not in self._names:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            self._names[native] = native
            with suppress(PatternError, *UNREADABLE):
                found = (await _call(self.account, method, {about: native}))[about]
                profile = found.get("profile") or {}
                self._names[native] = str(profile.get("display_name") or found.get("real_name") or found["name"])
        return self._names[native]


class SlackChannel(GatewayKind):
    """People talk to an app: each direct chat and each thread is a conversation, and a mention begins a thread."""

    fields: ClassVar = {
        "token": "name of a secret below [sources.secrets] with the bot's token, which begins with xoxb-",
        "app_token": "name of a secret with a token of the app, which begins with xapp-, with connections:write",
        "base_url": "address of the API",
    }
    secret_fields: ClassVar = ("token", "app_token")
    home: ClassVar = "https://slack.com/api"
    chars_max: ClassVar = 4000
    gateway: ClassVar = _Connection

    async def send(self, account: SourceAccount, chat: str, said: Outgoing, send_id: str) -> None:
        """Send a message, with two buttons if it is a question, as `SourceKind.send`. It notifies no one by name."""
        channel, _, thread = chat.partition(":")
        name = blake2b(send_id.encode(), digest_size=16).hexdigest()
        message = {
            "channel": checked(channel, _ID),
            "text": said.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
            "client_msg_id": "-".join((name[:8], name[8:12], name[12:16], name[16:20], name[20:])),
            "unfurl_links": "false",
            "unfurl_media": "false",
        }
        if thread:
            message["thread_ts"] = checked(thread, _STAMP)
        if said.approval is not None:
            each = [(sign, _plain(label), style) for (label, sign), style in zip(BUTTONS, STYLES, strict=True)]
            buttons = [
                {"type": "button", "action_id": sign, "value": f"{sign}:{said.approval}", "text": text, "style": style}
                for sign, text, style in each
            ]
            words = {"type": "section", "text": _plain(said.text[:BLOCK_CHARS_MAX])}
            message["blocks"] = json.dumps([words, {"type": "actions", "elements": buttons}])
        await _call(account, "chat.postMessage", message)

    async def download(self, account: SourceAccount, ref: str) -> bytes:
        """Return the bytes of a file, as `SourceKind.download`. The token is sent to the service alone."""
        api, place, token = urlsplit(account.config["base_url"]), urlsplit(ref), await _API.secret(account)
        if place.scheme != api.scheme or not f".{place.hostname}".endswith(f".{api.hostname}"):
            raise InvalidInput("it is not at Slack; ask for the file itself")
        with hiding(ref, (token,)):
            return bytes_of(await account.fetch(ref, headers={"Authorization": f"Bearer {token}"}, redirects_max=0))


async def _call(
    account: SourceAccount, method: str, given: Mapping[str, str] | None = None, *, token: str = "token"
) -> Mapping[str, Any]:
    """Call a method of the Web API, and return its answer.

    Raises:
        PatternError: as `ServiceApi.call`.
    """
    secret = await _API.secret(account, token)
    url = f"{account.config['base_url'].rstrip('/')}/{method}"
    form = "application/x-www-form-urlencoded", urlencode(given or {}, errors="replace").encode()
    answer, _ = await _API.call(account, url, form, secrets=(secret,), headers={"Authorization": f"Bearer {secret}"})
    return dict(answer)


def _file(about: Mapping[str, Any]) -> SourceFile:
    return SourceFile(name=str(about.get("name") or "file"), ref=str(about.get("url_private") or ""))


def _plain(text: str) -> Mapping[str, Json]:
    return {"type": "plain_text", "text": text, "emoji": False}
