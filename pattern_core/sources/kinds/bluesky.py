"""Bluesky, or another server of the AT Protocol: people mention the account, answer it and quote it in public threads.

Sources: the lexicons below com.atproto and app.bsky (github.com/bluesky-social/atproto/tree/main/lexicons);
atproto.com/specs/tid; docs.bsky.app/docs/advanced-guides/post-richtext (facets count bytes of UTF-8). An answer is a
record with a key that follows from its id, so a repetition writes the same record.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, ClassVar
from urllib.parse import urlencode

from pattern_core.errors import InvalidInput, NotFound, PatternError, PermissionDenied, Unavailable
from pattern_core.ids import SEQUENCE_BITS, time_of
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.kinds.bluesky_posts import FILTERS, POST, READ, Post, Thread, at, passes, take_filters
from pattern_core.sources.service import STATUS, ServiceApi
from pattern_core.sources.source import (
    UNREADABLE,
    Arrivals,
    Outgoing,
    SourceAccount,
    SourceEvent,
    SourceKind,
    bytes_of,
    split,
)
from pattern_core.untrusted import plain
from pattern_core.web.policy import SourceSettings
from pattern_db.columns import Json, iso, unix_ms

BLUESKY = "https://bsky.social"
ROOM = "public"  # who is let in is decided for all threads together: `pattern channel set NAME public allowed`
PAGES_MAX = 20  # of 100 notifications; of more than that, the oldest are left out
AT_ONCE = 25  # notifications of one poll: the thread of each is asked for
WINDOW_MS = 3_600_000  # how much later than others a notification may appear: its time is partly its author's word
URI_CHARS_MAX = 400
POST_CHARS_MAX = 300  # the limit is in graphemes; each has at least one unit of UTF-16, and each unit 3 bytes at most
PARTS_MAX = 64  # of one answer, far more than there are
MENTIONS_MAX = 3  # of one post
SESSIONS_MAX = 200
TAGS = ("llm_bot", "pattern_post")  # say that a program wrote a post; the first one is how others are known
REASONS = ("mention", "reply", "quote")
LIKE = "app.bsky.feed.like"
SHOWN_MS = 300_000  # after which a thread is shown again as a whole
_API = ServiceApi(
    name="the service",
    advice="make a new app password, and set it as the secret",
    means={"ExpiredToken": 401, "InvalidToken": 401, "NotFound": 404},
)
_LINK = re.compile(r"https?://[^\s<>\"']*[^\s<>\"'.,;:!?)\]]")
_MENTION = re.compile(r"(?<![\w@./])@((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63})(?![\w-])", re.IGNORECASE)
_SORTED_SIGNS = "234567abcdefghijklmnopqrstuvwxyz"


class BlueskyChannel(SourceKind):
    """People talk to an account in public: each thread is a conversation. Tokens are kept in memory only."""

    fields: ClassVar = {
        "handle": "the account's handle, such as ada.bsky.social",
        "password": "name of a secret below [sources.secrets] with an app password of the account",
        "base_url": "address of the account's server",
        "every_s": "how often to ask, in seconds",
        **FILTERS,
    }
    secret_fields: ClassVar = ("password",)
    every_s_min: ClassVar = 5.0
    chars_max: ClassVar = 10 * POST_CHARS_MAX
    is_idempotent: ClassVar = True

    def __init__(self) -> None:
        # By account: who it is, and its token. The oldest one ends for a new one.
        self._sessions: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        defaults = {"handle": None, "password": None, "base_url": BLUESKY, "every_s": 20.0}
        found = take_filters(self, config, defaults)
        settings.check_service(found["base_url"], BLUESKY)
        return {**found, "handle": found["handle"].removeprefix("@")}

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return new mentions, answers and quotes, the oldest first, as `SourceKind.poll`; the first look only
        remembers.
        """
        cursor, wait_s, now_ms = account.cursor, account.config["every_s"], account.clock.now_ms()
        at_ms, known, shown = cursor.get("at", 0), set(cursor.get("known", ())), {**cursor.get("shown", {})}
        listed = await self._notifications(account, at_ms - WINDOW_MS, pages=PAGES_MAX if cursor else 1)
        new = sorted(name for name in listed if name[1] not in known)
        events = list[SourceEvent]()
        if cursor:
            if not new:
                return Arrivals(cursor=cursor, wait_s=wait_s)
            wait_s = 0.0 if len(new) > AT_ONCE else wait_s
            new = new[:AT_ONCE]
            for place, name in enumerate(new):
                try:
                    with suppress(*UNREADABLE):  # one that no one can read stops no other
                        events += await self._events(account, listed[name], shown)
                except PatternError:
                    if not place:
                        raise
                    new, wait_s = new[:place], 0.0  # the others are asked for again, and fail alone
                    break
        past = [ms for ms, _digest in new if ms <= now_ms]  # one that is dated in the future hides no other
        at_ms = max([at_ms, *past])
        known |= {digest for _ms, digest in new}
        kept = [digest for ms, digest in sorted(listed) if digest in known and ms > at_ms - WINDOW_MS]
        shown = {top: ms for top, ms in shown.items() if ms > now_ms - SHOWN_MS}
        return Arrivals(events=events, cursor={"at": at_ms, "known": kept, "shown": shown}, wait_s=wait_s)

    async def _notifications(self, account: SourceAccount, since_ms: int, *, pages: int) -> dict[tuple[int, str], Json]:
        """Return the notifications since a time, by their times and the digests of their posts."""
        found, page = dict[tuple[int, str], Json](), None
        for _ in range(pages):
            asked = {"limit": 100, "reasons": REASONS, **({"cursor": page} if page else {})}
            answer = await self._call(account, "app.bsky.notification.listNotifications", asked)
            is_last = not answer["notifications"]
            for one in answer["notifications"]:
                with suppress(*UNREADABLE):
                    ms, uri = unix_ms(one["indexedAt"]), _text(one, "uri")
                    is_last |= ms <= since_ms
                    if ms > since_ms and one["reason"] in REASONS and len(uri) <= URI_CHARS_MAX:
                        found[ms, _digest(uri)] = one
            page = answer.get("cursor")
            if is_last or not page:
                break
        return found

    async def _events(self, account: SourceAccount, found: Json, shown: dict[str, int]) -> list[SourceEvent]:
        """Return the event of a notification; none if its post is gone, or is not heard. `shown` says when each thread
        was shown last, and is changed.
        """
        config, me, now_ms = account.config, (await self._session(account))[0], account.clock.now_ms()
        uri, author, record = _text(found, "uri"), found["author"], found["record"]
        did, handle = _text(author, "did"), _text(author, "handle")
        if did == me or not passes(config, author, record, me):
            return []
        thread = await self._thread(account, {"uri": uri, "author": author, "record": record})
        if thread is None or thread.is_refused(config):
            return []
        top, is_meant = thread.above[0], thread.is_meant(config, me, found["reason"])
        is_known = now_ms - shown.get(_digest(top["uri"]), -SHOWN_MS) < SHOWN_MS
        tags, labels = record.get("tags"), author.get("labels") or []
        event = SourceEvent(
            native=uri,
            text=thread.shown(config, me, is_known=is_known),
            link=f"https://bsky.app/profile/{did}/post/{uri.rpartition('/')[2]}",
            author=did,
            author_name=f"{author.get('displayName') or ''} (@{handle})".strip(),
            chat=top["uri"],
            chat_name=f"thread of @{top['author']['handle']}",
            room=ROOM,
            is_addressed=is_meant,
            is_bot="bot" in [one.get("val") for one in labels] or (isinstance(tags, list) and TAGS[0] in tags),
            files=thread.images(is_known=is_known),
        )
        if is_meant:  # else no one is shown it
            shown[_digest(top["uri"])] = now_ms
        return [event]

    async def _thread(self, account: SourceAccount, post: Post) -> Thread | None:
        """Return the thread of a post, as it is seen from its parent if there is one, which shows other answers, too;
        None if it is gone, or may hold what is excluded.
        """
        is_unreadable = False
        for place in (at(post, "record", "reply", "parent", "uri"), post["uri"]):
            if not isinstance(place, str) or len(place) > URI_CHARS_MAX:
                continue
            try:
                answer = await self._call(account, "app.bsky.feed.getPostThread", {"uri": place, **READ})
                if (thread := Thread.of(answer["thread"], post["uri"])) is not None:
                    return thread
            except NotFound:
                continue  # perhaps only the parent is gone
            except (PatternError, *UNREADABLE) as error:
                details = getattr(error, "details", {IS_FINAL: True})
                if not details.get(IS_FINAL) and details.get(STATUS) != 500:
                    raise
                is_unreadable = True  # also later: too long, or a fault of the service with this thread alone
        # Who else is in a thread that cannot be read is not known.
        is_strict = account.config["exclude_authors"] or account.config["exclude_words"]
        return Thread(post=post) if is_unreadable and not is_strict else None

    async def send(self, account: SourceAccount, chat: str, said: Outgoing, send_id: str) -> None:
        """Answer a post, in several posts if need be, or like it if the answer is `like`, as `SourceKind.send`.

        What answers no post is put below the first one of the thread.
        """
        uri, text = said.reply_to or chat, said.text
        found = (await self._call(account, "app.bsky.feed.getPosts", {"uris": [uri]}))["posts"]
        post = next((one for one in found if one["uri"] == uri), None)
        is_like = text.strip().casefold() == "like"
        place = _answerable(post, is_like=is_like)
        made: dict[str, Json] = {"createdAt": iso(time_of(send_id.rpartition("_")[2]))}
        if is_like:
            await self._put(account, send_id, 0, {"$type": LIKE, "subject": place, **made})
            return
        root = _place(at(post, "record", "reply", "root") or place)
        for part, words in enumerate(split(plain(text), POST_CHARS_MAX)):
            record = {"$type": POST, "text": words, "tags": TAGS, "reply": {"root": root, "parent": place}, **made}
            if facets := await self._facets(account, words):
                record["facets"] = facets
            place = await self._put(account, send_id, part, record)

    async def download(self, account: SourceAccount, ref: str) -> bytes:
        """Return the bytes of an image, as `SourceKind.download`."""
        return bytes_of(await account.fetch(ref))

    async def _put(self, account: SourceAccount, send_id: str, part: int, record: Json) -> dict[str, Json]:
        """Write a record, or the same one again; return its place."""
        key, (repo, _token) = record_key(account.row.id, send_id, part), await self._session(account)
        body = {"repo": repo, "collection": record["$type"], "rkey": key, "record": record}
        return _place(await self._call(account, "com.atproto.repo.putRecord", body=body))

    async def _facets(self, account: SourceAccount, text: str) -> list[Json]:
        """Return what makes links and mentions of a text's words."""
        found = [(one, {"$type": "app.bsky.richtext.facet#link", "uri": one[0]}) for one in _LINK.finditer(text)]
        for one in [*_MENTION.finditer(text)][:MENTIONS_MAX]:
            with suppress(InvalidInput, NotFound):  # no one has this handle
                answer = await self._call(account, "com.atproto.identity.resolveHandle", {"handle": one[1]})
                found.append((one, {"$type": "app.bsky.richtext.facet#mention", "did": _text(answer, "did")}))
        spans = [[len(text[:place].encode()) for place in one.span()] for one, _feature in found]
        return [
            {"index": {"byteStart": start, "byteEnd": end}, "features": [feature]}
            for (start, end), (_one, feature) in zip(spans, found, strict=True)
        ]

    async def _call(
        self, account: SourceAccount, method: str, query: Mapping[str, Any] | None = None, body: Json = None
    ) -> Mapping[str, Any]:
        """Call a method and return its answer; with a `body` it is a procedure. A token that has ended is replaced."""
        session = await self._session(account)
        path = f"{method}?{urlencode(query, doseq=True)}" if query else method
        try:
            return await _ask(account, path, session[1], body)
        except PermissionDenied as error:
            if error.details.get(STATUS) != 401:
                raise
        if self._sessions.get(account.row.id) is session:  # else another task has replaced it
            del self._sessions[account.row.id]
        return await _ask(account, path, (await self._session(account))[1], body)

    async def _session(self, account: SourceAccount) -> tuple[str, str]:
        """Return the DID of the account and its token, which it signs in for if there is none."""
        if account.row.id not in self._sessions:
            given = {"identifier": account.config["handle"], "password": await account.secret("password")}
            found = await _ask(account, "com.atproto.server.createSession", "", given)
            if not isinstance(at(found, "did"), str) or not isinstance(at(found, "accessJwt"), str):
                raise Unavailable("the service signed in the account without saying who it is")
            self._sessions[account.row.id] = found["did"], found["accessJwt"]
            while len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)
        return self._sessions[account.row.id]


