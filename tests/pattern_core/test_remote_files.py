"""Folders of other machines: what changed is read, what cannot be seen stays, and their servers are not believed."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from pattern_core import remote_files as module
from pattern_core.errors import InvalidInput, PermissionDenied, Unavailable
from pattern_core.files import disk
from pattern_core.files.access import AgentFiles
from pattern_core.ids import SystemClock
from pattern_core.models.providers.settings import Secret
from pattern_core.portable import Kind
from pattern_core.remote_files import check_address, scan_remote, signed
from pattern_core.search import SearchRequest, search
from pattern_core.testing.remote_servers import BucketServer, DavServer
from pattern_core.testing.wire import Play, WireServer
from pattern_core.web import download
from pattern_core.web.policy import SecretSource, SourceSettings
from pattern_db import maintenance, template
from pattern_db.connection import open_connection
from pattern_db.database import Database
from pattern_db.enums import FolderAccess, PathType, SearchKind
from pattern_db.errors import RowNotFound
from pattern_db.migrate import migrations_of
from pattern_db.tables import folders
from pattern_db.tables.folders import FolderAttachment
from tests.pattern_core.files.samples import ADA, Shelf
from tests.pattern_core.memory.rig import add_agents, constellation
from tests.pattern_core.test_portable import exported, imported

FILES = {
    "a.md": b"# Beds\nFour beds of tulips.\n",
    "inner/b c.txt": b"A shed with a rake.\n",
    "inner/déep/庭.md": b"A pond behind the shed.\n",
    ".hidden/x.md": b"Nothing.",
    "node_modules/x.js": b"Nothing.",
}
NAMES = {"a.md", "inner/b c.txt", "inner/déep/庭.md"}
KEYS = ("AKIATEST", "a/secret+key")


@pytest.fixture
async def shelf() -> AsyncIterator[Shelf]:
    """No folder yet; the agents ada and bob."""
    async with Database.in_memory(constellation()) as database:
        yield Shelf(database)


@pytest.fixture
async def dav(shelf: Shelf) -> AsyncIterator[DavServer]:
    async with DavServer(FILES) as server:
        shelf.settings = at_home(server)
        yield server


@pytest.fixture
async def bucket(shelf: Shelf) -> AsyncIterator[BucketServer]:
    async with BucketServer({f"docs/{name}": data for name, data in FILES.items()}, KEYS) as server:
        shelf.settings = at_home(server, ":".join(KEYS))
        yield server


def at_home(server: WireServer, secret: str = "") -> SourceSettings:
    """What lets a server on this machine be reached, and be sent a secret."""
    secrets = {"CLOUD": SecretSource(value=Secret(secret))} if secret else {}
    return SourceSettings(
        allow_private=True, ports=(server.port,), secrets=secrets, services=(server.url,), timeout_s=5.0
    )


async def found(shelf: Shelf, query: str) -> list[str]:
    """The names of files in which ada finds the words."""
    request = SearchRequest(query=query, kinds=[SearchKind.FILE], agents=[ADA])
    return [str(hit.label) for hit in (await search(shelf.database, request)).hits]


async def reason(shelf: Shelf) -> str:
    """Why the folder cannot be read."""
    with pytest.raises(Unavailable) as raised:
        await shelf.index("cloud")
    folder = await shelf.folders.get("cloud")
    assert (folder.status, folder.status_reason) == ("unavailable", raised.value.message)
    return raised.value.message


async def test_a_folder_of_webdav_is_read_and_followed(shelf: Shelf, dav: DavServer) -> None:
    await shelf.remote(dav.address, access=FolderAccess.READ)
    report = await shelf.index("cloud")
    assert (report.indexed, report.unchanged, report.removed, report.skipped) == (3, 0, 0, [])
    assert set(await shelf.rows("cloud")) == NAMES == set(dav.read)
    assert await found(shelf, "pond") == ["inner/déep/庭.md"]

    report = await shelf.index("cloud")  # nothing is asked for again
    assert (report.indexed, report.unchanged, len(dav.read)) == (0, 3, 3)

    dav.files["a.md"] = b"# Beds\nFour beds of roses!!\n"  # of the same length: its ETag is another one
    del dav.files["inner/b c.txt"]
    dav.files["c.md"] = b"A compost heap.\n"
    report = await shelf.index("cloud")
    assert (report.indexed, report.unchanged, report.removed) == (2, 1, 1)
    assert sorted(dav.read[3:]) == ["a.md", "c.md"]
    assert (await found(shelf, "tulips"), await found(shelf, "roses")) == ([], ["a.md"])
    assert await found(shelf, "rake") == []


async def test_a_server_without_etags_is_believed_by_its_times(shelf: Shelf, dav: DavServer) -> None:
    dav.has_etags = False
    await shelf.remote(dav.address)
    for changed, count in (("Thu, 01 Jan 2026 00:00:00 GMT", 3), ("Fri, 02 Jan 2026 00:00:00 GMT", 6), ("", 9)):
        dav.modified = changed
        for _ in range(2):
            await shelf.index("cloud")
        # Without a time, a file is asked for by each scan, and its bytes are compared.
        assert len(dav.read) == count + (0 if changed else 3)
    assert shelf.changes == 3


async def test_agents_read_a_remote_folder_and_no_one_writes(shelf: Shelf, dav: DavServer) -> None:
    folder_id = await shelf.remote(dav.address)
    with pytest.raises(InvalidInput, match="only read"):
        await shelf.folders.attach(folder_id, ADA, FolderAccess.READ_WRITE)
    await shelf.folders.attach(folder_id, ADA, FolderAccess.READ)
    await shelf.index("cloud")
    access = AgentFiles(shelf.database, ADA)
    asked = len(dav.requests)
    window = await access.read("cloud/inner/b c.txt", start_line=1, lines=9, chars_max=100)
    assert (window.text, window.total) == ("A shed with a rake.", 1)
    assert (await access.grep("beds", path=None, files_like=None, limit=9, ignore_case=True)).files == 3
    assert await access.data(await access.locate("cloud/a.md")) == FILES["a.md"]
    assert (await shelf.folders.content("cloud", "a.md"))[1] == FILES["a.md"]
    assert len(dav.requests) == asked  # all from the database
    forged = FolderAttachment(folder_id, ADA, FolderAccess.READ_WRITE, "2026-01-01T00:00:00.000Z")  # of an archive
    await shelf.database.write(folders.attach, forged)
    for wanted in (PathType.VIRTUAL, PathType.LOCAL):
        with pytest.raises(PermissionDenied, match="reading only"):
            await access.for_writing("cloud/a.md", wanted)
    with pytest.raises(InvalidInput, match="put the file there"):
        await shelf.folders.put_file("cloud", "a.md", b"x")
    with pytest.raises(InvalidInput, match="remove the file there"):
        await shelf.folders.delete_file("cloud", "a.md")


async def test_a_bucket_is_read_page_by_page_with_signed_requests(shelf: Shelf, bucket: BucketServer) -> None:
    """The server computes what each signature must be, from what came over the wire."""
    bucket.files |= {"docs/": b"", "docs/inner/": b"", "other/z.md": b"Not this.", "docs/x+y & <z>~.md": b"Signs."}
    address = bucket.address.replace("papers?", "papers/docs?") + "&secret=CLOUD"
    await shelf.remote(address)
    report = await shelf.index("cloud")
    assert (report.indexed, report.skipped) == (4, [])
    assert set(await shelf.rows("cloud")) == NAMES | {"x+y & <z>~.md"}
    assert sum("list-type" in one.path for one in bucket.requests) == 4
    assert not any(KEYS[1] in one.path or KEYS[1] in str(one.headers) for one in bucket.requests)

    bucket.files["docs/a.md"] = b"# Beds\nFour beds of roses!!\n"
    del bucket.files["docs/inner/b c.txt"]
    report = await shelf.index("cloud")
    assert (report.indexed, report.unchanged, report.removed, bucket.read[4:]) == (1, 2, 1, ["docs/a.md"])

    shelf.settings = replace(shelf.settings, secrets={"CLOUD": SecretSource(value=Secret("AKIATEST:wrong"))})
    assert "SignatureDoesNotMatch); is its secret right?" in await reason(shelf)
    bucket.keys = None  # public
    await shelf.folders.delete("cloud")
    await shelf.remote(bucket.address.replace("papers?", "papers/docs/?"))
    assert (await shelf.index("cloud")).indexed == 3
    assert "authorization" not in bucket.requests[-1].headers


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signatures_are_those_of_amazons_examples(query: str, signature: str) -> None:
    """Source: docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html."""
    target = SourceSettings().check(f"https://examplebucket.s3.amazonaws.com/?{query}")
    keys = "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    headers = signed(target, "us-east-1", keys, 1_369_353_600_000)
    assert headers["x-amz-date"] == "20130524T000000Z"
    assert headers["Authorization"].endswith(f"Signature={signature}")


@pytest.mark.parametrize("fault", ["forgets", "repeats"])
async def test_a_listing_without_an_end_removes_nothing(shelf: Shelf, bucket: BucketServer, fault: str) -> None:
    await shelf.remote(f"{bucket.address}&secret=CLOUD")
    await shelf.index("cloud")
    setattr(bucket, fault, True)
    del bucket.files["docs/a.md"]
    assert "does not say where it continues" in await reason(shelf)
    assert len(await shelf.rows("cloud")) == 3


async def test_secrets_go_where_the_operator_says_only(shelf: Shelf, dav: DavServer) -> None:
    dav.secret = "anna:p\u00e4ss"
    shelf.settings = at_home(dav, dav.secret)
    await shelf.remote(f"{dav.address}?secret=CLOUD", access=FolderAccess.READ)
    assert (await shelf.index("cloud")).indexed == 3
    async with WireServer([Play(chunks=(b"stolen",))]) as thief:
        shelf.settings = replace(shelf.settings, ports=(dav.port, thief.port))
        dav.redirects["a.md"] = f"{thief.url}/"
        dav.files["a.md"] = b"New."
        report = await shelf.index("cloud")
        assert [one.name for one in report.skipped] == ["a.md"]
        assert await found(shelf, "tulips") == ["a.md"]  # kept
        dav.redirects[""] = f"{thief.url}/"
        assert "redirected" in await reason(shelf)
        assert thief.connections == 0
    settings = replace(shelf.settings, services=())
    with pytest.raises(PermissionDenied, match="services"):
        check_address(f"{dav.address}?secret=CLOUD", settings)
    shelf.settings = settings
    assert "services" in await reason(shelf)
    dav.redirects.clear()
    shelf.settings = replace(at_home(dav), secrets={})
    assert "[sources.secrets.CLOUD]" in await reason(shelf)
    for wrong, says in (("anna:other", "401; is its secret right?"), ("t\u00f6ken", "characters")):
        shelf.settings = at_home(dav, wrong)
        assert says in await reason(shelf)


async def test_private_networks_are_not_reached_unless_the_operator_says_so(shelf: Shelf, dav: DavServer) -> None:
    await shelf.remote(dav.address)
    shelf.settings = replace(shelf.settings, allow_private=False)
    assert "private network" in await reason(shelf)
    assert dav.connections == 0
    # What a server leads to is checked like its own address: this port may not be used.
    shelf.settings = at_home(dav)
    async with WireServer([Play(chunks=(b"inside",))]) as private:
        dav.redirects["a.md"] = f"{private.url}/keys"
        report = await shelf.index("cloud")
        assert (report.indexed, [one.name for one in report.skipped]) == (2, ["a.md"])
        assert "may not be used" in report.skipped[0].reason
        dav.redirects["a.md"] = "http://169.254.169.254/latest/meta-data"
        shelf.settings = replace(at_home(dav), ports=(dav.port, 80))
        [skipped] = (await shelf.index("cloud")).skipped
        assert "not an address on the public internet" in skipped.reason
        assert private.connections == 0
    with pytest.raises(RowNotFound):
        await shelf.folders.content("cloud", "a.md")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("", "webdav"),
        ("/srv/files", "webdav"),
        ("ftp://example.org/x", "webdav"),
        ("https://example.org/x#y", "webdav"),
        ("https://anna:pass@example.org/", "password"),
        ("https:///x", "names no host"),
        ("https://example.org/?token=abc", "no 'token'"),
        ("s3://key:secret@papers/x", "written as"),
        ("s3://pa/x", "written as"),
        ("s3://papers?region=x.evil.example/", "written as"),
        ("s3://papers?endpoint=file:///etc", "http"),
        ("s3://papers?endpoint=https://example.org/%3Fx=", "without a query"),
        ("s3://papers?access_key=x", "no 'access_key'"),
    ],
)
def test_addresses_that_are_none_are_refused(address: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        check_address(address, SourceSettings())


def test_addresses_that_are() -> None:
    for address in ("webdav+https://example.org/a%20b", "https://example.org", "s3://papers"):
        check_address(address, SourceSettings())
    check_address("s3://papers/x/y?region=eu-west-1&secret=S", SourceSettings())  # Amazon's own may have it
    with pytest.raises(PermissionDenied):
        check_address("https://example.org:8443/", SourceSettings())
    with pytest.raises(PermissionDenied, match="services"):
        check_address("s3://papers?endpoint=https://minio.example.org&secret=S", SourceSettings())


BOMB = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><multistatus>&b;</multistatus>'


@pytest.mark.parametrize(
    ("listing", "says"),
    [
        (BOMB, "entities"),
        (b"<multistatus>" + b" " * 10_000_000 + b"</multistatus>", "too long"),
        (b"<multistatus>" + b"<a/>" * 300_000 + b"</multistatus>", "more than 300000 elements"),
        (b"<a>" * 1_000_000, "elements"),
        (b"<multistatus><response>", "not a listing"),
        (b"<html/>", "begins with <html>"),
        (b"{}", "not a listing"),
        (b"<multistatus xmlns='DAV:'/>", "is empty, and had 3 files"),
    ],
)
async def test_a_listing_that_is_none_removes_nothing(shelf: Shelf, dav: DavServer, listing: bytes, says: str) -> None:
    await shelf.remote(dav.address)
    await shelf.index("cloud")
    dav.listing = listing
    with pytest.raises(Unavailable) as raised:
        await shelf.folders.index("cloud", is_asked=False)
    assert says in raised.value.message
    assert says in str((await shelf.folders.get("cloud")).status_reason)
    assert set(await shelf.rows("cloud")) == NAMES


async def test_names_that_lead_elsewhere_are_not_asked_for(shelf: Shelf, dav: DavServer) -> None:
    hrefs = [
        "http://169.254.169.254/dav/a.md", "/etc/passwd", "/dav/../secret.md", "/dav/%2e%2e/x.md", "/dav/a%2Fb.md",
        "//other/other/x.md", "/dav/in/deep.md", "/dav/x%FF.md", "/dav/%00.md", "/dav/a%5Cb.md", "http://[", "",
    ]  # fmt: skip
    prop = "<prop><getcontentlength>28</getcontentlength></prop><status>HTTP/1.1 200 OK</status>"
    each = "".join(f"<response><href>{one}</href><propstat>{prop}</propstat></response>" for one in hrefs)
    dav.listing = f"<multistatus xmlns='DAV:'>{each}</multistatus>".encode()
    await shelf.remote(dav.address)
    await shelf.index("cloud")
    # Whatever host it names, the folder's own is asked.
    assert set(await shelf.rows("cloud")) == {"a.md"}
    assert [one.path for one in dav.requests] == ["/dav/", "/dav/a.md"]


async def test_lengths_that_lie_cost_no_more_than_they_say(
    shelf: Shelf, dav: DavServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BYTES_MAX", 1_000)
    dav.files = dict.fromkeys(("a.md", "b.md", "c.md", "d.md", "e.md", "f.md"), b"word " * 20)
    await shelf.remote(dav.address, access=FolderAccess.READ)
    await shelf.index("cloud")
    dav.sizes = {"a.md": "10", "b.md": "900", "c.md": str(2**40), "d.md": "x", "e.md": "100"}
    dav.files = {name: data + b"!" for name, data in dav.files.items()}
    dav.files["e.md"] = b"words" * 20
    report = await shelf.index("cloud")
    reasons = {one.name: one.reason for one in report.skipped}
    assert "lists 10 bytes, and sends more" in reasons["a.md"]
    assert "lists 900 bytes, and sends fewer" in reasons["b.md"]
    assert str(2**40) in reasons["c.md"]
    assert reasons["d.md"] == "has no length"
    assert "beyond the 1000 bytes" in reasons["e.md"]
    assert "beyond the 1000 bytes" in reasons["f.md"]
    assert await found(shelf, "word") == []
    assert set(await shelf.rows("cloud")) == {"a.md", "b.md", "c.md"}
    with pytest.raises(RowNotFound):  # not the bytes of before
        await shelf.folders.content("cloud", "a.md")


async def test_what_a_server_does_not_show_now_is_kept(shelf: Shelf, dav: DavServer) -> None:
    dav.files |= {"in/x.md": b"Words.", "in/y.md": b"Words."}
    await shelf.remote(dav.address)
    await shelf.index("cloud")
    dav.unshown = {"a.md": 403, "inner/": 403}
    del dav.files["in/x.md"]
    report = await shelf.index("cloud")
    assert (report.removed, {one.name for one in report.skipped}) == (1, {"a.md", "inner"})
    assert set(await shelf.rows("cloud")) == NAMES | {"in/y.md"}
    dav.unshown = {"inner/": 503}  # a server that cannot now is not asked further
    assert "503" in await reason(shelf)
    dav.unshown = {}
    dav.files.clear()
    with pytest.raises(Unavailable, match="is empty"):
        await shelf.folders.index("cloud", is_asked=False)
    assert (await shelf.index("cloud")).removed == 4


async def test_files_that_cannot_be_read_now_stop_a_scan_after_a_few(shelf: Shelf, dav: DavServer) -> None:
    dav.files = {f"{number}.md": b"Words of before." for number in range(9)}
    await shelf.remote(dav.address, access=FolderAccess.READ)
    await shelf.index("cloud")
    dav.files = dict.fromkeys(dav.files, b"Words of today!!")
    dav.failing = dict.fromkeys(["2.md", "4.md"], 503) | {"6.md": 404, "7.md": 403}
    report = await shelf.index("cloud")
    assert (report.indexed, [one.name for one in report.skipped]) == (5, ["2.md", "4.md", "6.md", "7.md"])
    assert sorted(await found(shelf, "before")) == ["2.md", "4.md", "6.md"]
    dav.files = dict.fromkeys(dav.files, b"Words of later..")
    dav.failing = {f"{number}.md": 503 for number in range(1, 9)}
    assert "5 files cannot be read now" in await reason(shelf)
    assert await found(shelf, "later") == ["0.md"]
    dav.failing = {}  # what was read is not asked for again
    before = len(dav.read)
    await shelf.index("cloud")
    assert len(dav.read) - before == 8


async def test_a_listing_is_bounded(shelf: Shelf, dav: DavServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUESTS_MAX", 2)
    await shelf.remote(dav.address)
    report = await shelf.index("cloud")
    assert [one.reason for one in report.skipped] == ["has too much in it; the rest is left out"]
    assert (report.indexed, len(dav.requests)) == (2, 4)
    monkeypatch.setattr(disk, "ENTRIES_MAX", 3)
    monkeypatch.setattr(module, "REQUESTS_MAX", 100)
    walk, _ = await scan_remote(shelf.settings, shelf.clock, dav.address)
    assert (len(walk.entries), walk.is_complete) == (1, False)
    monkeypatch.setattr(disk, "ENTRIES_MAX", 100)
    monkeypatch.setattr(module, "REQUESTS_MAX", 2)
    walk, read = await scan_remote(shelf.settings, shelf.clock, dav.address)
    assert (len(walk.entries), walk.is_complete) == (2, False)
    assert await read("a.md") == FILES["a.md"]
    monkeypatch.setattr(module, "SCAN_S_MAX", -1.0)
    assert "the next scan continues" in await reason(shelf)
    assert len(await shelf.rows("cloud")) == 2


async def test_more_files_than_a_folder_holds_are_left_out(
    shelf: Shelf, bucket: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "FILES_MAX", 2)
    await shelf.remote(f"{bucket.address}&secret=CLOUD")
    report = await shelf.index("cloud")
    assert (report.indexed, [one.reason for one in report.skipped]) == (2, ["is beyond 2 files"])


async def test_a_name_in_another_form_is_asked_for_as_its_server_writes_it(
    shelf: Shelf, dav: DavServer, bucket: BucketServer
) -> None:
    for server, secret in ((dav, ""), (bucket, "&secret=CLOUD")):
        shelf.settings = at_home(server, ":".join(KEYS))
        server.files = {"cafe\u0301 100%.md": b"Tea."}
        await shelf.remote(server.address + secret)
        assert (await shelf.index("cloud")).indexed == 1
        assert set(await shelf.rows("cloud")) == {"caf\u00e9 100%.md"}
        assert server.read == ["cafe\u0301 100%.md"]
        server.files["caf\u00e9 100%.md"] = b"Coffee."
        assert [one.reason for one in (await shelf.index("cloud")).skipped] == ["is there twice"]
        await shelf.folders.delete("cloud")


async def test_attached_folders_are_scanned_by_themselves_each_quarter_of_an_hour(shelf: Shelf, dav: DavServer) -> None:
    async def scanned(count: int) -> None:
        with trio.fail_after(20):
            await dav.arrived(count)
            while (await shelf.folders.get("cloud")).indexed_at is None:
                await trio.sleep(0.01)

    folder_id = await shelf.remote(dav.address)
    dead = await shelf.remote("webdav+https://256.256.256.256/", "dead", FolderAccess.READ)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shelf.folders.run)
        while (await shelf.folders.get(dead)).status == "ready":
            await trio.sleep(0.01)
        await shelf.folders.attach(folder_id, ADA, FolderAccess.READ)
        await scanned(6)
        asked = len(dav.requests)
        shelf.clock.advance(800_000)
        await shelf.folders.attach(folder_id, ADA, FolderAccess.READ)  # it is known well enough
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(dav.requests) == asked
        shelf.clock.advance(200_000)
        await shelf.folders.attach(folder_id, ADA, FolderAccess.READ)
        await scanned(asked + 3)
        nursery.cancel_scope.cancel()


def test_elements_are_counted_and_names_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    root = download.parse_xml(b'<a xmlns="DAV:" xmlns:x="y"><x:b>1</x:b><b/></a>', "a listing")
    assert [one.tag for one in root.iter()] == ["a", "b", "b"]
    monkeypatch.setattr(download, "XML_ELEMENTS_MAX", 2)
    with pytest.raises(InvalidInput, match="more than 2"):
        download.parse_xml(b"<a><b/><b/></a>", "a listing")


async def test_an_archive_has_the_files_and_not_the_secret(shelf: Shelf, dav: DavServer, tmp_path: Path) -> None:
    dav.secret = "anna:a-long-secret"
    made = tmp_path / "made.db"
    template.create(made, migrations_of("constellation"), now="2026-01-01T00:00:00.000Z")

    def at(path: Path) -> Shelf:
        return Shelf(Database.in_memory(open_connection(path)), settings=at_home(dav, dav.secret))

    first = at(made)
    await first.database.write(add_agents)
    await first.remote(f"{dav.address}?secret=CLOUD", access=FolderAccess.READ)
    assert (await first.index("cloud")).indexed == 3
    assert await first.database.write(maintenance.check) == []
    await first.database.aclose()
    whole: tuple[Kind, str] = ("constellation", "home")
    for kind, name in (whole, ("agent", "ada")):
        archive, _ = exported(made, tmp_path / kind, kind, name)
        assert dav.secret.encode() not in archive.read_bytes() and dav.secret.encode() not in made.read_bytes()
        second = at(imported(archive, tmp_path / kind))
        asked = len(dav.read)
        report = await second.index("cloud")  # what it knows of the files came along
        assert (report.indexed, report.unchanged, len(dav.read)) == (0, 3, asked)
        assert (await second.folders.content("cloud", "a.md"))[1] == FILES["a.md"]
        assert await second.database.write(maintenance.check) == []
        await second.database.aclose()


REAL = os.environ.get("PATTERN_REMOTE_SERVERS", "")
real = pytest.mark.skipif(not REAL, reason="PATTERN_REMOTE_SERVERS is not set: see CONTRIBUTING.md")
FILLING = """
import json, sys, boto3, requests
where, files = sys.argv[1], json.loads(sys.argv[2])
def client(name, **keys):
    return boto3.client(name, endpoint_url=where, region_name="eu-west-1", **keys)
