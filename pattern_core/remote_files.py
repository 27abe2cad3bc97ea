"""Folders of other machines, which are only read: WebDAV, and buckets of S3 and services that speak like it.

A scan lists all files, then reads those of which the listing says something else than before (the ETag, or else the
time; the size): an unchanged file is not asked for. The server of a folder is a stranger: all that it says is bounded,
and requests go only where the policy of `[sources]` allows.

Sources: RFC 4918 (WebDAV), 9.1 and 13; docs.aws.amazon.com/AmazonS3/latest/API, "ListObjectsV2" and "Authenticating
Requests: Using the Authorization Header (AWS Signature Version 4)".
"""

from __future__ import annotations

import hmac
import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, unquote_plus, urlencode, urlsplit
from xml.etree.ElementTree import Element

import trio

from pattern_core.errors import InvalidInput, NotFound, PatternError, PermissionDenied, Unavailable
from pattern_core.files import disk
from pattern_core.files.disk import UnreadableFile, Walk, check_name
from pattern_core.files.folders import Read
from pattern_core.ids import Clock
from pattern_core.web.download import REDIRECTS_MAX, Download, Downloader, check_status, parse_xml
from pattern_core.web.policy import URL_CHARS_MAX, SourceSettings, WebTarget, read_secret

BYTES_MAX = 100 * 1024 * 1024  # of the files of one folder, as its server lists them; they are kept in the database
REQUESTS_MAX = 1_000  # for the listing of one folder
FAILURES_MAX = 5  # files that could not be read now, after which a scan stops
SCAN_S_MAX = 600.0  # what is not read by then is read by the next scan
BYTES_PER_S_MIN = 250_000  # of a file; time for it is added to the usual time of a request
_SCHEMES = ("webdav+https", "webdav+http", "https", "http", "s3")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}")
_CODE = re.compile(rb"<Code>([A-Za-z.]{1,60})</Code>")
_EMPTY = sha256().hexdigest()
_PROPERTIES = (
    b'<?xml version="1.0"?><propfind xmlns="DAV:"><prop><resourcetype/><getcontentlength/><getetag/><getlastmodified/>'
    b"</prop></propfind>"
)


def check_address(address: str, settings: SourceSettings) -> None:
    """Refuse what is not the address of a remote folder, and what the operator's rules do not allow.

    Raises:
        InvalidInput: it is not an address of one.
        PermissionDenied: it may not be visited, or may not be sent the secret that it names.
    """
    _folder_at(address, settings)


async def scan_remote(settings: SourceSettings, clock: Clock, address: str) -> tuple[Walk, Read]:
    """Return the files of a remote folder, and what reads one of them, as `pattern_core.files.folders.Scan`.

    Raises:
        Unavailable: it cannot be listed now; the message says why.
    """
    try:
        folder = _folder_at(address, settings)
        folder.clock, folder.ends_at = clock, trio.current_time() + SCAN_S_MAX
        if name := folder.options.get("secret"):
            folder.secret = await read_secret(settings.secrets, name, "sources", settings.secrets_in)
        await folder.find_all()
    except PatternError as error:
        raise Unavailable(f"{address} cannot be listed: {error.message}") from None
    folder.found.entries.sort(key=lambda entry: entry.name)
    return folder.found, folder.read


def _folder_at(address: str, settings: SourceSettings) -> _Folder:
    scheme, _, rest = address.partition("://")
    if scheme not in _SCHEMES or "#" in rest or not address.isprintable() or len(address) > URL_CHARS_MAX:
        raise InvalidInput(
            "the address of a remote folder is such as webdav+https://host/path or s3://bucket/prefix?region=eu-west-1"
        )
    place, _, query = rest.partition("?")
    folder = _Bucket if scheme == "s3" else _WebDav
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - folder.options_known):
        raise InvalidInput(f"this address has no {unknown[0][:40]!r}; it may have {', '.join(folder.options_known)}")
    return folder(scheme, place, options, settings)


