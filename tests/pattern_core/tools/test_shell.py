from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied, Unavailable
from pattern_core.shell.policy import ShellSettings
from pattern_core.shell.shell import Shell
from pattern_core.tools.builtin.shell import SHOWN_CHARS_MAX, consent, shell
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import ToolSettings
from pattern_db.enums import EffectClass
from pattern_db.tables import sessions
from pattern_db.tables.sessions import SessionRow
from tests.pattern_core.shell.conftest import living
from tests.pattern_core.tools.rig import ToolRig


@pytest.fixture
async def able(tools: ToolRig, tmp_path: Path) -> AsyncIterator[ToolRig]:
    """Ada's tools with a shell, sandboxed or not: what the tool says is the same."""
    settings = ShellSettings(roots=[tmp_path], require_sandbox=False, grace_s=0.1, deny=["sudo"])
    tools.shell = Shell(settings=settings, clock=tools.rig.clock, ids=tools.ids)
    async with trio.open_nursery() as nursery:
        await nursery.start(tools.shell.run)
        yield tools
        nursery.cancel_scope.cancel()


async def test_execute(able: ToolRig, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    answer = await able.call(shell, op="execute", command="pwd; exit 3", directory="src")
    data = answer["data"]
    assert (answer["success"], data["output"]) == (True, f"{tmp_path}/src\n")
    assert (data["exit_code"], data["timeout"]) == (3, False)
    assert answer["message"].startswith("It ended with exit code 3")


async def test_a_session_may_have_a_directory_of_its_own(able: ToolRig, tmp_path: Path) -> None:
    (tmp_path / "app" / "src").mkdir(parents=True)
    now = able.rig.storage.now()
    session = SessionRow(id="ses_1", created_at=now, updated_at=now, working_dir=str(tmp_path / "app"))
    await able.rig.database.write(sessions.create, able.agent_id, session)
    for session_id, directory, place in (
        (None, None, ""), ("ses_1", None, "/app"), ("ses_1", "src", "/app/src"), ("ses_none", None, "")
    ):  # fmt: skip
        able.session_id = session_id
        answer = await able.call(shell, op="execute", command="pwd", directory=directory)
        assert answer["data"]["output"] == f"{tmp_path}{place}\n"


async def test_when_its_time_is_up_what_it_printed_is_kept(able: ToolRig) -> None:
    mark = "86471.25"
    late = await able.call(shell, op="execute", command=f"echo hi; sleep {mark}", timeout=0.4)
    if not late["data"]["output"]:  # this machine took longer to start it
        late = await able.call(shell, op="execute", command=f"echo hi; sleep {mark}", timeout=30.0)
    assert (late["data"]["output"], late["data"]["exit_code"], late["data"]["timeout"]) == ("hi\n", None, True)
    assert "seconds were up" in late["message"]
    assert able.shell is not None and able.shell.running == 0
    assert not living(mark)


async def test_long_output_is_shortened(able: ToolRig) -> None:
    data = (await able.call(shell, op="execute", command="seq 1 4000; echo end"))["data"]
    assert len(data["output"]) < SHOWN_CHARS_MAX + 100
    assert data["output"].startswith("1\n2\n")
    assert data["output"].endswith("4000\nend\n")


async def test_a_task(able: ToolRig) -> None:
    assert (await able.call(shell, op="status"))["message"] == "You have no tasks"
    begun = await able.call(shell, op="spawn", command="echo hi; while [ ! -e go ]; do sleep 0.02; done; exit 4")
    task_id = begun["data"]["task_id"]
    with trio.fail_after(60):
        while not (shown := await able.call(shell, op="output", task_id=task_id))["data"]["output"]:
            await trio.sleep(0.01)
        assert (shown["data"]["output"], shown["data"]["since"], shown["data"]["is_running"]) == ("hi\n", 3, True)
        assert shown["message"] == "It runs; continue with since=3"
        assert (await able.call(shell, op="output", task_id=task_id, since=3))["data"]["output"] == ""
        status = await able.call(shell, op="status")
        assert (status["message"], status["data"]["tasks"][0]["task_id"]) == ("1 of 1 tasks run", task_id)
        await able.call(shell, op="execute", command="touch go")
        while (shown := await able.call(shell, op="output", task_id=task_id))["data"]["is_running"]:
            await trio.sleep(0.01)
    assert shown["message"] == "It is over, with exit code 4; continue with since=3"
    assert able.shell is not None and able.shell.running == 0


async def test_a_task_is_ended(able: ToolRig) -> None:
    begun = await able.call(shell, op="spawn", command="sleep 86481.25")
    ended = await able.call(shell, op="kill", task_id=begun["data"]["task_id"])
    assert (ended["message"], ended["data"]["is_running"]) == ("It is over", False)


async def test_an_unknown_end_is_reported_as_unknown(able: ToolRig) -> None:
    assert able.shell is not None
    able.shell.settings = replace(able.shell.settings, means=())
    lost = "echo begun; kill -9 $PPID; sleep 20"
    answer = await able.call(shell, op="execute", command=lost)
    assert (answer["success"], answer["data"]["output"]) == (False, "begun\n")
    assert answer["message"].startswith("What watched over it was killed")
    begun = await able.call(shell, op="spawn", command=lost)
    with trio.fail_after(30):
        while (shown := await able.call(shell, op="output", task_id=begun["data"]["task_id"]))["data"]["is_running"]:
            await trio.sleep(0.01)
    assert shown["message"].startswith("What watched over it was killed")


async def test_errors_say_what_to_do(able: ToolRig) -> None:
    for arguments, error in (
        ({"op": "execute"}, InvalidInput),
        ({"op": "kill"}, InvalidInput),
        ({"op": "kill", "task_id": "task_none"}, NotFound),
        ({"op": "execute", "command": "sudo ls"}, PermissionDenied),
        ({"op": "execute", "command": "ls", "directory": "/etc"}, PermissionDenied),
    ):
        with pytest.raises(error):
            await able.call(shell, **arguments)
    able.shell = None
    with pytest.raises(Unavailable, match="roots = "):
        await able.call(shell, op="execute", command="ls")


def test_who_is_asked() -> None:
    assert shell.effect is EffectClass.UNSAFE
    asked = consent({"op": "execute", "command": "ls; rm notes.md"})
    assert asked == "`ls; rm notes.md` may change something."
    for arguments in (
        {"op": "execute", "command": "ls | head"},
        {"op": "execute", "command": " "},  # the call itself says what is missing
        {"op": "execute", "command": "curl a"},  # refused, so no person is asked
        {"op": "kill", "task_id": "task_1"},
        {"op": "status", "command": "rm a"},
        {"op": "execute", "command": 5},
        {},
    ):
        assert consent(arguments) is None, arguments


def test_a_server_asks_as_it_is_configured() -> None:
    settings = ToolSettings(shell=ShellSettings(allow=["make"], network=True))
    tool = ToolRegistry([shell], settings).get("shell", ["shell"])
    assert tool.consent is not None
    assert tool.consent({"op": "spawn", "command": "make"}) is None
    assert tool.consent({"op": "spawn", "command": "curl a"}) == "`curl a` may change something."
    assert (tool.name, tool.effect) == (shell.name, shell.effect)
