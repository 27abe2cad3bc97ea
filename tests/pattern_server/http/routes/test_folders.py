"""Folders over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from pattern_core.files.disk import FILE_BYTES_MAX
from pattern_core.testing.remote_servers import DavServer
from pattern_server.config import ConfigError
from tests.pattern_server.place import Place, config_for, serving

HERE = "/constellations/home/folders"


@pytest.fixture
async def home(place: Place) -> Place:
    """The constellation home with the agent ada and the virtual folder papers."""
    await place.constellation()
    made = await place.admin.post(HERE, json={"name": "papers", "description": "What was read."})
    assert made.status_code == 201, made.text
    return place


async def put(client: httpx2.AsyncClient, name: str, data: bytes, where: str = HERE) -> httpx2.Response:
    return await client.put(f"{where}/papers/files/{name}", content=data)


async def test_a_file_may_be_longer_than_other_bodies(home: Place) -> None:
    bound = home.parts.state.config.body_bytes_max
    line = b"A line of an ordinary length, as books have them.\n"
    stored = await put(home.admin, "book.txt", line * (bound // len(line) + 10))
    assert stored.status_code == 201, stored.text
    refused = await put(home.admin, "library.txt", b"x" * (FILE_BYTES_MAX + 1))
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")


async def test_a_directory_is_shown_by_administrators_only(home: Place, tmp_path: Path) -> None:
    root = tmp_path / "notes"
    root.mkdir()
    (root / "a.md").write_text("Tulips.")
    (root / "b.txt").write_bytes(b"\x7fELF")
    body = {"name": "notes", "path_type": "local", "path": str(root)}
    ann = await home.client("ann")
    await ann.post("/constellations", json={"name": "hers"})
    refused = await ann.post("/constellations/hers/folders", json=body)
    assert refused.status_code == 422
    assert "files_roots" in refused.json()["detail"]
    for path in ("relative", None):
        assert (await home.admin.post(HERE, json={**body, "path": path})).status_code == 422
    made = await home.admin.post(HERE, json=body)
    assert made.status_code == 201, made.text
    report = (await home.admin.post(f"{HERE}/notes/index")).json()
    assert (report["indexed"], [one["name"] for one in report["skipped"]]) == (1, ["b.txt"])
    root.rename(tmp_path / "moved")
    gone = await home.admin.post(f"{HERE}/notes/index")
    assert (gone.status_code, gone.json()["code"]) == (503, "unavailable")
    assert (await home.admin.get(f"{HERE}/notes")).json()["status"] == "unavailable"
    assert len((await home.admin.get(f"{HERE}/notes/files")).json()["items"]) == 2


@pytest.fixture
async def rooted(alone: Path) -> AsyncIterator[Place]:
    """A server whose operator lets everybody show what lies in `shared`."""
    (alone / "shared" / "notes").mkdir(parents=True)
    (alone / "other").mkdir()
    async with serving(config_for(alone, files_roots=(alone / "shared",))) as found:
        yield found


async def test_the_operators_directories_are_for_everybody(rooted: Place, alone: Path) -> None:
    ann = await rooted.client("ann")
    await ann.post("/constellations", json={"name": "hers"})
    where = "/constellations/hers/folders"
    (alone / "shared" / "out").symlink_to(alone / "other")
    for name, path, status in (
        ("a", "shared/notes", 201),
        ("b", "shared", 201),
        ("c", "other", 422),
        ("d", "shared/../other", 422),
        ("e", "shared/out", 422),
    ):
        body = {"name": name, "path_type": "local", "path": str(alone / path)}
        assert (await ann.post(where, json=body)).status_code == status, path


def test_the_operators_directories_are_whole_paths(alone: Path) -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        config_for(alone, files_roots=("notes",))


async def test_a_remote_folder_is_read_where_the_operator_allows_it(alone: Path) -> None:
    async with DavServer({"a.md": b"Tulips."}, "anna:secret") as dav:
        (alone / "cloud").write_text("anna:secret\n")
        sources = {
            "allow_private": True,
            "ports": [dav.port],
            "services": [dav.url],
            "secrets": {"CLOUD": {"file": str(alone / "cloud")}},
        }
        async with serving(config_for(alone, sources=sources)) as server:
            await server.constellation()
            body = {"name": "cloud", "path_type": "remote"}
            for path in (
                None,
                "/srv",
                "webdav+https://example.org/?secret=CLOUD",
            ):  # no service
                refused = await server.admin.post(HERE, json={**body, "path": path})
                assert refused.status_code in (403, 422), refused.text
            made = await server.admin.post(HERE, json={**body, "path": f"{dav.address}?secret=CLOUD"})
            assert (made.status_code, made.json()["path_value"]) == (201, f"{dav.address}?secret=CLOUD"), made.text
            assert (await server.admin.post(f"{HERE}/cloud/index")).json()["indexed"] == 1
            assert (await server.admin.get(f"{HERE}/cloud/files/a.md")).content == b"Tulips."
            assert (await server.admin.put(f"{HERE}/cloud/files/b.md", content=b"x")).status_code == 422
            attached = {"agent": "ada", "access": "read_write"}
            assert (await server.admin.post(f"{HERE}/cloud/attachments", json=attached)).status_code == 422
            (alone / "cloud").write_text("anna:changed")  # read again by each scan
            failed = await server.admin.post(f"{HERE}/cloud/index")
            assert (failed.status_code, "is its secret right?" in failed.json()["detail"]) == (503, True)
            assert not any(b"anna:secret" in file.read_bytes() for file in (alone / "data").rglob("*.db*"))