class _Folder(ABC):
    """A remote folder during one scan. `found` is what the scan found so far, `_places` the address and the size of
    each of these files, by name.
    """

    options_known: tuple[str, ...]
    clock: Clock
    ends_at: float
    secret = ""

    def __init__(self, base: str, own: str, options: Mapping[str, str], settings: SourceSettings) -> None:
        self.options, self._settings = options, settings
        self._base = settings.check(base)
        if self._base.url.query:
            raise InvalidInput("an endpoint is an address without a query, such as https://minio.example.org")
        if options.get("secret"):
            settings.check_service(str(self._base.url.copy_with(raw_path=b"/")).rstrip("/"), own)
        self.found = Walk()
        self._places: dict[str, tuple[str, int]] = {}
        self._bytes = self._requests = self._failures = 0

    @abstractmethod
    async def find_all(self) -> None:
        """Find all files, or raise a `PatternError`."""

    @abstractmethod
    def _signed(self, target: WebTarget) -> Mapping[str, str]:
        """Return the headers of a request that prove who asks."""

    async def read(self, name: str) -> bytes:
        """Return the bytes of a file. One that cannot be read now is named, and `NotFound`: its text stays."""
        url, size = self._places[name]
        if size > disk.FILE_BYTES_MAX:
            raise disk.too_long(size)
        # What proves who asks is not for the place that a server leads to.
        redirects_max = 0 if self.secret else REDIRECTS_MAX
        try:
            page = await self._fetch(url, bytes_max=size, redirects_max=redirects_max)
        except (NotFound, Unavailable) as error:
            self._failures += isinstance(error, Unavailable)
            if self._failures >= FAILURES_MAX:
                raise Unavailable(f"{FAILURES_MAX} files cannot be read now, the last one: {error.message}") from None
            self.found.skip(name, error.message)
            raise NotFound(error.message) from None
        except PatternError as error:
            raise UnreadableFile(error.message) from None
        if page.is_cut or len(page.body) != size:
            raise UnreadableFile(f"its server lists {size} bytes, and sends {'more' if page.is_cut else 'fewer'}")
        return page.body

    async def _fetch(
        self, url: str, *, bytes_max: int | None = None, redirects_max: int = 0, **request: Any
    ) -> Download:
        if trio.current_time() > self.ends_at:
            raise Unavailable(f"not all was read within {SCAN_S_MAX:.0f} s; the next scan continues")
        proof = self._signed(self._settings.check(url))
        if not all(value.isascii() and value.isprintable() for value in proof.values()):
            raise InvalidInput("its secret has characters that cannot be sent")
        request["headers"] = {"Accept": "*/*", **proof, **request.get("headers", {})}
        timeout_s = self._settings.timeout_s + (bytes_max or 0) / BYTES_PER_S_MIN
        downloader = Downloader(self._settings, timeout_s=timeout_s, bytes_max=bytes_max)
        page = await downloader.get(url, redirects_max=redirects_max, **request)
        try:
            check_status(page)
        except PatternError as error:
            code, region = _CODE.search(page.body), page.headers.get("x-amz-bucket-region", "")[:40]
            said = f"{page.url} answers with HTTP status {page.status}" + (f" ({code[1].decode()})" if code else "")
            said += f"; the region of the bucket is {region}" if region else ""
            raise type(error)(said + ("; is its secret right?" if page.status in (401, 403) else "")) from None
        return page

    def _listing(self, page: Download, root: str) -> Element:
        """Return a page of the listing; its root must have this name. Called on a thread, since it may be long."""
        if page.is_cut:
            raise InvalidInput(f"the listing of {page.url} is too long to be read")
        found = parse_xml(page.body, "a listing")
        if found.tag != root:
            raise InvalidInput(f"what {page.url} answers is not a listing: it begins with <{found.tag[:40]}>")
        self.found.looked_at += len(found)
        return found

    def _may_ask(self) -> bool:
        """Return whether the listing may be continued; else it is not complete."""
        self._requests += 1
        if self._requests > REQUESTS_MAX or self.found.looked_at > disk.ENTRIES_MAX:
            self._miss("the folder", "has too much in it; the rest is left out")
        return self.found.is_complete

    def _miss(self, name: str, reason: str) -> None:
        self.found.skip(name, reason)
        self.found.is_complete = False

    def _name(self, raw: str, *, is_directory: bool = False) -> str | None:
        """Return the name of a file or directory; None if it is left out."""
        if disk.is_left_out(raw, is_directory=is_directory):
            return None
        try:
            return check_name(raw)
        except InvalidInput:
            self.found.skip(raw[:100], "has a name that cannot be used here, or is too deep")
            return None

    def _meet(self, raw: str, url: str, size: str | None, version: str | None) -> None:
        """Note a file of the listing; `version` changes with its bytes, if there is one."""
        if not self.found.is_complete or (name := self._name(raw)) is None:
            return
        length = int(size) if size and size.isdecimal() and len(size) < 16 else -1
        is_read = length <= disk.FILE_BYTES_MAX
        if len(self._places) >= disk.FILES_MAX:
            self._miss(name, f"is beyond {disk.FILES_MAX} files")
        elif name in self._places or length < 0:
            self.found.skip(name, "is there twice" if name in self._places else "has no length")
        elif is_read and self._bytes + length > BYTES_MAX:
            self.found.skip(name, f"is beyond the {BYTES_MAX} bytes that are read of one folder")
        else:
            self._bytes += length if is_read else 0
            self._places[name] = (url, length)
            # Of a file on disk this is its time: 56 bits are as one of long ago, which can be relied on.
            digest = blake2b(f"{length} {version}".encode(), digest_size=7).digest()
            changed = int.from_bytes(digest) if version else self.clock.now_ms() * 1_000_000
            self.found.entries.append(disk.DiskEntry(name=name, size=length, mtime_ns=changed))


