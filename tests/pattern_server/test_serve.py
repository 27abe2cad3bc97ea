"""The whole server: started, stopped, killed and started again; and its log."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from pattern_core.errors import Unavailable
from pattern_core.testing.model import Paced, ScriptedProvider, says
from pattern_core.testing.wire import Play, WireServer
from pattern_core.testing.wire_openai import serve_openai
from pattern_db.connection import open_connection
from pattern_db.errors import OwnedElsewhere, RowNotFound, SchemaOutdated, StorageFailed
from pattern_server.config import Config
from pattern_server.listener import ListenFailed
from pattern_server.serve import OURS, WAKE_RETRY_S, Ready, _wake_due, configure_logs, open_app, serve
from tests.pattern_server.place import API, SCRIPTED, client_of, config_for, serving
from tests.support import PATIENCE_S, until

OTHER = {"model_provider": "google", "model_name": "g"}
GIVEN = "a-token-given-by-the-operator-0123456789"


@asynccontextmanager
async def running(config: Config, *providers: ScriptedProvider) -> AsyncIterator[Ready]:
    """`serve` within the block, drained at its end."""
    shutdown = trio.Event()
    async with trio.open_nursery() as nursery:
        run = partial(serve, config, shutdown=shutdown, providers={each.name: each for each in providers})
        ready: Ready = await nursery.start(run)
        yield ready
        shutdown.set()


@pytest.mark.parametrize(
    ("trouble", "again_s"),
    [
        (None, None),
        (RowNotFound("deleted"), None),
        (Unavailable("quarantined", retry_after_s=60), 60.0),
        (Unavailable("busy", retry_after_s=0.5), WAKE_RETRY_S),
        (Unavailable("somehow"), WAKE_RETRY_S),
        (StorageFailed("no disk"), WAKE_RETRY_S),
    ],
)
async def test_what_cannot_be_woken_is_woken_later(trouble: Exception | None, again_s: float | None) -> None:
    asked: list[tuple[object, ...]] = []

    class Registry:
        async def read(self, _fn: object, *arguments: object) -> dict[str, str]:
            return {} if arguments else {"con_1": "2026-01-01T00:00:00.000Z"}

    class Sleepers:
        @asynccontextmanager
        async def use(self, _constellation_id: str) -> AsyncIterator[None]:
            if trouble is not None:
                raise trouble
            yield

    class Due:
        def set(self, *due: object) -> None:
            asked.append(due)

        async def run(self, wake: Any) -> None:
            asked.append(("again", await wake("con_1")))

    state = SimpleNamespace(accounts=SimpleNamespace(database=Registry()), supervisor=Sleepers())
    parts: Any = SimpleNamespace(state=state, wakeups=Due())
    await _wake_due(parts)
    assert asked == [("con_1", "2026-01-01T00:00:00.000Z"), ("again", again_s)]


async def made(client: httpx2.AsyncClient) -> None:
    """Make the constellation home with its agent ada."""
    await client.post("/constellations", json={"name": "home"})
    await client.post("/constellations/home/agents", json={"name": "ada"})


async def begun(client: httpx2.AsyncClient) -> str:
    """Send ada of a new constellation a message, and return the path of its turn."""
    await made(client)
    where = "/constellations/home/agents/ada/messages"
    answer = await client.post(where, json={"content": "Hello"}, headers={"Prefer": "respond-async"})
    return f"/constellations/home/turns/{answer.json()['turn_id']}"


async def asked(provider: ScriptedProvider) -> None:
    """Wait until the provider has been asked."""
    await until(lambda: provider.asked)


async def completed(client: httpx2.AsyncClient, turn: str) -> dict[str, Any]:
    """Return the turn once it has completed."""
    with trio.fail_after(60):
        while (found := (await client.get(turn)).json())["status"] != "completed":
            await trio.sleep(0.01)
    return dict(found)


async def test_a_running_server_says_where_and_leaves_nothing(alone: Path) -> None:
    config = config_for(alone)
    said = config.data_dir / "server.json"
    async with running(config) as ready:
        assert said.stat().st_mode & 0o777 == 0o600
        content = json.loads(said.read_text())
        assert (content["pid"], content["url"]) == (os.getpid(), ready.url)
        assert content["started_at"].endswith("Z")
        async with client_of(ready.url, content["token"]) as client:
            assert (await client.get("/me")).json()["username"] == "admin"
    assert not said.exists()
    assert sorted(path.name for path in config.data_dir.iterdir()) == ["admin.token", "global.db", "lock"]


async def test_a_given_token_is_used_and_not_shown(alone: Path) -> None:
    async with running(config_for(alone, bootstrap_token=GIVEN)) as ready:
        assert ready.token is None
        async with client_of(ready.url, GIVEN) as client:
            assert (await client.get("/me")).status_code == 200


async def test_a_second_server_is_refused_by_name(alone: Path) -> None:
    config = config_for(alone)
    async with running(config) as ready:
        with pytest.raises(OwnedElsewhere, match=f"process {os.getpid()}.*{ready.url}"):
            async with open_app(config):
                pass
        async with client_of(ready.url, json.loads((config.data_dir / "server.json").read_text())["token"]) as client:
            assert (await client.get("/me")).status_code == 200


async def test_a_taken_port_leaves_nothing_locked(alone: Path) -> None:
    async with running(config_for(alone / "a")) as ready:
        other = config_for(alone / "b").model_copy(update={"port": int(ready.url.rsplit(":", 1)[1])})
        with pytest.RaisesGroup(ListenFailed, flatten_subgroups=True):
            await serve(other, shutdown=trio.Event())
    assert not (other.data_dir / "server.json").exists()
    async with running(config_for(alone / "b")):
        pass


async def test_an_outdated_global_database_is_refused_untouched(alone: Path) -> None:
    config = config_for(alone)
    async with running(config):
        pass
    path = config.data_dir / "global.db"
    connection = open_connection(path)
    connection.execute("DELETE FROM schema_migrations WHERE version = (SELECT max(version) FROM schema_migrations)")
    connection.execute("PRAGMA journal_mode").fetchall()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SchemaOutdated, match="pattern db migrate"):
        async with open_app(config):
            pass
    assert path.read_bytes() == before


async def test_open_turns_continue_at_the_next_start_without_a_request(alone: Path) -> None:
    config = config_for(alone, supervisor={"drain_s": 0.1}, bootstrap_token=GIVEN)
    slow = ScriptedProvider([Paced(answer=says("Never."), gate=trio.Event())])
    async with running(config, slow) as ready, client_of(ready.url, GIVEN) as client:
        where = await begun(client)
        await asked(slow)
    quick = ScriptedProvider(otherwise=says("Here I am."))
    async with running(config, quick) as ready:
        await asked(quick)  # before any request
        async with client_of(ready.url, GIVEN) as client:
            turn = await completed(client, where)
    assert [said["content"] for said in turn["messages"]] == ["Hello", "Here I am."]


async def test_a_second_signal_stops_at_once_and_loses_nothing(alone: Path) -> None:
    config = config_for(alone, supervisor={"drain_s": 300}, bootstrap_token=GIVEN)
    slow = ScriptedProvider([Paced(answer=says("Never."), gate=trio.Event())])
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            ready: Ready = await nursery.start(partial(serve, config, providers={"scripted": slow}))
            async with client_of(ready.url, GIVEN) as client:
                where = await begun(client)
            await asked(slow)
            os.kill(os.getpid(), signal.SIGINT)
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert (config.data_dir / "server.json").exists(), "the first signal lets the turn end"
            os.kill(os.getpid(), signal.SIGTERM)
    assert not (config.data_dir / "server.json").exists()
    quick = ScriptedProvider(otherwise=says("Here I am."))
    async with running(config, quick) as ready, client_of(ready.url, GIVEN) as client:
        await completed(client, where)


async def test_a_request_that_waits_while_the_server_stops_gets_the_turn(alone: Path) -> None:
    config = config_for(alone, supervisor={"drain_s": 0.1}, bootstrap_token=GIVEN)
    slow = ScriptedProvider([Paced(answer=says("Never."), gate=trio.Event())])
    answers: list[httpx2.Response] = []
    streamed: list[str] = []

    async def wait(client: httpx2.AsyncClient) -> None:
        answers.append(await client.post("/constellations/home/agents/ada/messages", json={"content": "Hello"}))

    async def watch(client: httpx2.AsyncClient) -> None:
        async with client.stream("GET", "/constellations/home/events") as answer:
            streamed.extend([line async for line in answer.aiter_lines()])  # ends cleanly, or this raises

    async with trio.open_nursery() as nursery, running(config, slow) as ready:
        client = client_of(ready.url, GIVEN)
        await made(client)
        nursery.start_soon(wait, client)
        nursery.start_soon(watch, client)
        await asked(slow)
    await client.aclose()
    (answer,) = answers
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.json()["turn_id"].startswith("turn_")
    assert "retry-after" in answer.headers
    assert "event: turn.queued" in streamed


async def test_commands_use_the_application_without_a_listener(alone: Path) -> None:
    config = config_for(alone, default_provider="embedded")
    async with open_app(config) as (app, token):
        http = httpx2.AsyncClient(
            base_url=f"http://inside{API}",
            headers={"Authorization": f"Bearer {token}"},
            transport=httpx2.ASGITransport(app),
        )
        async with http as client:
            assert (await client.post("/constellations", json={"name": "home"})).status_code == 201
    async with running(config) as ready:  # the first token could not have been shown yet
        assert ready.token is not None
        async with client_of(ready.url, ready.token) as client:
            assert [row["name"] for row in (await client.get("/constellations")).json()["items"]] == ["home"]


async def test_a_configured_provider_is_asked_with_its_key(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_openai(otherwise=says("From afar.")) as wire:
        monkeypatch.setenv("HOUSE_KEY", "sk-of-the-house")
        house = {"kind": "openai", "base_url": f"{wire.url}/v1", "api_key_env": "HOUSE_KEY"}
        known = {"house": house, "google": {"kind": "google", "api_key": "x y"}}  # no key is like that: left out
        config = config_for(alone, providers=known, default_provider="house", bootstrap_token=GIVEN)
        async with running(config) as ready, client_of(ready.url, GIVEN) as client:
            await made(client)
            await client.post("/constellations/home/agents", json={"name": "bea", **OTHER})
            where = "/constellations/home/agents/{}/messages"
            turn = (await client.post(where.format("ada"), json={"content": "Hello"})).json()
            failed = await client.post(where.format("bea"), json={"content": "Hello"})
    assert [said["content"] for said in turn["messages"]] == ["Hello", "From afar."]
    assert wire.requests[0].headers["authorization"] == "Bearer sk-of-the-house"
    assert b"sk-of-the-house" not in b"".join(
        path.read_bytes() for path in config.data_dir.rglob("*") if path.is_file()
    )
    assert failed.json()["status"] == "failed"
    assert failed.json()["error"]["code"] == "model_not_configured"


SCRIPT = """
import sys, trio
from functools import partial
from pathlib import Path
from pattern_core.testing.model import Paced, ScriptedProvider, says
from pattern_server.serve import serve
from tests.pattern_server.place import config_for
config = config_for(Path(sys.argv[1]), bootstrap_token=sys.argv[2], supervisor={"drain_s": 300})
slow = ScriptedProvider(otherwise=Paced(answer=says("Late."), delay_s=1.0))
trio.run(partial(serve, config, providers={"scripted": slow}))
"""


@pytest.mark.slow
async def test_sigterm_lets_running_work_end(alone: Path) -> None:
    """Of a server in a process of its own, whose model takes a second."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (alone / "log").open("wb") as log:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", SCRIPT, str(alone), GIVEN], env=environment, stderr=log
        )
    about = alone / "data" / "server.json"
    try:
        await until(about.exists)
        async with client_of(json.loads(about.read_text())["url"], GIVEN) as client:
            turn = await begun(client)
            with trio.fail_after(60):
                while (await client.get(turn)).json()["status"] != "running":
                    await trio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(60):
            assert await process.wait() == 0
    finally:
        process.kill()
    async with running(config_for(alone)) as ready, client_of(ready.url, GIVEN) as client:
        assert (await client.get(turn)).json()["status"] == "completed"


