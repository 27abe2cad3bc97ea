"""The Matrix channel against Synapse, a real homeserver, where a Python with the package `matrix-synapse` is found.

`PATTERN_SYNAPSE=/path/to/python` names one; else the package must be in the environment of the tests.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest
import trio

from pattern_core.errors import PatternError
from pattern_core.ids import SystemClock
from pattern_core.models.providers.settings import Secret
from pattern_core.sources.kinds.matrix import ENCRYPTED, MatrixChannel
from pattern_core.sources.source import Outgoing, SourceAccount, SourceEvent
from pattern_core.web.policy import SecretSource, SourceSettings
from pattern_db.tables.sources import SourceRow

PYTHON = os.environ.get("PATTERN_SYNAPSE") or (sys.executable if find_spec("synapse") else "")
KIND = MatrixChannel()
PASSWORD = "a password for tests"
SETTINGS = """
server_name: home.example
pid_file: {folder}/pid
signing_key_path: {folder}/key
media_store_path: {folder}/media
report_stats: false
trusted_key_servers: []
enable_registration: true
enable_registration_without_verification: true
database: {{name: sqlite3, args: {{database: "{folder}/synapse.db"}}}}
listeners: [{{port: {port}, type: http, bind_addresses: [127.0.0.1], resources: [{{names: [client]}}]}}]
rc_message: {{per_second: 1000, burst_count: 1000}}
rc_registration: {{per_second: 1000, burst_count: 1000}}
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="no Python with matrix-synapse: set PATTERN_SYNAPSE"),
]


@dataclass
class Person:
    """Someone at the homeserver, or the agent there."""

    id: str
    account: SourceAccount

    async def calls(self, method: str, path: str, body: Any = None, *, kind: str = "client/v3") -> dict[str, Any]:
        """Call the client API as this person."""
        page = await self.account.fetch(
            f"{self.account.config['homeserver']}/_matrix/{kind}/{path}",
            method=method,
            body=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {await self.account.secret('token')}"},
        )
        answer: dict[str, Any] = json.loads(page.body)
        assert page.status == 200, answer
        return answer

    async def says(self, room: str, body: str, kind: str = "m.room.message", **more: Any) -> str:
        """Write in a room; return the event's id."""
        content = {"msgtype": "m.text", "body": body, **more}
        found = await self.calls("PUT", f"rooms/{room}/send/{kind}/{os.urandom(8).hex()}", content)
        return str(found["event_id"])

    async def creates(self, *invited: Person, **more: Any) -> str:
        """Create a room; return its id."""
        found = await self.calls("POST", "createRoom", {"invite": [one.id for one in invited], **more})
        return str(found["room_id"])

    async def polls(self, count: int) -> list[SourceEvent]:
        """Ask as the agent until so many events have come; what is stored is the cursor."""
        events: list[SourceEvent] = []
        with trio.fail_after(60):
            while len({event.native for event in events}) < count:
                arrived = await self.account.call(KIND.poll)
                self.account = replace(self.account, row=replace(self.account.row, sync_cursor=arrived.cursor))
                events += arrived.events
        return list({event.native: event for event in events}.values())