class _WebDav(_Folder):
    """A folder of a WebDAV server. Its secret is `user:password`, or a token."""

    options_known = ("secret",)

    def __init__(self, scheme: str, place: str, options: Mapping[str, str], settings: SourceSettings) -> None:
        super().__init__(f"{scheme.removeprefix('webdav+')}://{place.rstrip('/')}/", "", options, settings)
        self._root = unquote(self._base.url.raw_path.decode())

    def _at(self, path: str) -> str:
        return str(self._base.url.copy_with(raw_path=quote(path).encode()))

    def _signed(self, target: WebTarget) -> Mapping[str, str]:
        is_basic = ":" in self.secret
        proof = f"Basic {b64encode(self.secret.encode()).decode()}" if is_basic else f"Bearer {self.secret}"
        return {"Authorization": proof} if self.secret else {}

    async def find_all(self) -> None:
        """Find all files, as `_Folder.find_all`."""
        waiting = [""]
        headers = {"Depth": "1", "Content-Type": "application/xml"}
        while waiting and self._may_ask():
            here = waiting.pop()
            try:
                url = self._at(self._root + here)
                page = await self._fetch(url, headers=headers, method="PROPFIND", body=_PROPERTIES)
                waiting += await trio.to_thread.run_sync(self._note, here, page)
            except (InvalidInput, NotFound, PermissionDenied) as error:
                if not here:
                    raise
                self._unseen(here, error.message)

    def _note(self, here: str, page: Download) -> list[str]:
        """Note what is in the directory `here`; return the directories in it."""
        found = self._listing(page, "multistatus").iterfind("response")
        return [inner for one in found for inner in self._response(here, one)]

    def _response(self, here: str, response: Element) -> list[str]:
        """Note one of them; return it if it is a directory."""
        try:
            path = unquote(urlsplit(response.findtext("href", "").strip()).path, errors="strict")
        except ValueError:
            self._miss(here or "the folder", "holds a file with a name that is not text")
            return []
        inner = path.removeprefix(self._root + here).rstrip("/")
        if not path.startswith(self._root + here) or not inner or "/" in inner:
            return []  # the directory itself, or what was not asked for
        raw = here + inner
        states = [(one.findtext("status", ""), one.find("prop")) for one in response.iterfind("propstat")]
        found = next((prop for status, prop in states if " 200" in status and prop is not None), None)
        if found is None:
            self._unseen(raw, "is not shown by its server")
        elif found.find("resourcetype/collection") is None:
            version = found.findtext("getetag") or found.findtext("getlastmodified")
            self._meet(raw, self._at(path), found.findtext("getcontentlength"), version)
        elif self._name(raw, is_directory=True) is not None:
            return [f"{raw}/"]
        return []

    def _unseen(self, raw: str, reason: str) -> None:
        """Note that nothing is known of a name, and what is below it."""
        if (name := self._name(raw.rstrip("/"), is_directory=True)) is not None:
            self.found.unseen.append(name)
            self.found.skip(name, reason)


