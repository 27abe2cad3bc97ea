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
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar
from urllib.parse import urlencode

from pattern_core.errors import InvalidInput, NotFound, PatternError, PermissionDenied, Unavailable
from pattern_core.ids import SEQUENCE_BITS, time_of
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.kinds.bluesky_posts import (
    DEPTH,
    FILTERS,
    PARENTS_MAX,
    Post,
    Thread,
    is_one_of,
    mentions,
    passes,
)
from pattern_core.sources.service import STATUS, ServiceApi
from pattern_core.sources.source import (
    UNREADABLE,
    Arrivals,
    Outgoing,
    SourceAccount,
    SourceEvent,
    SourceKind,
    split,
    take_fields,
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
POST, LIKE = "app.bsky.feed.post", "app.bsky.feed.like"
_API = ServiceApi(
    name="the service",
    advice="make a new app password, and set it as the secret",
    means={"ExpiredToken": 401, "InvalidToken": 401, "NotFound": 404},
)
_LINK = re.compile(r"https?://[^\s<>\"']*[^\s<>\"'.,;:!?)\]]")
_MENTION = re.compile(r"(?<![\w@./])@((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63})(?![\w-])", re.IGNORECASE)
_SORTED_SIGNS = "234567abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class _Session:
    """A signed-in account: who it is, and its tokens."""

    did: str
    access: str
    refresh: str


class BlueskyChannel(SourceKind):
    """People talk to an account in public: each thread is a conversation.

    Tokens are kept in memory only, and asked for again after a restart.
    """

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
        self._sessions: OrderedDict[str, _Session] = OrderedDict()  # by account; the oldest one ends for a new one

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        filters: dict[str, Json] = {name: [] for name in FILTERS} | {"mentions_only": False}
        defaults = {"handle": None, "password": None, "base_url": BLUESKY, "every_s": 20.0}
        found = take_fields(self, config, {**defaults, **filters})
        for name in FILTERS:
            if isinstance(found[name], list) and not all(isinstance(one, str) and one for one in found[name]):
                raise InvalidInput(f"`{name}` is a list of texts: {FILTERS[name]}")
        settings.check_service(found["base_url"], BLUESKY)
        return {**found, "handle": found["handle"].removeprefix("@")}

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return new mentions, answers and quotes, the oldest first, as `SourceKind.poll`; the first look only
        remembers.
        """
        cursor, wait_s, now_ms = account.cursor, account.config["every_s"], account.clock.now_ms()
        at_ms, known = cursor.get("at", 0), set(cursor.get("known", ()))
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
                        events += [event for event in [await self._event(account, listed[name])] if event is not None]
                except PatternError:
                    if not place:
                        raise
                    new, wait_s = new[:place], 0.0  # the others are asked for again, and fail alone
                    break
        past = [ms for ms, _digest in new if ms <= now_ms]  # one that is dated in the future hides no other
        at_ms = max([at_ms, *past])
        known |= {digest for _ms, digest in new}
        kept = [digest for ms, digest in sorted(listed) if digest in known and ms > at_ms - WINDOW_MS]
        return Arrivals(events=events, cursor={"at": at_ms, "known": kept}, wait_s=wait_s)

    async def _notifications(
        self, account: SourceAccount, since_ms: int, *, pages: int
    ) -> dict[tuple[int, str], Mapping[str, Any]]:
        """Return the notifications since a time, by their times and the digests of their posts."""
        found, page = dict[tuple[int, str], Mapping[str, Any]](), None
        for _ in range(pages):
            asked = {"limit": 100, "reasons": REASONS, **({"cursor": page} if page else {})}
            answer = await self._call(account, "app.bsky.notification.listNotifications", asked)
            is_last = not answer["notifications"]
            for one in answer["notifications"]:
                with suppress(*UNREADABLE):
                    ms, uri = unix_ms(one["indexedAt"]), _text(one, "uri")
                    is_last |= ms <= since_ms
                    if ms > since_ms and one["reason"] in REASONS and len(uri) <= URI_CHARS_MAX:
                        found[ms, blake2b(uri.encode(), digest_size=8).hexdigest()] = one
            page = answer.get("cursor")
            if is_last or not page:
                break
        return found

    async def _event(self, account: SourceAccount, found: Mapping[str, Any]) -> SourceEvent | None:
        """Return the event of a notification; None if its post is gone, or is not heard.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: it is not as the protocol says.
            PatternError: the service could not be asked.
        """
        me = (await self._session(account)).did
        uri, author, record = _text(found, "uri"), found["author"], found["record"]
        did, handle = _text(author, "did"), _text(author, "handle")
        if did == me or not passes(account.config, author, record, me):
            return None
        thread = await self._thread(account, {"uri": uri, "author": author, "record": record})
        if thread is None or thread.is_refused(account.config):
            return None
        parent = thread.parents[-1] if thread.parents else None
        is_answer = parent is not None and parent["author"]["did"] == me
        is_meant = is_answer or found["reason"] != "reply" or mentions(record, me)
        tags, labels = record.get("tags"), author.get("labels") or []
        return SourceEvent(
            native=uri,
            text=thread.shown(account.config, me),
            link=f"https://bsky.app/profile/{did}/post/{uri.rpartition('/')[2]}",
            author=did,
            author_name=f"{author.get('displayName') or ''} (@{handle})".strip(),
            chat=thread.top["uri"],
            chat_name=f"thread of @{thread.top['author']['handle']}",
            room=ROOM,
            is_addressed=is_meant or is_one_of(account.config["friends"], author),
            is_bot="bot" in [one.get("val") for one in labels] or (isinstance(tags, list) and TAGS[0] in tags),
        )

    async def _thread(self, account: SourceAccount, post: Post) -> Thread | None:
        """Return the thread of a post; None if it is gone, or may hold what is excluded.

        It is seen from the post's parent if there is one, which shows other answers, too.

        Raises:
            PatternError: the service could not be asked.
        """
        parent = (post["record"].get("reply") or {}).get("parent") or {}
        is_unreadable = False
        for place in (parent.get("uri"), post["uri"]):
            if not isinstance(place, str) or len(place) > URI_CHARS_MAX:
                continue
            asked = {"uri": place, "depth": DEPTH, "parentHeight": PARENTS_MAX}
            try:
                answer = await self._call(account, "app.bsky.feed.getPostThread", asked)
                if (thread := Thread.of(answer["thread"], post["uri"])) is not None:
                    return thread
            except NotFound:
                continue  # perhaps only the parent is gone
            except UNREADABLE:
                is_unreadable = True
            except PatternError as error:
                if not error.details.get(IS_FINAL) and error.details.get(STATUS) != 500:
                    raise
                is_unreadable = True  # also later: too long, or a fault of the service with this thread alone
        # Who else is in a thread that cannot be read is not known.
        is_strict = account.config["exclude_authors"] or account.config["exclude_words"]
        return Thread(parents=[], post=post) if is_unreadable and not is_strict else None

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
        root = _place(((post or {})["record"].get("reply") or {}).get("root") or place)
        for part, words in enumerate(split(plain(text), POST_CHARS_MAX)):
            record = {"$type": POST, "text": words, "tags": TAGS, "reply": {"root": root, "parent": place}, **made}
            if facets := await self._facets(account, words):
                record["facets"] = facets
            place = await self._put(account, send_id, part, record)

    async def _put(
        self, account: SourceAccount, send_id: str, part: int, record: Mapping[str, Json]
    ) -> dict[str, Json]:
        """Write a record, or the same one again; return its place."""
        key = record_key(account.row.id, send_id, part)
        repo = (await self._session(account)).did
        body = {"repo": repo, "collection": record["$type"], "rkey": key, "record": record}
        return _place(await self._call(account, "com.atproto.repo.putRecord", body=body))

    async def _facets(self, account: SourceAccount, text: str) -> list[Json]:
        """Return what makes links and mentions of a text's words."""
        found = [(one, {"$type": "app.bsky.richtext.facet#link", "uri": one[0]}) for one in _LINK.finditer(text)]
        for one in [*_MENTION.finditer(text)][:MENTIONS_MAX]:
            with suppress(InvalidInput, NotFound):  # no one has this handle
                answer = await self._call(account, "com.atproto.identity.resolveHandle", {"handle": one[1]})
                found.append((one, {"$type": "app.bsky.richtext.facet#mention", "did": _text(answer, "did")}))
        return [
            {
                "index": {"byteStart": len(text[: one.start()].encode()), "byteEnd": len(text[: one.end()].encode())},
                "features": [feature],
            }
            for one, feature in found
        ]

    async def _call(
        self,
        account: SourceAccount,
        method: str,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Json] | None = None,
    ) -> Mapping[str, Any]:
        """Call a method and return its answer; with a `body` it is a procedure. A token that has ended is replaced.

        Raises:
            PatternError: as `ServiceApi.call`.
        """
        session = await self._session(account)
        path = f"{method}?{urlencode(query, doseq=True)}" if query else method
        try:
            return await _ask(account, path, session.access, body)
        except PermissionDenied as error:
            if error.details.get(STATUS) != 401:
                raise
        if self._sessions.get(account.row.id) is session:  # else another task has replaced it
            del self._sessions[account.row.id]
            with suppress(PermissionDenied):  # it has ended, too: then with the password
                found = await _ask(account, "com.atproto.server.refreshSession", session.refresh, None, "POST")
                self._keep(account, found)
        return await _ask(account, path, (await self._session(account)).access, body)

    async def _session(self, account: SourceAccount) -> _Session:
        if (known := self._sessions.get(account.row.id)) is not None:
            return known
        password = await account.secret("password")
        given = {"identifier": account.config["handle"], "password": password}
        return self._keep(account, await _ask(account, "com.atproto.server.createSession", "", given))

    def _keep(self, account: SourceAccount, found: Mapping[str, Any]) -> _Session:
        try:
            session = _Session(_text(found, "did"), _text(found, "accessJwt"), _text(found, "refreshJwt"))
        except (LookupError, TypeError):
            raise Unavailable("the service signed in the account without saying who it is") from None
        self._sessions[account.row.id] = session
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session


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
    """Return a text that must be there.

    Raises:
        LookupError, TypeError: it is not.
    """
    if not isinstance(value := found[key], str) or not value:
        raise TypeError(f"{key} is not a text")
    return value