first = {"aws_access_key_id": "x", "aws_secret_access_key": "y"}
s3, iam = client("s3", **first), client("iam", **first)
s3.create_bucket(Bucket="papers", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
for name, text in files.items():
    s3.put_object(Bucket="papers", Key=name, Body=text.encode())
iam.create_user(UserName="anna")
allowed = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}}
policy = iam.create_policy(PolicyName="p", PolicyDocument=json.dumps(allowed))["Policy"]["Arn"]
iam.attach_user_policy(UserName="anna", PolicyArn=policy)
key = iam.create_access_key(UserName="anna")["AccessKey"]
requests.post(where + "/moto-api/reset-auth", data="0")  # from here on, signatures are checked
print(key["AccessKeyId"] + ":" + key["SecretAccessKey"])
"""


@asynccontextmanager
async def started(*command: str) -> AsyncIterator[str]:
    """Run a server of that environment on a free port, in place of `PORT`, and yield its address once it accepts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program, *rest = [part.replace("PORT", str(port)) for part in command]
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, [f"{REAL}/{program}", *rest], capture_stdout=True, capture_stderr=True)
        nursery.start_soon(partial(start, check=False))
        with trio.fail_after(60):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await trio.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


def allowing(url: str, secret: str) -> SourceSettings:
    secrets = {"CLOUD": SecretSource(value=Secret(secret))}
    return SourceSettings(
        allow_private=True, ports=(int(url.rpartition(":")[2]),), secrets=secrets, services=(url,), timeout_s=20.0
    )