@asynccontextmanager
async def homeserver(folder: Path, names: Sequence[str]) -> AsyncIterator[list[Person]]:
    """Start a homeserver, and register people there; the last of them accepts invitations from the first."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    (folder / "homeserver.yaml").write_text(SETTINGS.format(folder=folder, port=port))
    command = [PYTHON, "-m", "synapse.app.homeserver", "-c", str(folder / "homeserver.yaml")]
    await trio.run_process([*command, "--generate-keys"], stdout=DEVNULL)
    services = (f"http://127.0.0.1:{port}",)
    reach = SourceSettings(ports=(port,), allow_private=True, services=services, timeout_s=5.0)
    anyone = SourceAccount(row=SourceRow("src_1", "phone", "matrix", {}, "", ""), settings=reach, clock=SystemClock())
    url = f"http://127.0.0.1:{port}"
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, command, check=False, stdout=DEVNULL, stderr=DEVNULL))
        with trio.fail_after(60):
            while True:
                try:
                    await anyone.fetch(f"{url}/_matrix/client/versions")
                    break
                except PatternError:
                    await trio.sleep(0.2)
        people = []
        for name in names:
            body = {"username": name, "password": PASSWORD, "auth": {"type": "m.login.dummy"}}
            page = await anyone.fetch(f"{url}/_matrix/client/v3/register", body=json.dumps(body).encode())
            token = json.loads(page.body)["access_token"]
            settings = replace(reach, secrets={"bot": SecretSource(value=Secret(token))})
            config = {"token": "bot", "homeserver": url, "invitations_from": [f"@{names[0]}:home.example"]}
            row = replace(anyone.row, config=KIND.checked(config, settings))
            people.append(Person(f"@{name}:home.example", replace(anyone, row=row, settings=settings)))
        yield people
        process.terminate()


async def test_the_channel_speaks_with_a_real_homeserver(tmp_path: Path) -> None:
    async with homeserver(tmp_path, ["anna", "bob", "pattern"]) as (anna, bob, agent):
        room = await anna.creates(agent, bob, preset="public_chat", name="The room")
        await bob.calls("POST", f"join/{room}", {})
        await anna.says(room, "old")
        await agent.polls(0)
        arrived = await agent.account.call(KIND.poll)  # accepts the invitation
        agent.account = replace(agent.account, row=replace(agent.account.row, sync_cursor=arrived.cursor))
        strange, private = await bob.creates(agent, is_direct=True), await anna.creates(agent, is_direct=True)
        await bob.says(strange, "Hi")
        await anna.says(private, "Hi")
        [first] = await agent.polls(1)
        assert (first.text, first.room, first.author_name) == ("Hi", "", "anna")

        for number in range(130):
            await (anna if number % 2 else bob).says(room, str(number))
        many = await agent.polls(130)
        assert [event.text for event in many] == [str(number) for number in range(130)]
        assert {(event.room, event.chat_name, event.is_addressed) for event in many} == {(room, "The room", False)}

        for _ in range(2):  # the second one as after a connection that broke
            said = Outgoing(text="May I?", reply_to=first.native, approval="appr_1")
            await KIND.send(agent.account, str(first.chat), said, "say_1")
        await KIND.signal(agent.account, str(first.chat))
        events = (await anna.calls("GET", f"rooms/{private}/messages?dir=b&limit=50"))["chunk"]
        mine = [one for one in events if one["sender"] == agent.id and one["type"] == "m.room.message"]
        assert len(mine) == 1 and len([one for one in events if one["type"] == "m.reaction"]) == 2
        question = mine[0]["event_id"]
        about: dict[str, Any] = {"m.relates_to": {"rel_type": "m.annotation", "event_id": question, "key": "✅"}}
        await anna.says(private, "", "m.reaction", **about)
        no: dict[str, Any] = {"m.relates_to": {"m.in_reply_to": {"event_id": question}}}
        await anna.says(private, "no", **no)
        root = await anna.says(room, "@pattern:home.example look")
        thread: dict[str, Any] = {"m.relates_to": {"rel_type": "m.thread", "event_id": root}}
        inside = await anna.says(room, "in a thread", **thread)
        new = {"msgtype": "m.text", "body": "in its thread"}
        edit: dict[str, Any] = {"m.new_content": new, "m.relates_to": {"rel_type": "m.replace", "event_id": inside}}
        await anna.says(room, "* x", **edit)
        found = await agent.polls(5)  # rooms in any order
        assert [event.decides for event in found if not event.room] == [("appr_1", True), ("appr_1", False)]
        named, threaded, edited = (event for event in found if event.room)
        assert named.is_addressed and threaded.chat == edited.chat == f"room {room} {root}"
        await KIND.send(agent.account, str(edited.chat), Outgoing(text="€" * 20_000, reply_to=edited.native), "say_2")

        await anna.calls("POST", f"rooms/{private}/invite", {"user_id": bob.id})
        await anna.says(private, "not private")
        assert [event.room for event in await agent.polls(1)] == [private]
        await anna.says(private, "", "m.room.encrypted", algorithm="m.megolm.v1.aes-sha2", ciphertext="x")
        await anna.says(room, "at last")
        await agent.polls(1)
        events = (await anna.calls("GET", f"rooms/{private}/messages?dir=b&limit=5"))["chunk"]
        assert events[0]["content"]["body"] == ENCRYPTED