SENDING = """
import sys, trio
from functools import partial
from pathlib import Path
from pattern_core.testing.model import ScriptedProvider, says
from pattern_server.serve import serve
from tests.pattern_server.place import config_for
webhooks = {"ports": [int(sys.argv[3])], "allow_private": True, "secrets": {"pager": {"value": "a secret"}}}
config = config_for(Path(sys.argv[1]), bootstrap_token=sys.argv[2], webhooks=webhooks)
trio.run(partial(serve, config, providers={"scripted": ScriptedProvider(otherwise=says("Yes?"))}))
"""


@asynccontextmanager
async def process_of(folder: Path, *arguments: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A server in a process of its own, which is killed at the end of the block."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    about = folder / "data" / "server.json"
    about.unlink(missing_ok=True)
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-c", SENDING, str(folder), *arguments]
        process = await trio.lowlevel.open_process(command, env=environment, stderr=log)
    try:
        await until(about.exists)
        async with client_of(json.loads(about.read_text())["url"], GIVEN) as client:
            yield client
    finally:
        process.kill()
        await process.wait()


@pytest.mark.slow
async def test_events_for_a_webhook_survive_sigkill_and_keep_their_ids(alone: Path) -> None:
    lost, refused = Play(never_answers=True), Play(status=500)
    async with WireServer([lost, refused], otherwise=Play(status=204)) as server:
        arguments = (GIVEN, str(server.port))
        async with process_of(alone, *arguments) as client:
            await made(client)
            url = f"http://127.0.0.1:{server.port}/hook"
            body = {"name": "pager", "url": url, "secret": "pager", "events": ["turn.completed"]}
            assert (await client.post("/constellations/home/webhooks", json=body)).status_code == 201
            for _ in range(3):
                await client.post("/constellations/home/agents/ada/messages", json={"content": "hello"})
            await until(lambda: len(server.requests) == 1)  # it was sent, and no answer came before the kill
        async with process_of(alone, *arguments) as client:
            await until(lambda: len(server.requests) >= 2)  # the others follow at once
            deliveries = "/constellations/home/webhooks/pager/deliveries"
            for one in (await client.get(f"{deliveries}?status=pending")).json()["items"]:
                await client.post(f"{deliveries}/{one['id']}/retry")
            found: list[dict[str, Any]] = []
            with trio.fail_after(30):
                while len(found) < 3:
                    found = (await client.get(f"{deliveries}?status=delivered")).json()["items"]
    sent = {(request.headers["webhook-id"], request.body) for request in server.requests}
    assert len(sent) == len({identity for identity, _body in sent}) == 3
    assert sorted(one["id"] for one in found) == sorted(identity for identity, _body in sent)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Other tests find the handlers and levels that they had."""
    root, ours = logging.getLogger(), logging.getLogger(OURS)
    before = (root.handlers, root.level, ours.level)
    yield
    root.handlers, level, own = before
    root.setLevel(level)
    ours.setLevel(own)


def fail() -> None:
    hidden = "the key sk-123"  # noqa: F841  # a local that a traceback must not show
    raise ValueError("it broke")


@pytest.mark.parametrize("form", ["json", "text"])
def test_tracebacks_show_no_values(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", form)  # type: ignore[arg-type]  # the parametrised literal
    try:
        fail()
    except ValueError as error:
        logging.getLogger("pattern.ours").error("bug", {"place": "here"}, exc_info=error)
        logging.getLogger("theirs").exception("bug of a library")
    written = capsys.readouterr().err
    assert written.count("it broke") >= 2
    assert "here" in written
    assert "sk-123" not in written.replace('hidden = "the key sk-123"', "")


def test_lines_are_json_and_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("warning", "json")
    logging.getLogger("pattern.ours").info("unheard")
    logging.getLogger("pattern.ours").warning("heard", {"number": 3})
    logging.getLogger("theirs").warning("also %s", "heard")
    ours, theirs = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["number"], ours["level"]) == ("heard", 3, "warning")
    assert ours["time"].endswith("Z")
    assert (theirs["event"], theirs["logger"]) == ("also heard", "theirs")


def test_a_standard_error_that_fails_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = io.StringIO()
    broken.close()
    monkeypatch.setattr(sys, "stderr", broken)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    configure_logs("info", "json")
    logging.getLogger("pattern.ours").error("unheard")
    logging.getLogger("theirs").error("unheard")


async def due_in_metrics(url: str, *, count: int = 1) -> list[float]:
    """When the next timer is due, as the metrics say; a constellation's own task reports it, so it is waited for."""
    async with httpx2.AsyncClient() as client:
        with trio.fail_after(PATIENCE_S):
            while True:
                lines = (await client.get(f"{url}/metrics")).text.splitlines()
                due = [one.split()[1] for one in lines if one.startswith("pattern_next_due_timestamp_seconds ")]
                if len(due) == count:
                    return [*map(float, due)]
                await trio.sleep(0.01)


async def test_a_parked_constellation_is_woken_when_a_schedule_is_due(alone: Path) -> None:
    config = config_for(alone, bootstrap_token=GIVEN)
    due = datetime.now(UTC) + timedelta(seconds=2)
    at = due.isoformat(timespec="milliseconds")
    async with running(config, ScriptedProvider()) as ready, client_of(ready.url, GIVEN) as client:
        await made(client)
        body = {"name": "soon", "agent": "ada", "message": "Now.", "at": at}
        assert (await client.post("/constellations/home/schedules", json=body)).status_code == 201
        assert await due_in_metrics(ready.url) == [pytest.approx(due.timestamp(), abs=0.001)]
    registry = config.data_dir / "global.db"
    with closing(open_connection(registry)) as connection:
        stored = connection.execute("SELECT next_due_at FROM constellations").get
    assert stored == at.replace("+00:00", "Z")
    provider = ScriptedProvider([says("Yes?")])
    async with running(config, provider) as ready, client_of(ready.url, GIVEN) as client:
        assert (await client.get("/constellations/home")).json()["state"] == "parked"
        assert await due_in_metrics(ready.url) == [pytest.approx(due.timestamp(), abs=0.001)]
        await until(lambda: provider.requests)
        assert await due_in_metrics(ready.url, count=0) == []
        late_s = (datetime.now(UTC) - due).total_seconds()
        assert 0 <= late_s < 2
        [occurred] = (await client.get("/constellations/home/schedules/soon/occurrences")).json()["items"]
        turn = await completed(client, f"/constellations/home/turns/{occurred['turn_id']}")
        assert [one["content"] for one in turn["messages"]] == ["Now.", "Yes?"]


async def test_schedules_of_a_restored_copy_are_paused_and_tasks_that_would_start_are_blocked(alone: Path) -> None:
    async with running(config_for(alone, bootstrap_token=GIVEN)) as ready, client_of(ready.url, GIVEN) as client:
        await made(client)
        body = {"name": "often", "agent": "ada", "message": "Now.", "every": 60}
        await client.post("/constellations/home/schedules", json=body)
        task = {"title": "Pay", "agent": "ada", "scheduled_at": "2099-01-01"}
        await client.post("/constellations/home/tasks", json=task)
        file = (await client.post("/constellations/home/backup")).json()["path"]
        await client.post("/constellations/restore", json={"file": file, "name": "copy"})
        [found] = (await client.get("/constellations/copy/schedules")).json()["items"]
        assert (found["status"], found["due_at"]) == ("paused", None)
        [found] = (await client.get("/constellations/copy/tasks")).json()["items"]
        assert (found["status"], found["blocked_reason"][:18]) == ("blocked", "restored as a copy")
        [found] = (await client.get("/constellations/home/tasks")).json()["items"]
        assert found["status"] == "pending"


async def test_a_parked_constellation_is_woken_for_a_reminder(alone: Path) -> None:
    config = config_for(alone, bootstrap_token=GIVEN)
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
    async with running(config, ScriptedProvider()) as ready, client_of(ready.url, GIVEN) as client:
        await made(client)
        body = {"title": "Tea", "starts_at": due.isoformat(), "agent": "ada", "reminder_minutes": 0}
        assert (await client.post("/constellations/home/calendar/events", json=body)).status_code == 201
    provider = ScriptedProvider([says("Yes?")])
    async with running(config, provider) as ready, client_of(ready.url, GIVEN) as client:
        assert (await client.get("/constellations/home")).json()["state"] == "parked"
        await until(lambda: provider.requests)
        assert 0 <= (datetime.now(UTC) - due).total_seconds() < 2
        [one] = (await client.get("/constellations/home/calendar/events/Tea/occurrences")).json()["items"]
        turn = await completed(client, f"/constellations/home/turns/{one['turn_id']}")
        assert (one["reminder"], turn["messages"][-1]["content"]) == ("fired", "Yes?")


async def test_a_restored_copy_reminds_of_nothing_until_the_event_is_changed(alone: Path) -> None:
    async with running(config_for(alone, bootstrap_token=GIVEN)) as ready, client_of(ready.url, GIVEN) as client:
        await made(client)
        body = {"title": "Tea", "starts_at": "2999-01-01T10:00", "reminder_minutes": 0}
        await client.post("/constellations/home/calendar/events", json=body)
        file = (await client.post("/constellations/home/backup")).json()["path"]
        await client.post("/constellations/restore", json={"file": file, "name": "copy"})
        assert (await client.get("/constellations/copy/calendar/events/Tea")).json()["reminder_at"] is None
        found = await client.patch("/constellations/copy/calendar/events/Tea", json={"location": "Home"})
        assert found.json()["reminder_at"] == "2999-01-01T10:00:00.000Z"


async def test_a_command_without_a_server_starts_nothing_that_is_due(alone: Path) -> None:
    config = config_for(alone, bootstrap_token=GIVEN)
    async with running(config, ScriptedProvider()) as ready, client_of(ready.url, GIVEN) as client:
        await made(client)
        body = {"name": "often", "agent": "ada", "message": "Now.", "every": 60}
        await client.post("/constellations/home/schedules", json=body)
    [database] = config.data_dir.glob("constellations/*/pattern.db")
    with closing(open_connection(database)) as connection, connection:
        connection.execute("UPDATE timer SET due_at = ?1, payload = ?1", ("2026-01-01T00:00:00.000Z",))
    async with open_app(config) as (app, token):
        transport = httpx2.ASGITransport(app=app)
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(transport=transport, base_url=f"http://pattern{API}", headers=headers) as client:
            for _ in range(20):
                answer = await client.get("/constellations/home/schedules/often/occurrences")
                assert (answer.status_code, answer.json()["items"]) == (200, [])
                await trio.sleep(0.01)
    provider = ScriptedProvider(otherwise=says("Here I am."))
    async with running(config, provider) as ready, client_of(ready.url, GIVEN) as client:
        with trio.fail_after(60):
            while not (await client.get("/constellations/home/schedules/often/occurrences")).json()["items"]:
                await trio.sleep(0.01)


async def test_logs_have_no_secret(alone: Path, scripted: ScriptedProvider, capfd: pytest.CaptureFixture[str]) -> None:
    """Of everything that is secret or private, at the level debug, also where it is refused or fails."""
    canaries = [f"canary-{number:02}-{'x' * 32}" for number in range(12)]
    key, token, password, wrong, text, memory, found, tool, webhook, header, asked, body = canaries
    providers = {"closed": {"kind": "openai", "base_url": f"http://u:{key}@127.0.0.1:9/v1", "api_key": key}}
    config = config_for(
        alone,
        providers={**SCRIPTED, **providers},
        bootstrap_token=token,
        webhooks={"secrets": {"a": {"value": webhook}}},
        mcp={"gone": {"command": "/no/such/program", "env": {"KEY": tool}, "args": []}},
    )
    scripted._script = iter([says(found), says(found)])
    async with serving(config, {"scripted": scripted}) as place:
        await place.parts.state.accounts.bootstrap(token)
        configure_logs("debug", "json")
        await place.constellation()
        agents = "/constellations/home/agents"
        await place.admin.post(agents, json={"name": "bob", "model_provider": "closed", "model_name": "m"})
        await place.admin.post("/users", json={"name": "ann", "password": password})
        await place.admin.post("/auth/login", json={"username": "ann", "password": password})
        await place.admin.post("/auth/login", json={"username": wrong, "password": wrong})
        for authorization in (f"Bearer {wrong}", f"Basic {wrong}", f"Bearer {token}"):
            await place.admin.get("/me", headers={"Authorization": authorization, "Cookie": header})
        for where in ("home/agents/ada", "home/agents/ada", "home/agents/bob"):
            await place.say(text, where=where, **{"Idempotency-Key": header})
            header = f"{header}+"
        await place.admin.put(f"{agents}/ada/memory/human", json={"content": memory})
        await place.admin.post(f"{agents}/ada/memory", json={"content": memory})
        await place.admin.get("/constellations/home/turns", params={"agent": asked, asked: "1"})
        await place.admin.post("/constellations/home/search", json={"query": asked})
        await place.admin.post("/constellations/home/search", content=b'{"query": "' + body.encode())
        secrets = [*canaries, place.parts.local_token]
    logged = capfd.readouterr().err
    assert '"event": "request"' in logged
    assert [secret for secret in secrets if secret in logged] == []