def record_key(account_id: str, send_id: str, part: int) -> str:
    """Return the key of a record, a TID, which is the same for a part of an answer for ever.

    Its time is that of the answer's id, its order there that of the answers of one millisecond and of their parts. The
    last bits are the account's, as another constellation may use the same one.
    """
    position = send_id.rpartition("_")[2]
    order = int(position) % (1 << SEQUENCE_BITS) * PARTS_MAX + part
    salt = blake2b(account_id.encode(), digest_size=1).digest()[0]
    number = (time_of(position) * 1000 << 10) + (order % 4000 << 8 | salt)
    return "".join(_SORTED_SIGNS[number >> shift & 31] for shift in range(60, -1, -5))


def _text(found: Mapping[str, Any], key: str) -> str:
    """Return a text that must be there; what is raised if it is not is one of `UNREADABLE`."""
    if not isinstance(value := found[key], str) or not value:
        raise TypeError(f"{key} is not a text")
    return value


def _digest(uri: str) -> str:
    return blake2b(uri.encode(), digest_size=8).hexdigest()


def _place(found: Mapping[str, Any]) -> dict[str, Json]:
    return {"uri": _text(found, "uri"), "cid": _text(found, "cid")}


def _answerable(post: Post | None, *, is_like: bool) -> dict[str, Json]:
    """Return the place of a post that may be answered, or liked; refuse others permanently."""
    blocks = at(post, "author", "viewer") or {}
    if post is None:
        why = "the post is gone, or its author and this account block one another"
    elif any(blocks.get(key) for key in ("blockedBy", "blocking", "blockingByList")):
        why = "its author and this account block one another"
    elif at(post, "viewer", "replyDisabled") and not is_like:
        why = "who began the thread does not allow answers of this account"
    else:
        return _place(post)
    raise PermissionDenied(f"the answer was not posted: {why}", **{IS_FINAL: True})


async def _ask(account: SourceAccount, path: str, token: str, body: Json) -> Mapping[str, Any]:
    secrets = [one for one in (token, await account.secret("password")) if one]
    url = f"{account.config['base_url'].rstrip('/')}/xrpc/{path}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return dict((await _API.call(account, url, body, secrets=secrets, headers=headers))[0])
