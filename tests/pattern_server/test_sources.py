"""Accounts of sources are asked by the server, also while their constellation is parked; services post to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from pattern_core import portable
from pattern_core.errors import NotFound
from pattern_core.ids import SystemClock, seeded_randomness
from pattern_core.models.providers.settings import Secret
from pattern_core.runtime import Runtime
from pattern_core.sources.source import Arrivals, Receive, SourceAccount, SourceEvent, SourceKind
from pattern_core.testing.channels import TOKEN, FeedServer, TelegramServer
from pattern_core.testing.jetstream_server import JetstreamServer
from pattern_core.testing.model import ScriptedProvider, says
from pattern_core.web.policy import SourceSettings
from pattern_db import maintenance
from pattern_db.connection import opened_at
from pattern_db.database import DatabaseThreads
from pattern_db.tables.constellations import ConstellationRow
from pattern_db.tables.sources import SourceRow
from pattern_server import sources
from pattern_server.accounts import Accounts
from pattern_server.global_database import open_global
from pattern_server.http.border import FLOOD_PAUSE_S
from pattern_server.metrics import Metrics
from pattern_server.sources import EVENTS_PER_S, PATIENCE_S, STORED_MAX, SourceAccounts
from tests.pattern_server.place import Place, config_for, serving
from tests.support import rows, until

NOW = "2026-11-21T00:00:00.000Z"

FEED = b"<rss><channel><item><guid>1</guid><title>One</title></item></channel></rss>"


@asynccontextmanager
async def asking(folder: Path, *ports: int, starts: bool = True, **others: Any) -> AsyncIterator[Place]:
    """A server that may reach these ports of loopback, with a constellation; it asks its sources if it `starts`."""
    secrets = {"bot": {"value": Secret(TOKEN)}, "hook": {"value": Secret("a secret")}}
    services = [f"http://127.0.0.1:{port}" for port in ports]
    reach: Any = {"ports": ports or (80,), "allow_private": True, "timeout_s": 1.0, "services": services}
    reach |= {"secrets": secrets, **others}
    config = config_for(folder, sources=reach, supervisor={"idle_park_s": 0.8})
    provider = ScriptedProvider(otherwise=says("Hello."))
    async with serving(config, {"scripted": provider}) as place:
        if not (folder / "data" / "constellations").exists() or not any((folder / "data" / "constellations").iterdir()):
            await place.constellation(model_provider="scripted", model_name="script-1")
        async with trio.open_nursery() as nursery:
            if starts:
                nursery.start_soon(place.parts.state.sources.run)
            yield place
            nursery.cancel_scope.cancel()


async def source(place: Place, kind: str, named: str = "", **config: Any) -> str:
    """A new source of the constellation `home`; its id."""
    body = {"name": named or kind, "kind": kind, "agent": "ada", "config": config}
    made = await place.admin.post("/constellations/home/sources", json=body)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


async def until_state(place: Place, state: str) -> None:
    """Wait until the only constellation is in this state."""
    with trio.fail_after(10):
        while (await place.admin.get("/constellations")).json()["items"][0]["state"] != state:
            await trio.sleep(0.02)


async def test_a_parked_constellation_is_woken_by_a_message_and_not_by_waiting(tmp_path: Path) -> None:
    async with TelegramServer() as server, asking(tmp_path, server.port) as place:
        await source(place, "telegram", token="bot", base_url=server.url)
        await until_state(place, "parked")
        with trio.fail_after(10):
            while not any(one.path.endswith("getUpdates") for one in server.requests):
                await trio.sleep(0.02)
        assert (await place.admin.get("/constellations")).json()["items"][0]["state"] == "parked"
        server.says("Hi")
        with trio.fail_after(10):
            while not server.sent:
                await trio.sleep(0.02)
        assert "code" in server.texts[0]
        metrics = place.parts.state.metrics.text().decode()
        assert 'pattern_sources{state="active"} 1.0' in metrics and "pattern_source_event_timestamp" in metrics


async def test_posts_of_jetstream_wake_a_parked_constellation_and_a_success_ends_the_failures(tmp_path: Path) -> None:
    async with JetstreamServer() as server, asking(tmp_path, *server.ports) as place:
        server.deaf = 1  # the first connection is of no use
        await source(place, "jetstream", endpoint=server.gateway_url, base_url=server.url, authors=["anna.example"])
        sources = place.parts.state.sources
        await until(lambda: sources.failing)
        await until(lambda: server.wanted)
        await until_state(place, "parked")
        server.drops = 1  # the post is the last of its connection
        server.says("one")
        await until(lambda: sources.polls["events"] >= 1)
        server.says("two")
        await until(lambda: sources.polls["events"] >= 2)
        assert sources.failing == {} and sources.polls["failure"] == 1
        [found] = (await place.admin.get("/constellations/home/sources")).json()["items"]
        assert found["state"] == "active"


async def test_a_source_that_fails_is_shown_and_harms_no_other(tmp_path: Path) -> None:
    async with (
        FeedServer(FEED) as broken,
        FeedServer(FEED) as works,
        asking(tmp_path, broken.port, works.port) as place,
    ):
        broken.body = b"<html>"
        await source(place, "rss", url=f"{broken.url}/feed")
        body = {"name": "works", "kind": "rss", "agent": "ada", "config": {"url": f"{works.url}/feed"}}
        await place.admin.post("/constellations/home/sources", json=body)
        with trio.fail_after(10):
            while True:
                found = (await place.admin.get("/constellations/home/sources")).json()["items"]
                states = {one["name"]: one["state"] for one in found}
                if states == {"rss": "failing", "works": "active"} and found[1]["last_event_at"]:
                    break
                await trio.sleep(0.02)
        assert "not a feed" in found[0]["error"]
        assert place.parts.state.sources.states == {"failing": 1, "active": 1}
        lag_s = place.parts.state.sources.lag_s
        await trio.sleep(0.01)
        assert place.parts.state.sources.lag_s > lag_s
        await place.admin.patch("/constellations/home/sources/rss", json={"enabled": False})
        with trio.fail_after(5):
            while place.parts.state.sources.states != {"failing": 0, "active": 1}:
                await trio.sleep(0.02)
        assert place.parts.state.sources.lag_s == 0


async def test_a_restart_asks_when_it_is_due_and_opens_no_file_before(tmp_path: Path) -> None:
    async with FeedServer(FEED) as server:
        async with asking(tmp_path, server.port) as place:
            await source(place, "rss", url=f"{server.url}/feed")
            with trio.fail_after(10):
                while place.parts.state.sources.last_event_ms is None:
                    await trio.sleep(0.02)
        asked = len(server.requests)
        async with asking(tmp_path, server.port) as place:
            with trio.fail_after(10):
                while place.parts.state.sources.states["active"] == 0:
                    await trio.sleep(0.02)
            assert place.parts.state.supervisor.handles() == []
            assert len(server.requests) == asked


async def test_a_service_posts_and_its_event_is_stored_before_the_answer(tmp_path: Path) -> None:
    async with asking(tmp_path) as place, httpx2.AsyncClient() as client:
        hook = await source(place, "webhook", secret="hook", signature="token")
        url, headers = f"{place.url}/hooks/{hook}", {"X-Token": "a secret", "Idempotency-Key": "1"}
        answers = [(await client.post(url, content=b'{"a": 1}', headers=headers)) for _ in range(2)]
        assert [(one.status_code, one.json()) for one in answers] == [(202, {"new": True}), (202, {"new": False})]
        found = (await place.admin.get(f"/constellations/home/sources/{hook}/deliveries")).json()["items"]
        assert [(one["direction"], one["text"]) for one in found] == [("in", '{\n "a": 1\n}')]
        assert (await client.post(url, content=b"{}", headers={"X-Token": "wrong"})).status_code == 403
        assert (await client.post(f"{place.url}/hooks/src_none", content=b"{}")).status_code == 404
        await place.admin.patch(f"/constellations/home/sources/{hook}", json={"enabled": False})
        assert (await client.post(url, content=b"{}", headers=headers)).status_code == 404
        await place.admin.patch(f"/constellations/home/sources/{hook}", json={"enabled": True})
        assert (await client.post(url, content=b"{}", headers=headers)).status_code == 202
        await place.admin.delete("/constellations/home")
        assert (await client.post(url, content=b"{}", headers=headers)).status_code == 404


async def test_events_that_are_posted_take_turns_and_those_too_many_are_refused_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "POSTED_PER_S", 1.0)
    statuses = Counter[int]()
    async with asking(tmp_path) as place, httpx2.AsyncClient(timeout=20) as client:
        hooks = [await source(place, "webhook", number, secret="hook", signature="token") for number in "12"]
        first, second = (f"{place.url}/hooks/{hook}" for hook in hooks)
        headers, began = {"X-Token": "a secret"}, trio.current_time()

        async def post(number: int) -> None:
            answer = await client.post(first, content=str(number).encode(), headers=headers)
            statuses[answer.status_code] += 1
            took_s = trio.current_time() - began
            if answer.status_code == 429:
                assert int(answer.headers["retry-after"]) > PATIENCE_S and "connection" not in answer.headers
                assert took_s > FLOOD_PAUSE_S  # a sender that waits for answers sends no more of them than that
            else:
                assert took_s > statuses[202] - 1.1

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(post, number)
            async with httpx2.AsyncClient() as other:
                assert (await other.post(second, content=b"1", headers=headers)).status_code == 202
                assert trio.current_time() - began < 1
    assert statuses[202] in (6, 7) and statuses[429] == 10 - statuses[202]


async def test_who_cannot_prove_an_event_takes_no_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "POSTED_PER_S", 0.01)
    async with asking(tmp_path) as place, httpx2.AsyncClient() as client:
        url = f"{place.url}/hooks/{await source(place, 'webhook', secret='hook', signature='token')}"
        for _ in range(3):
            assert (await client.post(url, content=b"1", headers={"X-Token": "wrong"})).status_code == 403
        with trio.fail_after(10):
            assert (await client.post(url, content=b"1", headers={"X-Token": "a secret"})).status_code == 202


async def test_a_constellation_that_is_gone_is_asked_no_more(tmp_path: Path) -> None:
    async with TelegramServer() as server, asking(tmp_path, server.port) as place:
        await source(place, "telegram", token="bot", base_url=server.url)
        await until_state(place, "parked")
        await place.admin.delete("/constellations/home")
        server.says("Hi")
        with trio.fail_after(10):
            while place.parts.state.sources.states["active"]:
                await trio.sleep(0.02)


TABLES = ("data_sources", "agent_data_sources", "source_seen", "source_chat", "source_person", "source_turn", "outbox")


async def counted(place: Place, name: str) -> dict[str, int]:
    """How many rows a constellation has in the tables of sources and channels."""
    principal = await place.parts.state.accounts.authenticate(place.parts.local_token)
    async with place.parts.state.constellations.use(principal, name) as constellation:
        read = constellation.database.read
        return {table: int(str((await read(rows, f"SELECT count(*) FROM {table}"))[0][0])) for table in TABLES}


async def talked(place: Place, server: TelegramServer) -> None:
    """Have one person talk and another one get a code, so that every table of sources and channels has rows."""
    await source(place, "telegram", token="bot", base_url=server.url)
    people = {"person": "1", "status": "partner"}
    await place.admin.post("/constellations/home/sources/telegram/people", json=people)
    server.says("Hi")
    server.says("And I?", author=2)
    with trio.fail_after(10):
        while sorted(text[:6] for text in server.texts) != ["Hello.", "I do n"]:
            await trio.sleep(0.02)
        while not all((await counted(place, "home")).values()):
            await trio.sleep(0.02)


async def test_an_export_has_no_secret_and_what_is_imported_is_paused_until_its_secret_is_there(tmp_path: Path) -> None:
    async with TelegramServer() as server:
        async with asking(tmp_path / "one", server.port) as place:
            await talked(place, server)
            before = await counted(place, "home")
            made = (await place.admin.post("/constellations/home/export", json={})).json()
        [code] = re.findall(r"code is (\w{8})", " ".join(server.texts))
        archive = Path(made["path"]).read_bytes()
        assert TOKEN.encode() not in archive and code.encode() not in archive
        asked = len(server.requests)
        async with asking(tmp_path / "two", server.port, secrets={}) as place:
            moved = await place.admin.post("/constellations/import", json={"file": made["path"], "name": "moved"})
            assert moved.status_code == 201, moved.text
            after = await counted(place, "moved")
            assert {name for name in TABLES if after[name] == before[name]} == set(TABLES[:4])
            assert (after["source_person"], after["source_turn"], after["outbox"]) == (0, 0, 0)
            where = "/constellations/moved/sources/telegram"
            refused = await place.admin.patch(where, json={"enabled": True})
            assert refused.status_code == 422 and "add [sources.secrets.bot]" in refused.text
            assert (await place.admin.get(where)).json()["state"] == "paused"
            assert len(server.requests) == asked
        async with asking(tmp_path / "two", server.port) as place:
            resumed = await place.admin.patch(where, json={"enabled": True})
            assert (resumed.status_code, resumed.json()["state"]) == (200, "active")
            server.says("Still there?")  # who may talk is decided again; what was there before is known
            with trio.fail_after(10):
                while len(server.sent) < 3:
                    await trio.sleep(0.02)
            assert "Your code is" in server.texts[2] and len(server.sent) == 3


async def test_an_archive_that_names_another_service_gets_no_secret_sent_there(tmp_path: Path) -> None:
    async with TelegramServer() as server, TelegramServer() as thief:
        async with asking(tmp_path / "one", server.port, thief.port, starts=False) as place:
            await source(place, "telegram", token="bot", base_url=thief.url)
            made = (await place.admin.post("/constellations/home/backup", json={})).json()
            archive = tmp_path / "hostile.car"  # not paused, as our own archives are
            with archive.open("xb") as file:
                portable.write(Path(made["path"]), file, kind="constellation", id_or_name="home")
        async with asking(tmp_path / "two", server.port, thief.port, services=[server.url]) as place:
            await place.admin.post("/constellations/import", json={"file": str(archive), "name": "moved"})
            where = "/constellations/moved/sources/telegram"
            assert (await place.admin.get(where)).json()["state"] == "paused"
            refused = await place.admin.patch(where, json={"enabled": True})
            assert refused.status_code == 403 and "may not be sent a secret" in refused.text
            tested = (await place.admin.post(f"{where}/test")).json()
            assert not tested["accepted"] and "may not be sent a secret" in tested["error"]
            assert (await place.admin.post(f"{where}/sync")).status_code == 409
            assert thief.requests == []


async def test_a_backup_and_a_check_know_the_rows_of_sources_and_a_restored_copy_is_paused(tmp_path: Path) -> None:
    async with TelegramServer() as server, asking(tmp_path, server.port) as place:
        await talked(place, server)
        before = await counted(place, "home")
        made = (await place.admin.post("/constellations/home/backup", json={})).json()
        with opened_at(Path(made["path"])) as copy:
            assert maintenance.check(copy) == []
            assert {table: copy.execute(f"SELECT count(*) FROM {table}").get for table in TABLES} == before
        lost = tmp_path / "lost.db"
        lost.write_bytes(Path(made["path"]).read_bytes())
        with opened_at(lost) as copy:
            copy.execute("PRAGMA foreign_keys = 0").fetchall()
            copy.execute("DELETE FROM data_sources").fetchall()
            found = {problem.split(" of ")[1].split()[0] for problem in maintenance.check(copy)}
            assert found == {"agent_data_sources", "source_seen", "source_chat", "source_person"}
        body = {"file": made["path"], "name": "copy"}
        restored = await place.admin.post("/constellations/restore", json=body)
        assert restored.status_code == 201, restored.text
        assert (await place.admin.get("/constellations/copy/sources/telegram")).json()["state"] == "paused"
        assert await counted(place, "copy") == before


def test_metrics_without_sources() -> None:
    assert b"pattern_sources" not in Metrics().text()


class Connected(SourceKind):
    """Sends `batches` over one connection after the other, then waits; `breaks` is raised by the first connection."""

    def __init__(self, stored: list[Arrivals], breaks: Exception | None, together: int = 1) -> None:
        self.stored, self.breaks, self.together = stored, breaks, together
        self.begins: list[object] = []  # the cursor with which each connection began
        self.unstored = 0  # batches that were handed over and not stored when `receive` returned

    def checked(self, config: Any, settings: SourceSettings) -> Any:
        return config

    async def listen(self, account: SourceAccount, receive: Receive) -> float:
        self.begins.append(account.cursor.get("at", 0))
        for at in range(account.cursor.get("at", 0) + 1, 6):
            events = [SourceEvent(native=f"{at}.{one}", text="x") for one in range(self.together)]
            await receive(Arrivals(events=events, cursor={"at": at}))
            self.unstored += self.stored[-1].cursor != {"at": at}
            if at == 3 and self.breaks is not None:
                breaks, self.breaks = self.breaks, None
                raise breaks
            if at == 3 and len(self.begins) == 1:
                break
        else:
            await trio.sleep_forever()
        return 0.0


class Constellation:
    """Keeps what arrived, as the sources of a constellation do."""

    def __init__(self, breaks: Exception | None, together: int) -> None:
        self.stored: list[Arrivals] = []
        self.failures: list[str] = []
        self.kind = Connected(self.stored, breaks, together)
        self.row = SourceRow("src_1", "feed", "connected", {}, NOW, NOW)
        self.sources = self

    async def account(self, _source_id: str) -> tuple[SourceKind, SourceAccount]:
        return self.kind, SourceAccount(row=self.row, settings=SourceSettings(), clock=SystemClock())

    async def receive(self, _source_id: str, arrived: Arrivals) -> int:
        await trio.sleep(0.01)
        self.stored.append(arrived)
        self.row = replace(self.row, sync_cursor=arrived.cursor)
        return len(arrived.events)

    async def failed(self, _source_id: str, reason: str) -> None:
        self.failures.append(reason)


async def listened(path: Path, breaks: Exception | None, together: int = 1) -> Constellation:
    """Return a constellation after the account of its source was followed until five batches were stored."""
    constellation = Constellation(breaks, together)

    @asynccontextmanager
    async def use(_constellation_id: str) -> AsyncIterator[Any]:
        yield constellation

    with DatabaseThreads() as threads:
        async with open_global(path / "global.db", threads, now=NOW) as registry, trio.open_nursery() as nursery:
            runtime = Runtime(clock=SystemClock(), randomness=seeded_randomness(1))
            users = Accounts(registry, runtime, local_token="local")
            owner = await users.create_user("ada")
            await users.register(ConstellationRow("con_1", owner.id, "home", "con_1", NOW, NOW))
            accounts = SourceAccounts(registry, SystemClock(), seeded_randomness(1))
            accounts.use = use
            await accounts.changed("con_1", {"src_1": True})
            nursery.start_soon(accounts.run)
            await until(lambda: len(constellation.stored) == 5)
            assert dict(accounts.states) == {"failing": 0, "active": 1}
            nursery.cancel_scope.cancel()
    return constellation


async def test_a_batch_is_stored_before_the_kind_continues_and_the_next_connection_begins_behind_it(
    tmp_path: Path,
) -> None:
    found = await listened(tmp_path, None)
    assert [one.cursor["at"] for one in found.stored] == [1, 2, 3, 4, 5]
    assert (found.kind.begins, found.kind.unstored, found.failures) == ([0, 3], 0, [])


async def test_what_a_kind_cannot_read_is_a_failure_of_its_account_and_the_next_connection_begins_where_it_was(
    tmp_path: Path,
) -> None:
    found = await listened(tmp_path, KeyError("heartbeat_interval"))
    assert found.kind.begins == [0, 3]
    [reason] = found.failures
    assert reason.startswith("what the service sent cannot be read: KeyError")


async def test_a_host_that_is_not_found_for_a_while_does_not_end_an_account(tmp_path: Path) -> None:
    found = await listened(tmp_path, NotFound("there is no host example.org"))
    assert (found.kind.begins, found.failures) == ([0, 3], ["there is no host example.org"])


async def test_a_source_with_too_many_events_is_read_later(tmp_path: Path) -> None:
    began = trio.current_time()
    found = await listened(tmp_path, None, together=STORED_MAX + 5)
    assert [len(one.events) for one in found.stored] == [STORED_MAX, 5, STORED_MAX, 5, STORED_MAX]
    assert [one.cursor.get("at") for one in found.stored] == [None, 1, None, 2, None]  # behind all that came together
    assert trio.current_time() - began >= (STORED_MAX + 10) / EVENTS_PER_S
