"""Archives through the API: exported from a running server, imported into another, all or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pattern_core.car import ArchiveInvalid
from pattern_core.errors import InvalidInput
from pattern_core.testing import ScriptedProvider, says
from pattern_db import backup
from pattern_db.tables import timers
from pattern_server.portable import ImportSpec, export, import_archive, merge_constellations, prepared
from tests.pattern_core.legacy.theirs import Theirs
from tests.pattern_server.place import Place, config_for, serving


async def exported(place: Place, constellation: str = "home", **body: Any) -> dict[str, Any]:
    answer = await place.admin.post(f"/constellations/{constellation}/export", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def test_a_constellation_moves_to_another_server_and_back(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path / "one"), {"scripted": ScriptedProvider([says("Noted.")])}) as one:
        await one.constellation()
        assert (await one.say("Ruth lives in Lisbon.")).status_code == 200
        block = {"content": "Likes tea."}
        assert (await one.admin.put("/constellations/home/agents/ada/memory/human", json=block)).status_code == 200
        schedule = {"name": "daily", "agent": "ada", "message": "Good morning.", "every": 86400}
        assert (await one.admin.post("/constellations/home/schedules", json=schedule)).status_code == 201
        made = await exported(one)
        downloaded = await one.admin.get(f"/constellations/home/exports/{Path(str(made['path'])).name}")
        assert downloaded.headers["content-type"] == "application/vnd.ipld.car"
        assert downloaded.content == Path(str(made["path"])).read_bytes()
    async with serving(config_for(tmp_path / "two"), {"scripted": ScriptedProvider([says("In Lisbon.")])}) as two:
        new = await two.admin.post("/constellations/import", json={"file": made["path"]})
        assert new.status_code == 201, new.text
        assert new.json()["name"] == "home"
        again = await exported(two)
        assert again["sha256"] == made["sha256"]
        found = (await two.admin.get("/constellations/home/agents/ada/memory/human")).json()
        assert found["content"] == "Likes tea."
        paused = (await two.admin.get("/constellations/home/schedules")).json()["items"]
        assert [row["status"] for row in paused] == ["paused"]
        assert (await two.say("Where does she live?")).json()["messages"][-1]["content"] == "In Lisbon."
        past = (await two.admin.get("/constellations/home/agents/ada/memory/human/history")).json()["items"]
        assert [row["kind"] for row in past] == ["edit", "create"]
        taken = await two.admin.post("/constellations/import", json={"file": made["path"]})
        assert (taken.status_code, taken.json()["code"]) == (409, "conflict")


async def test_an_agent_and_a_group_alone(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        await place.constellation()
        for name in ("ben", "cleo"):
            await place.admin.post(
                "/constellations/home/agents", json={"name": name, "config": {"hibernate_after_s": 3600}}
            )
        group = {"name": "team", "pattern_type": "round_robin", "members": [{"agent_id": "ben"}, {"agent_id": "ada"}]}
        assert (await place.admin.post("/constellations/home/groups", json=group)).status_code == 201
        assert (await exported(place, kind="agent", name="cleo"))["manifest"]["rows"]["agents"] == 1
        made = await exported(place, kind="group", name="team")
        assert (await place.admin.post("/constellations/import", json={"file": made["path"]})).status_code == 201
        agents = (await place.admin.get("/constellations/team/agents")).json()["items"]
        assert [agent["name"] for agent in agents] == ["ada", "ben"]
        shown = (await place.admin.get("/constellations/team/groups/team")).json()
        assert len(shown["members"]) == 2
        principal = await place.parts.state.accounts.authenticate(place.parts.local_token)
        joined = {"file": made["path"], "constellation": "other"}
        await place.admin.post("/constellations", json={"name": "other"})
        assert (await place.admin.post("/constellations/import", json=joined)).status_code == 201
        for name in ("team", "other"):
            async with place.parts.state.constellations.use(principal, name) as constellation:
                [timer] = await constellation.database.read(timers.due, "~", 9)
                assert (timer.kind, timer.ref) == ("hibernation", (await constellation.roster.get("ben")).id)


async def test_what_is_damaged_leaves_nothing_behind(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        await place.constellation()
        path = Path(str((await exported(place))["path"]))
        content = bytearray(path.read_bytes())
        content[-10] ^= 1
        path.write_bytes(content)
        before = sorted((tmp_path / "data" / "constellations").iterdir())
        for route in ("/constellations/import", "/constellations/import/check"):
            answer = await place.admin.post(route, json={"file": str(path), "name": "other"})
            assert (answer.status_code, answer.json()["code"]) == (422, "archive_invalid")
        assert sorted((tmp_path / "data" / "constellations").iterdir()) == before
        assert len((await place.admin.get("/constellations")).json()["items"]) == 1


async def test_a_folder_of_an_archive_does_not_show_the_servers_own_files(tmp_path: Path) -> None:
    own = tmp_path / "two" / "data" / "secrets"
    own.mkdir(parents=True)
    async with serving(config_for(tmp_path / "one"), {"scripted": ScriptedProvider([])}) as one:
        await one.constellation()
        folder = {"name": "notes", "path_type": "local", "path": str(own)}
        assert (await one.admin.post("/constellations/home/folders", json=folder)).status_code == 201
        made = await exported(one)
    async with serving(config_for(tmp_path / "two"), {"scripted": ScriptedProvider([])}) as two:
        answer = await two.admin.post("/constellations/import", json={"file": made["path"]})
        assert answer.status_code == 422 and "server's own data" in answer.text
        assert (await two.admin.get("/constellations")).json()["items"] == []


async def test_documents_that_do_not_open_are_refused(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        await place.constellation()
        await place.admin.put("/constellations/home/agents/ada/memory/human", json={"content": "Likes tea."})
        server = place.parts.state
        principal = await server.accounts.authenticate(place.parts.local_token)
        async with server.constellations.use(principal, "home") as home:
            await home.database.write(
                lambda connection: connection.execute(
                    "UPDATE memory_block_updates SET update_blob = x'00ff'"
                ).fetchall()
            )
        made, manifest = await export(server.constellations, principal, "home", "constellation", None)
        assert manifest.rows["memory_block_updates"] == 1
        with pytest.raises(ArchiveInvalid, match="human"):
            await import_archive(server.constellations, principal, ImportSpec(file=made.path, name="other"))
        assert [path.suffix for path in (tmp_path / "data").glob(".import-*")] == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"kind": "agent"}, 422),
        ({"name": "ada"}, 422),
        ({"kind": "agent", "name": "nobody"}, 404),
        ({"kind": "car"}, 422),
    ],
)
async def test_requests_that_name_nothing(tmp_path: Path, body: dict[str, str], status: int) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        await place.constellation()
        assert (await place.admin.post("/constellations/home/export", json=body)).status_code == status
        for file in ("none.car", "..%2Fpattern.db", "pattern.db"):
            assert (await place.admin.get(f"/constellations/home/exports/{file}")).status_code == 404
        relative = await place.admin.post("/constellations/import", json={"file": "a.car"})
        absent = await place.admin.post("/constellations/import", json={"file": str(tmp_path / "none.car")})
        assert (relative.status_code, absent.status_code) == (422, 404)


async def joined(place: Place, path: object, check: str = "", **body: str) -> dict[str, Any]:
    """The answer to an import into `home`, or its check; its status is below `status`."""
    given = {"file": str(path), "constellation": "home", **body}
    answer = await place.admin.post(f"/constellations/import{check}", json=given)
    return {**answer.json(), "status": answer.status_code}


async def test_an_archive_joins_a_constellation_once(tmp_path: Path) -> None:
    talk = [says("Noted."), says("In Lisbon."), says("Yes.")]
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider(talk)}) as place:
        await place.constellation()
        await place.say("Ruth lives in Lisbon.")
        await place.admin.put("/constellations/home/agents/ada/memory/human", json={"content": "Likes tea."})
        schedule = {"name": "daily", "agent": "ada", "message": "Good morning.", "every": 86400}
        await place.admin.post("/constellations/home/schedules", json=schedule)
        path = (await exported(place, kind="agent", name="ada"))["path"]

        refused = await joined(place, path)
        assert (refused["status"], refused["code"]) == (409, "conflict")
        assert "agent 'ada', schedule 'daily'" in refused["detail"]
        planned = await joined(place, path, "/check", policy="rename")
        assert (planned["status"], planned["rows"]["agents"]) == (200, 1)
        assert len((await place.admin.get("/constellations/home/agents")).json()["items"]) == 1
        assert (await place.admin.get("/constellations/home/imports")).json()["items"] == []

        done = await joined(place, path, policy="rename")
        assert (done["status"], done["name"], done["is_replay"]) == (201, "home", False)
        assert done["report"]["audit_log"]["added"] == planned["report"]["audit_log"]["added"]
        copy = "/constellations/home/agents/ada-2"
        assert (await place.admin.get(f"{copy}/memory/human")).json()["content"] == "Likes tea."
        past = (await place.admin.get(f"{copy}/memory/human/history")).json()["items"]
        assert [row["kind"] for row in past] == ["edit", "create"]
        found = (await place.admin.get("/constellations/home/schedules")).json()["items"]
        assert {row["name"]: row["status"] for row in found} == {"daily": "active", "daily-2": "paused"}
        answer = await place.say("Where does she live?", where="home/agents/ada-2")
        assert answer.json()["messages"][-1]["content"] == "In Lisbon."
        said = (await place.admin.get(f"{copy}/messages")).json()["items"]
        assert [row["content"] for row in said][-2:] == ["Noted.", "Ruth lives in Lisbon."]

        again = await joined(place, path, policy="rename")
        assert (again["is_replay"], again["report"]) == (True, done["report"])
        assert len((await place.admin.get("/constellations/home/agents")).json()["items"]) == 2
        listed = (await place.admin.get("/constellations/home/imports")).json()["items"]
        assert listed == [done["report"]]
        assert (await place.say("Are you there?")).json()["messages"][-1]["content"] == "Yes."


async def test_the_older_state_of_an_agent_merges_into_it_without_a_change(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([says("One."), says("Two.")])}) as place:
        await place.constellation()
        await place.say("First.")
        path = (await exported(place))["path"]
        await place.say("Second.")
        done = await joined(place, path, policy="merge")
        assert done["report"]["audit_log"]["added"] == {}
        said = (await place.admin.get("/constellations/home/agents/ada/messages")).json()["items"]
        assert [row["content"] for row in said] == ["Two.", "Second.", "One.", "First."]


async def test_an_import_as_a_new_constellation_is_recorded_too(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        await place.constellation()
        path = (await exported(place))["path"]
        await place.admin.post("/constellations/import", json={"file": path, "name": "new"})
        (row,) = (await place.admin.get("/constellations/new/imports")).json()["items"]
        assert (row["source_version"], row["source_file"]) == (4, Path(path).name)
        assert row["audit_log"]["added"]["agents"] == 1
        both = await joined(place, path, name="other")
        assert (both["status"], both["code"]) == (422, "invalid_input")


async def test_a_busy_constellation_is_not_interrupted_by_an_import(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        await place.constellation()
        path = (await exported(place))["path"]
        server = place.parts.state
        principal = await server.accounts.authenticate(place.parts.local_token)
        async with server.constellations.use(principal, "home"):
            refused = await joined(place, path, policy="merge")
        assert (refused["status"], refused["code"]) == (503, "unavailable")


async def test_an_archive_of_the_original_becomes_a_constellation_or_joins_one(tmp_path: Path) -> None:
    theirs = Theirs()
    said = theirs.messages("agent_a", ["I am Ruth.", ("assistant", {"Text": "Noted."})])
    blocks = [theirs.block("mem_1", "agent_a", "human", "Likes tea.")]
    record = {"model_provider": "scripted", "model_name": "m"}
    agent = theirs.agent("agent_a", "ada", record=record, message_chunk_cids=said, memory_block_cids=blocks)
    path = theirs.write(tmp_path / "theirs.car", theirs.manifest("Agent", theirs.node(agent)))
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([says("Ruth."), says("Ruth!")])}) as place:
        await place.constellation()
        checked = await place.admin.post("/constellations/import/check", json={"file": str(path)})
        assert (checked.status_code, checked.json()["version"], checked.json()["rows"]["messages"]) == (200, 3, 2)
        made = await place.admin.post("/constellations/import", json={"file": str(path)})
        assert (made.status_code, made.json()["name"]) == (201, "ada")
        answer = await place.say("Who am I?", where="ada/agents/ada")
        assert answer.json()["messages"][-1]["content"] == "Ruth."
        joins = await joined(place, path, policy="rename")
        assert (joins["status"], joins["report"]["source_version"]) == (201, 3)
        assert (await place.say("Who am I?", where="home/agents/ada-2")).status_code == 200
        found = (await place.admin.get("/constellations/home/agents/ada-2/messages")).json()["items"]
        assert [row["content"] for row in found] == ["Ruth!", "Who am I?", "Noted.", "I am Ruth."]
        edit = await place.admin.put(
            "/constellations/home/agents/ada-2/memory/human", json={"content": "Likes coffee."}
        )
        assert edit.status_code == 200
        past = (await place.admin.get("/constellations/home/agents/ada-2/memory/human/history")).json()["items"]
        assert [row["kind"] for row in past] == ["edit", "create"]
        undone = await place.admin.post("/constellations/home/agents/ada-2/memory/human/undo")
        assert undone.status_code == 200, undone.text
        assert (await place.admin.get("/constellations/home/agents/ada-2/memory/human")).json()[
            "content"
        ] == "Likes tea."
        assert (await joined(place, path, policy="rename"))["is_replay"] is True


async def test_a_document_of_the_original_that_does_not_open_is_refused(tmp_path: Path) -> None:
    theirs = Theirs()
    blocks = [theirs.block("mem_1", "agent_a", "human", "Likes tea.", b"no document")]
    data = theirs.node(theirs.agent("agent_a", "ada", memory_block_cids=blocks))
    path = theirs.write(tmp_path / "theirs.car", theirs.manifest("Agent", data))
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        answer = await place.admin.post("/constellations/import", json={"file": str(path)})
        assert (answer.status_code, answer.json()["code"]) == (422, "archive_invalid")
        assert "mem_1" in answer.json()["detail"]
        assert (await place.admin.get("/constellations")).json()["items"] == []


async def merged(place: Place, *, dry_run: bool = False) -> dict[str, Any]:
    """What merging `what-if` into `home` answers: its report, and whether it had been done before."""
    answer = await place.admin.post("/constellations/home/merge", json={"from": "what-if", "dry_run": dry_run})
    assert answer.status_code == 200, answer.text
    return {**answer.json()["report"]["audit_log"], "is_replay": answer.json()["is_replay"]}


async def test_a_fork_comes_back(tmp_path: Path) -> None:
    talk = [says("Noted."), says("At home."), says("At the fork."), says("Again.")]
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider(talk)}) as place:
        await place.constellation()
        await place.say("Ruth lives in Lisbon.")
        human = "/agents/ada/memory/human"
        await place.admin.put(f"/constellations/home{human}", json={"content": "Likes tea."})
        await place.admin.post("/constellations/home/fork", json={"name": "what-if"})
        await place.say("And you?")
        await place.say("And you?", where="what-if/agents/ada")
        for name, words in (("home", "Likes tea. Home."), ("what-if", "Fork. Likes tea.")):
            await place.admin.put(f"/constellations/{name}{human}", json={"content": words})
        entry = {"content": "The keys are in the drawer."}
        await place.admin.post("/constellations/what-if/agents/ada/archival", json=entry)
        await place.admin.post("/constellations/what-if/agents", json={"name": "ben"})

        planned = await merged(place, dry_run=True)
        assert len((await place.admin.get("/constellations/home/agents")).json()["items"]) == 1
        done = await merged(place)
        assert (done["added"], done["decisions"]) == (planned["added"], planned["decisions"])
        added = {name: done["added"][name] for name in ("agents", "messages", "archival_entries")}
        assert added == {"agents": 1, "messages": 2, "archival_entries": 1}
        assert "merged (new versions: 1)" in [one["decision"] for one in done["decisions"]]
        said = (await place.admin.get("/constellations/home/agents/ada/messages")).json()["items"]
        assert [row["content"] for row in said[::-1]] == [
            *("Ruth lives in Lisbon.", "Noted.", "And you?", "At home.", "And you?", "At the fork."),
        ]
        assert (await place.admin.get(f"/constellations/home{human}")).json()["content"] == "Fork. Likes tea. Home."
        past = (await place.admin.get(f"/constellations/home{human}/history")).json()["items"]
        assert [row["kind"] for row in past] == ["merge", "edit", "edit", "create"]
        assert (await merged(place))["is_replay"]

        await place.say("Once more?", where="what-if/agents/ada")
        await place.admin.put(f"/constellations/what-if{human}", json={"content": "Fork. Likes green tea."})
        third = await merged(place)
        assert (third["is_replay"], third["added"]["messages"]) == (False, 2)
        assert "agents" not in third["added"]
        shown = (await place.admin.get(f"/constellations/home{human}")).json()["content"]
        assert shown == "Fork. Likes green tea. Home."
        log = (await place.admin.get("/constellations/home/imports")).json()["items"]
        assert [row["source_file"] for row in log] == ["what-if", "what-if"]
        assert not list((tmp_path / "data" / "constellations").glob("*/exports/*"))
        principal = await place.parts.state.accounts.authenticate(place.parts.local_token)
        with pytest.raises(InvalidInput, match="into itself"):
            await merge_constellations(place.parts.state.constellations, principal, "home", "home")


async def test_case_200_an_agent_file_of_letta_is_imported_and_its_messages_are_read(tmp_path: Path) -> None:
    provider = ScriptedProvider([says("Walnuts.")])
    async with serving(config_for(tmp_path), {"scripted": provider}) as place:
        await place.constellation()
        message = {"role": "user", "content": "I like walnuts.", "created_at": "2025-10-10T07:14:29+00:00"}
        block = {"label": "human", "value": "Ruth", "limit": 500}
        theirs = {
            "name": "ada",
            "agent_type": "memgpt_agent",
            "core_memory": [block],
            "messages": [message],
            "tags": ["x"],
            "llm_config": {"handle": "scripted/m"},
            "tools": [{"name": "archival_memory_search"}, {"name": "run_code"}, {"name": "odd"}],
            "tool_rules": None,
            "group_ids": None,
        }
        file = tmp_path / "ada.af"
        file.write_text(json.dumps({**theirs, "tags": ["x"]}), encoding="utf-8")
        checked = await place.admin.post("/constellations/import/check", json={"file": str(file)})
        assert [checked.json()[name] for name in ("format", "version", "schema_version")] == ["letta", None, None]
        assert checked.json()["rows"]["messages"] == 1
        decided = str(checked.json()["report"]["audit_log"]["decisions"])
        for words in ("tags", "archival_memory_search (recall)", "tools were left out: odd, run_code"):
            assert words in decided
        assert (await joined(place, file))["code"] == "conflict"
        done = await joined(place, file, policy="rename")
        told = [done["report"][name] for name in ("source_format", "source_version", "source_file")]
        assert (done["status"], told) == (201, ["letta", None, "ada.af"])
        said = (await place.admin.get("/constellations/home/agents/ada-2/messages")).json()["items"]
        assert [row["content"] for row in said] == ["I like walnuts."]
        shown = (await place.admin.get("/constellations/home/agents/ada-2/memory/human")).json()
        assert (shown["content"], shown["char_limit"]) == ("Ruth", 500)
        assert (await joined(place, file, policy="rename"))["is_replay"]
        made = await exported(place, kind="agent", name="ada-2", format="letta")
        assert (Path(made["path"]).suffix, made["manifest"]["rows"]["messages"]) == (".af", 1)
        answer = await place.say("What do I like?", where="home/agents/ada-2")
        assert answer.json()["messages"][-1]["content"] == "Walnuts."
        [asked] = provider.requests
        assert (asked.model, "I like walnuts." in str(asked.messages)) == ("m", True)
        downloaded = await place.admin.get(f"/constellations/home/exports/{Path(made['path']).name}")
        assert downloaded.headers["content-type"] == "application/json"
        assert downloaded.json()["agents"][0]["messages"][1]["content"][0]["text"] == "I like walnuts."


async def test_an_archive_is_prepared_without_a_server(tmp_path: Path) -> None:
    file, now = tmp_path / "ada.af", "2026-02-03T04:05:06.007Z"
    file.write_text(json.dumps({"name": "ada", "agent_type": "memgpt_agent"}), encoding="utf-8")
    for into, imports in ((None, 1), ("home", 0)):
        path = tmp_path / f"{into}.db"
        asked = ImportSpec(file=file, into=into)
        manifest, row = await prepared(asked, path, audit_id="import_1", now=now, peer=1)
        assert (manifest.format, row.id, row.source_format, row.imported_at) == ("letta", "import_1", "letta", now)
        rows = backup.verify(path).rows
        assert (rows["agents"], rows["migration_audit"]) == (1, imports)