def _place(found: Mapping[str, Any]) -> dict[str, Json]:
    return {"uri": _text(found, "uri"), "cid": _text(found, "cid")}


def _answerable(post: Post | None, *, is_like: bool) -> dict[str, Json]:
    """Return the place of a post that may be answered, or liked.

    Raises:
        PermissionDenied: it may not, now and later.
    """
    viewer: Mapping[str, Any] = {} if post is None else post.get("viewer") or {}
    author: Mapping[str, Any] = {} if post is None else post["author"].get("viewer") or {}
    why = None
    if post is None:
        why = "the post is gone, or its author and this account block one another"
    elif author.get("blockedBy") or author.get("blocking") or author.get("blockingByList"):
        why = "its author and this account block one another"
    elif viewer.get("replyDisabled") and not is_like:
        why = "who began the thread does not allow answers of this account"
    if post is None or why is not None:
        raise PermissionDenied(f"the answer was not posted: {why}", **{IS_FINAL: True})
    return _place(post)


async def _ask(
    account: SourceAccount, path: str, token: str, body: Mapping[str, Json] | None, method: str | None = None
) -> Mapping[str, Any]:
    """Return the answer of a method.

    Raises:
        PatternError: as `ServiceApi.call`.
    """
    secrets = [one for one in (token, await account.secret("password")) if one]
    url = f"{account.config['base_url'].rstrip('/')}/xrpc/{path}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return dict((await _API.call(account, url, body, secrets=secrets, headers=headers, method=method))[0])