class _Bucket(_Folder):
    """A bucket, or what begins with a prefix in it. Its secret is `key id:secret key`; without one it is public."""

    options_known = ("region", "endpoint", "secret")

    def __init__(self, _scheme: str, place: str, options: Mapping[str, str], settings: SourceSettings) -> None:
        bucket, _, prefix = place.partition("/")
        self._region = options.get("region", "us-east-1")
        if not _BUCKET.fullmatch(bucket) or not _REGION.fullmatch(self._region):
            raise InvalidInput("a bucket is written as s3://bucket/prefix?region=eu-west-1&secret=NAME")
        own = f"https://s3.{self._region}.amazonaws.com"
        super().__init__(f"{options.get('endpoint', own).rstrip('/')}/{bucket}", own, options, settings)
        self._prefix = f"{unquote(prefix).rstrip('/')}/" if prefix.strip("/") else ""

    async def find_all(self) -> None:
        """Find all files, as `_Folder.find_all`."""
        asked = {"encoding-type": "url", "list-type": "2", "prefix": self._prefix}
        while self._may_ask():
            query = urlencode(sorted(asked.items()), quote_via=quote, safe="")
            page = await self._fetch(f"{self._base.url}?{query}")
            following = await trio.to_thread.run_sync(self._note, page)
            if following is None:
                return
            if following in ("", asked.get("continuation-token")):
                raise InvalidInput("its listing does not say where it continues")
            asked["continuation-token"] = following

    def _note(self, page: Download) -> str | None:
        """Note the files of a page of the listing; return what asks for the next one, None if it is the last."""
        listing = self._listing(page, "ListBucketResult")
        decoded = unquote_plus if listing.findtext("EncodingType") == "url" else str
        for one in listing.iterfind("Contents"):
            key = decoded(one.findtext("Key", ""))
            if not key.endswith("/"):  # others are directories
                url = f"{self._base.url}/{quote(key)}"
                self._meet(key.removeprefix(self._prefix), url, one.findtext("Size"), one.findtext("ETag"))
        is_last = listing.findtext("IsTruncated") != "true"
        return None if is_last else listing.findtext("NextContinuationToken", "")

    def _signed(self, target: WebTarget) -> Mapping[str, str]:
        return signed(target, self._region, self.secret, self.clock.now_ms()) if self.secret else {}


def signed(target: WebTarget, region: str, keys: str, now_ms: int) -> dict[str, str]:
    """Return the headers that sign a GET request to S3; `keys` is `key id:secret key`."""
    key_id, _, key = keys.partition(":")
    stamp = datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    path, _, query = target.url.raw_path.decode().partition("?")
    headers = {"host": target.url.netloc.decode(), "x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
    lines = (f"{name}:{value}" for name, value in headers.items())
    request = "\n".join(("GET", path, query, *lines, "", ";".join(headers), _EMPTY))
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, sha256(request.encode()).hexdigest()))
    secret = f"AWS4{key}".encode()
    for part in (*scope.split("/"), text):
        secret = hmac.digest(secret, part.encode(), "sha256")
    proof = f"Credential={key_id}/{scope},SignedHeaders={';'.join(headers)},Signature={secret.hex()}"
    del headers["host"]  # is sent anyway
    return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {proof}"}
