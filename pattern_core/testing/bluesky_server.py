"""A server of the AT Protocol on loopback that behaves as Bluesky's does for its channel, also badly."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pattern_core.testing.wire import Play, WireRequest, WireServer, document
from pattern_db.columns import iso

HANDLE, PASSWORD, ME = "bot.example", "abcd-efgh-ijkl-mnop", "did:plc:bot"
START_S = 1_767_225_600  # 2026-01-01, the time of the first notification
TID = re.compile(r"[234567abcdefghij][2-7a-z]{12}")
_POST = "app.bsky.feed.post"


class BlueskyServer(WireServer):
    """`says` is what people do; `written` is what the account wrote, by collection and key, `writes` each time it did.

    `blocked` are DIDs of people who do not see the account, `closed` the first posts of threads that it may not answer,
    `gone` deleted posts, `images` are by their paths. Faults, each a number of times: `drops` accepts a record and
    closes the connection; `too_many` answers a record with 429; `silent` never answers a poll; `broken` answers a
    thread with `broken_status`. `reorders` shows notifications in another order. `expire` ends the token.
    """

    def __init__(self) -> None:
        super().__init__()
        self.posts: dict[str, dict[str, Any]] = {}
        self._answers: dict[str, dict[str, None]] = {}  # to each post, in their order
        self.notifications: list[Any] = []
        self.written: dict[tuple[str, str], dict[str, Any]] = {}
        self.writes: list[tuple[str, str]] = []
        self.images: dict[str, bytes] = {}
        self.blocked: set[str] = set()
        self.closed: set[str] = set()
        self.gone: set[str] = set()
        self.drops = self.too_many = self.silent = self.broken = 0
        self.broken_status = 500
        self.reorders = False
        self.sign_ins = 0
        self._token = 0

    def expire(self) -> None:
        """End the account's token."""
        self._token += 1

    def says(
        self,
        text: str,
        *,
        author: str = "anna",
        to: str = "",
        reason: str = "mention",
        late_s: int = 0,
        **more: Any,
    ) -> str:
        """Have a person post something, in answer `to` a post if that is given; return its address.

        `reason` is that of the account's notification, none if it is empty; `late_s` is how long before its turn the
        time of the post is.
        """
        number = len(self.posts) + 1
        did = ME if author == HANDLE else f"did:plc:{author}"
        handle = HANDLE if author == HANDLE else f"{author}.example"
        record: dict[str, Any] = {"$type": _POST, "text": text, "createdAt": "2026-01-01T00:00:00Z", **more}
        if to:
            parent = self.place(to)
            record["reply"] = {"parent": parent, "root": self.posts[to]["record"].get("reply", {}).get("root", parent)}
        if reason == "mention":
            feature = {"$type": "app.bsky.richtext.facet#mention", "did": ME}
            record.setdefault("facets", [{"index": {"byteStart": 0, "byteEnd": 1}, "features": [feature]}])
        embed = record.pop("view", None)
        uri = self._add(f"at://{did}/{_POST}/3k{number:011d}", did, handle, record)
        if embed is not None:
            self.posts[uri]["embed"] = embed
        if reason:
            author_view = {"did": did, "handle": handle, "displayName": author.title()}
            at = {"indexedAt": iso((START_S + number - late_s) * 1000), "isRead": False}
            self.notifications.append(
                {"uri": uri, "cid": self.posts[uri]["cid"], "author": author_view, "reason": reason, "record": record}
                | at
            )
        return uri

    def _add(self, uri: str, did: str, handle: str, record: dict[str, Any]) -> str:
        cid = f"bafy{sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:40]}"
        author = {"did": did, "handle": handle}
        self.posts[uri] = {"uri": uri, "cid": cid, "author": author, "record": record, "indexedAt": iso(START_S * 1000)}
        self._answers.setdefault(_parent(record), {})[uri] = None
        return uri

    def place(self, uri: str) -> dict[str, str]:
        """Return the address and the digest of a post, as others refer to it."""
        return {"uri": uri, "cid": self.posts[uri]["cid"]}

    @property
    def texts(self) -> list[str]:
        """The words of the account's posts, in the order in which they were written first."""
        return [str(one["text"]) for (kind, _key), one in self.written.items() if kind == _POST]

    async def answer(self, request: WireRequest) -> Play:
        """Return the answer to a call of a method."""
        url = urlsplit(request.path)
        query = parse_qs(url.query)
        if not url.path.startswith("/xrpc/"):
            image = self.images.get(url.path)
            return document({}, status=404) if image is None else Play(chunks=(image,))
        method = url.path.removeprefix("/xrpc/").rpartition(".")[2]
        given = request.headers.get("authorization", "")
        if method == "createSession":
            if request.json() != {"identifier": HANDLE, "password": PASSWORD}:
                return _error(401, "AuthenticationRequired", "Invalid identifier or password")
            self.sign_ins += 1
            return document({"did": ME, "handle": HANDLE, "accessJwt": f"access-{self._token}"})
        if given != f"Bearer access-{self._token}":
            return _error(400, "ExpiredToken", f"Token has expired: {given}")
        match method:
            case "listNotifications":
                return self._listed(query)
            case "getPostThread":
                return self._thread(request, query)
            case "getPosts":
                found = [self._view(uri) for uri in query["uris"] if self._sees(uri)]
                return document({"posts": found})
            case "resolveHandle":
                handle = query["handle"][0]
                if not handle.endswith(".example"):
                    return _error(400, "InvalidRequest", "Unable to resolve handle")
                return document({"did": f"did:plc:{handle.partition('.')[0]}"})
            case "putRecord":
                return self._put(request.json())
        return _error(404, "MethodNotImplemented", "Method Not Implemented")

    def _listed(self, query: Mapping[str, list[str]]) -> Play:
        if self.silent:
            self.silent -= 1
            return Play(never_answers=True)
        start, size = int(query.get("cursor", ["0"])[0]), int(query["limit"][0])

        def at(one: Any) -> str:
            return str(one.get("indexedAt")) if isinstance(one, dict) else ""

        newest = sorted(self.notifications, key=at, reverse=True)[start : start + size]
        more = {"cursor": str(start + size)} if start + size < len(self.notifications) else {}
        return document({"notifications": newest[::-1] if self.reorders else newest, **more})

    def _sees(self, uri: str) -> bool:
        return uri in self.posts and uri not in self.gone and self.posts[uri]["author"]["did"] not in self.blocked

    def _view(self, uri: str) -> dict[str, Any]:
        post = self.posts[uri]
        root = post["record"].get("reply", {}).get("root", {}).get("uri", uri)
        return {**post, "viewer": {"replyDisabled": root in self.closed}}

    def _thread(self, request: WireRequest, query: Mapping[str, list[str]]) -> Play:
        uri = query["uri"][0]
        if self.broken:
            self.broken -= 1
            given = request.headers["authorization"]
            return _error(self.broken_status, "InternalServerError", f"failed, as was asked for with {given}")
        if uri not in self.posts or uri in self.gone:
            return _error(400, "NotFound", f"Post not found: {uri}")
        return document({"thread": self._node(uri, int(query["depth"][0]), int(query["parentHeight"][0]))})

    def _node(self, uri: str, depth: int, height: int) -> dict[str, Any]:
        if uri not in self.posts or uri in self.gone:
            return {"$type": "app.bsky.feed.defs#notFoundPost", "uri": uri, "notFound": True}
        if not self._sees(uri):
            author = {"did": self.posts[uri]["author"]["did"]}
            return {"$type": "app.bsky.feed.defs#blockedPost", "uri": uri, "blocked": True, "author": author}
        node: dict[str, Any] = {"$type": "app.bsky.feed.defs#threadViewPost", "post": self._view(uri)}
        if height and (parent := _parent(self.posts[uri]["record"])):
            node["parent"] = self._node(parent, 0, height - 1)
        if depth:
            below = [one for one in self._answers.get(uri, ()) if one not in self.gone]
            node["replies"] = [self._node(one, depth - 1, 0) for one in below]
        return node

    def _put(self, given: Mapping[str, Any]) -> Play:
        if self.too_many:
            self.too_many -= 1
            said = {"error": "RateLimitExceeded", "message": "Rate Limit Exceeded"}
            return document(said, status=429, headers={"retry-after": "1"})
        record, kind, key = given["record"], str(given["collection"]), str(given["rkey"])
        text = str(record.get("text", ""))
        if given["repo"] != ME or kind != record["$type"] or not TID.fullmatch(key):
            return _error(400, "InvalidRequest", "Invalid repo, collection or key")
        if len(text) > 300 or len(text.encode()) > 3_000 or (kind == _POST and not text):
            return _error(400, "InvalidRequest", "Invalid app.bsky.feed.post record: text must not be longer")
        for place in (*record.get("reply", {}).values(), *filter(None, [record.get("subject")])):
            if place["uri"] not in self.posts or self.posts[place["uri"]]["cid"] != place["cid"]:
                return _error(400, "InvalidRequest", "a reference leads nowhere")
        uri = self._add(f"at://{ME}/{kind}/{key}", ME, HANDLE, record)
        self.written[kind, key] = record
        self.writes.append((kind, key))
        if self.drops:
            self.drops -= 1
            return Play(stops_after=0, chunks=(b"x",))
        return document({**self.place(uri), "validationStatus": "valid"})


def _parent(record: Mapping[str, Any]) -> str:
    return str(record.get("reply", {}).get("parent", {}).get("uri", ""))


def _error(status: int, name: str, message: str) -> Play:
    return document({"error": name, "message": message}, status=status)
