"""Servers of files on loopback that behave as those of remote folders do, also badly: for tests, also of users."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from pattern_core.testing.wire import Play, WireRequest, WireServer

_XML = {"content-type": "application/xml"}


def etag_of(data: bytes) -> str:
    """Return the ETag of a file with these bytes."""
    return f'"{sha256(data).hexdigest()[:16]}"'


class DavServer(WireServer):
    """Serves `files`, by path without the first slash, over WebDAV below `/dav/`.

    With a `secret`, who does not send it (`user:password`) gets 401. Faults: `sizes` are listed in place of the real
    ones; `unshown` are the statuses of files within a listing, and of directories (`name/`) when they are listed;
    `failing` those of files that are asked for; `redirects` lead from a path to an address; `listing` is what is
    answered in place of a listing; without `has_etags` there is only the time `modified`.
    """

    def __init__(self, files: Mapping[str, bytes], secret: str = "") -> None:
        super().__init__(otherwise=self._answer)
        self.files = dict(files)
        self.secret = secret
        self.sizes: dict[str, str] = {}
        self.unshown: dict[str, int] = {}
        self.failing: dict[str, int] = {}
        self.redirects: dict[str, str] = {}
        self.listing: bytes | None = None
        self.has_etags = True
        self.modified = "Thu, 01 Jan 2026 00:00:00 GMT"

    @property
    def address(self) -> str:
        """Of the remote folder."""
        return f"webdav+{self.url}/dav"

    @property
    def read(self) -> list[str]:
        """The files that were asked for, in order."""
        return [unquote(one.path).removeprefix("/dav/") for one in self.requests if one.method == "GET"]

    def _answer(self, request: WireRequest) -> Play:
        proof = f"Basic {b64encode(self.secret.encode()).decode()}"
        if self.secret and request.headers.get("authorization") != proof:
            return Play(status=401)
        path = unquote(request.path).removeprefix("/dav/")
        if path in self.redirects:
            return Play(status=302, headers={"location": self.redirects[path]})
        if request.method == "PROPFIND" and request.headers.get("depth") == "1":
            return Play(status=self.unshown[path]) if path in self.unshown else self._list(path)
        if request.method == "GET" and path in self.files:
            return Play(chunks=(self.files[path],), status=self.failing.get(path, 200))
        return Play(status=404)

    def _list(self, path: str) -> Play:
        inside = {name.removeprefix(path) for name in self.files if name.startswith(path)}
        if not inside and path:
            return Play(status=404)
        names = sorted({name.partition("/")[0] + "/" * ("/" in name) for name in inside})
        shown = "".join(self._entry(path + name) for name in ("", *names))
        body = f'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">{shown}</D:multistatus>'.encode()
        return Play(chunks=(self.listing or body,), status=207, headers=_XML)

    def _entry(self, path: str) -> str:
        href = f"<D:href>{escape(quote(f'/dav/{path}'))}</D:href>"
        if path in self.unshown and path in self.files:
            return f"<D:response>{href}<D:status>HTTP/1.1 {self.unshown[path]} Fault</D:status></D:response>"
        data = self.files.get(path, b"")
        found = "<D:resourcetype><D:collection/></D:resourcetype>"
        if path in self.files:
            found = f"<D:resourcetype/><D:getcontentlength>{self.sizes.get(path, len(data))}</D:getcontentlength>"
            found += f"<D:getlastmodified>{self.modified}</D:getlastmodified>"
            found += f"<D:getetag>{escape(etag_of(data))}</D:getetag>" if self.has_etags else ""
        ok, missing = "<D:status>HTTP/1.1 200 OK</D:status>", "<D:status>HTTP/1.1 404 Not Found</D:status>"
        props = f"<D:propstat><D:prop>{found}</D:prop>{ok}</D:propstat>"
        return f"<D:response>{href}<D:propstat><D:prop/>{missing}</D:propstat>{props}</D:response>"


class BucketServer(WireServer):
    """Serves `files`, by key, as the bucket `papers` of S3, `per_page` keys in a page of the listing.

    With `keys` (key id, secret key) a request must be signed with them for the region `eu-test-1`. `forgets` answers
    that there is more, and not where; `repeats` always with the same place.
    """

    def __init__(self, files: Mapping[str, bytes], keys: tuple[str, str] | None = None, per_page: int = 2) -> None:
        super().__init__(otherwise=self._answer)
        self.files = dict(files)
        self.keys = keys
        self.per_page = per_page
        self.forgets = self.repeats = False

    @property
    def address(self) -> str:
        """Of the remote folder, without a secret."""
        return f"s3://papers?region=eu-test-1&endpoint={self.url}"

    @property
    def read(self) -> list[str]:
        """The files that were asked for, in order."""
        return [unquote(one.path).removeprefix("/papers/") for one in self.requests if "?" not in one.path]

    def _answer(self, request: WireRequest) -> Play:
        path, _, query = request.path.partition("?")
        if self.keys is not None and request.headers.get("authorization") != self._wanted(request, *self.keys):
            return _refused(403, "SignatureDoesNotMatch")
        if path == "/papers" and ("list-type", "2") in parse_qsl(query):
            return self._list(dict(parse_qsl(query)))
        key = unquote(path).removeprefix("/papers/")
        return Play(chunks=(self.files[key],)) if key in self.files else _refused(404, "NoSuchKey")

    def _list(self, asked: Mapping[str, str]) -> Play:
        keys = sorted(key for key in self.files if key.startswith(asked.get("prefix", "")))
        start = int(asked.get("continuation-token", "0"))
        end = start + self.per_page
        shown = "".join(
            f"<Contents><Key>{escape(quote_plus(key, safe='/'))}</Key><Size>{len(self.files[key])}</Size>"
            f"<ETag>{escape(etag_of(self.files[key]))}</ETag></Contents>"
            for key in keys[start:end]
        )
        token = "" if self.forgets else f"<NextContinuationToken>{1 if self.repeats else end}</NextContinuationToken>"
        more = f"<IsTruncated>true</IsTruncated>{token}" if end < len(keys) else "<IsTruncated>false</IsTruncated>"
        space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        body = f"<ListBucketResult {space}><EncodingType>url</EncodingType>{more}{shown}</ListBucketResult>"
        return Play(chunks=(body.encode(),), headers=_XML)

    def _wanted(self, request: WireRequest, key_id: str, key: str) -> str:
        """Return the proof that a request must have, computed from what came over the wire."""
        given = request.headers
        day = given.get("x-amz-date", "")[:8]
        names = ["host", "x-amz-content-sha256", "x-amz-date"]
        path, _, query = request.path.partition("?")
        pairs = sorted(parse_qsl(query, keep_blank_values=True))
        canonical = [request.method, quote(unquote(path), safe="/~")]
        canonical += ["&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in pairs)]
        canonical += [f"{name}:{given.get(name, '').strip()}" for name in names]
        canonical += ["", ";".join(names), sha256(request.body).hexdigest()]
        digest = sha256("\n".join(canonical).encode()).hexdigest()
        place = f"{day}/eu-test-1/s3/aws4_request"
        signing = hmac.new(f"AWS4{key}".encode(), day.encode(), sha256).digest()
        for part in (b"eu-test-1", b"s3", b"aws4_request"):
            signing = hmac.new(signing, part, sha256).digest()
        text = f"AWS4-HMAC-SHA256\n{given.get('x-amz-date', '')}\n{place}\n{digest}"
        signature = hmac.new(signing, text.encode(), sha256).hexdigest()
        return f"AWS4-HMAC-SHA256 Credential={key_id}/{place},SignedHeaders={';'.join(names)},Signature={signature}"


def _refused(status: int, code: str) -> Play:
    return Play(chunks=(f"<Error><Code>{code}</Code></Error>".encode(),), status=status, headers=_XML)