@real
async def test_real_wsgidav(shelf: Shelf, tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_bytes(data)
    config = {
        "provider_mapping": {"/": str(tmp_path / "files")},
        "http_authenticator": {"accept_digest": False, "default_to_digest": False},
        "simple_dc": {"user_mapping": {"*": {"anna": {"password": "secret"}}}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    async with started("wsgidav", "--host=127.0.0.1", "--port=PORT", f"--config={tmp_path}/config.json") as url:
        shelf.settings = allowing(url, "anna:secret")
        await shelf.remote(f"webdav+{url}/?secret=CLOUD", access=FolderAccess.READ)
        report = await shelf.index("cloud")
        assert (report.indexed, report.skipped, set(await shelf.rows("cloud"))) == (3, [], NAMES)
        (tmp_path / "files" / "a.md").write_text("Roses.")
        (tmp_path / "files" / "inner" / "b c.txt").unlink()
        report = await shelf.index("cloud")
        assert (report.indexed, report.unchanged, report.removed) == (1, 1, 1)
        assert await found(shelf, "roses") == ["a.md"]
        shelf.settings = allowing(url, "anna:wrong")
        assert "401" in await reason(shelf)


@real
async def test_real_moto(shelf: Shelf) -> None:
    shelf.clock.advance(SystemClock().now_ms() - shelf.clock.now_ms())  # signatures are valid for a quarter hour
    files = {f"docs/{name}": data.decode() for name, data in FILES.items()} | {"docs/x+y & <z>~'(1)*.md": "Signs."}
    files |= {f"docs/many/{number:04}.md": f"Words {number}." for number in range(1_001)}
    async with started("moto_server", "-H", "127.0.0.1", "-p", "PORT") as url:
        made = await trio.run_process([f"{REAL}/python", "-c", FILLING, url, json.dumps(files)], capture_stdout=True)
        keys = made.stdout.decode().strip()
        shelf.settings = allowing(url, keys)
        await shelf.remote(f"s3://papers/docs?region=eu-west-1&endpoint={url}&secret=CLOUD")
        report = await shelf.index("cloud")
        assert (report.indexed, report.unchanged, report.skipped) == (1_005, 0, [])
        report = await shelf.index("cloud")
        assert (report.indexed, report.unchanged, report.skipped) == (0, 1_005, [])
        shelf.settings = allowing(url, f"{keys}x")
        assert "SignatureDoesNotMatch" in await reason(shelf)
