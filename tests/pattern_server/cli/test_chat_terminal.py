"""An interactive chat as a person sees it: a real program in a pseudo-terminal, a real server, a scripted model.

Each story waits for what is on the screen, never for a time.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core.mcp_servers import servers
from pattern_core.testing.model import Answer, Paced, ScriptedProvider, calls, says
from pattern_core.testing.wire import NO_SCRIPT, Play, WireRequest, WireServer, events
from pattern_core.testing.wire_openai import chunk, replies
from pattern_server.cli.chat_terminal import last_block
from tests.pattern_core.mcp_servers.rig import PROGRAM
from tests.pattern_server.cli.conftest import serving as server_of
from tests.pattern_server.cli.terminal import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    ENTER,
    LEFT,
    PATIENCE_S,
    UP,
    Terminal,
    terminal,
)
from tests.pattern_server.place import Place, config_for, serving

ASKS = [{"tool": "block_edit", "type": "requires_consent"}]
EDIT = {"op": "append", "label": "human", "content": "Ruth lives in Rome."}
NEVER = Paced(answer=says("Never said."), gate=trio.Event())


@asynccontextmanager
async def place_of(
    folder: Path, script: Iterable[Answer] = (), *, slice_chars: int = 6, **fields: Any
) -> AsyncIterator[Place]:
    """A server with ada, who has a block `human` and answers by the script."""
    configured = {name: fields.pop(name) for name in ("mcp",) if name in fields}
    provider = ScriptedProvider(script, otherwise=says("All right."), slice_chars=slice_chars)
    async with serving(config_for(folder, **configured), {"scripted": provider}) as place:
        await place.constellation(memory=[{"label": "human", "content": ""}], **fields)
        place.provider = provider  # type: ignore[attr-defined]  # for what the model was asked
        yield place


@asynccontextmanager
async def chatting(place: Place, *options: str, **given: Any) -> AsyncIterator[Terminal]:
    """A chat with ada, ready for the first line."""
    command = ["chat", "-c", "home", "--server", place.url, *options]
    async with terminal(*command, PATTERN_TOKEN=place.parts.local_token, **given) as tty:
        await tty.until("you>")
        yield tty


def asked(place: Place) -> list[str]:
    """What people said in the newest request to the model."""
    [*_, request] = place.provider.requests  # type: ignore[attr-defined]  # see place_of
    return [message.text.partition("\n\n(It is")[0] for message in request.messages if message.role == "user"]


async def endings(place: Place) -> list[str]:
    """The last events of all turns, which end by themselves or were stopped."""
    turns = (await place.admin.get("/constellations/home/turns")).json()["items"]
    with trio.fail_after(PATIENCE_S):
        found = [await place.events(f"/constellations/home/turns/{turn['turn_id']}/events") for turn in turns]
    return [events[-1]["event"] for events in found]


async def test_a_conversation_shows_who_speaks_what_runs_what_is_remembered_and_what_it_cost(alone: Path) -> None:
    text = "# Rome\n\nIt is **old**:\n\n- `one`\n- two\n\nThe last paragraph."
    sum_of, keep = calls("calculator", {"expression": "17*23"}), calls("block_edit", EDIT)
    async with place_of(alone, [sum_of, keep, says(text)]) as place, chatting(place) as tty:
        await tty.type("What is 17*23?" + ENTER)
        seen = await tty.until("30 in · 15 out ·")
        for line in (
            "you> What is 17*23?\nada\ncalculator(17*23) → 391 · ",
            "\nhuman  + Ruth lives in Rome.\n",
            "\nRome\n\nIt is old:\n\n • one\n • two\n\nThe last paragraph.\n30 in",
        ):
            assert line in seen
        assert {"magenta", "cyan", "green"} <= tty.colours
        assert tty.raw.count(b"Ruth lives in Rome.\x1b") == 1, "a finished line is printed once"
        await tty.type(CTRL_D)
        assert await tty.ended() == 0


async def test_the_finished_part_of_a_long_answer_is_printed_while_it_grows(alone: Path) -> None:
    text = "".join(f"Paragraph {number}.\n\n" for number in range(30))
    script: list[Answer] = [Paced(answer=says(f"{text}The end."), between_s=math.inf)]
    async with place_of(alone, script, slice_chars=len(text) - 20) as place, chatting(place) as tty:
        await tty.type("Tell me a lot." + ENTER)
        seen = await tty.until("Paragraph 27.")
        assert "ada\nParagraph 0.\n\nParagraph 1.\n" in seen
        await tty.type(CTRL_C)
        seen = await tty.until("Stopped.")
        assert all(seen.count(f"Paragraph {number}.") == 1 for number in range(28))


async def test_keys_edit_the_line_and_lines_come_back_in_the_next_chat(alone: Path) -> None:
    state = {"XDG_STATE_HOME": str(alone / "state")}
    async with place_of(alone) as place:
        async with chatting(place, **state) as tty:
            await tty.type("hllo" + LEFT * 3 + "e" + ENTER)
            await tty.until("turn_")
            assert asked(place)[-1] == "hello"
            await tty.type("one" + ALT_ENTER + "two" + ENTER)
            await tty.until(lambda text: text.count("turn_") == 2)
            assert asked(place)[-1] == "one\ntwo"
            await tty.type("\x1b[200~pasted\r\nlines\tand \x1b[31mred\x07\x1b[201~")
            await tty.until("lines")
            assert len(asked(place)) == 2, "what is pasted is not sent by itself"
            await tty.type(ENTER)
            await tty.until(lambda text: text.count("turn_") == 3)
            assert asked(place)[-1].split("\n") == ["pasted", "lines\tand red"]
        async with chatting(place, **state) as tty:
            await tty.type(UP * 5)  # through both lines of those that have two
            await tty.until("you> hello")
            await tty.type("!" + ENTER)
            await tty.until("turn_")
            assert asked(place)[-1] == "hello!"
    file = alone / "state" / "pattern" / "chat_history"
    assert file.stat().st_mode & 0o777 == 0o600


async def test_vi_keys_where_inputrc_asks_for_them(alone: Path) -> None:
    (alone / ".inputrc").write_text("set  editing-mode vi\n")
    async with place_of(alone) as place, chatting(place, HOME=str(alone)) as tty:
        await tty.type("hello world\x1b")
        await tty.type("bdw" + ENTER)
        await tty.until("turn_")
        assert asked(place) == ["hello "]


async def test_commands_are_completed_and_an_unknown_one_is_an_error(alone: Path) -> None:
    async with place_of(alone) as place, chatting(place) as tty:
        await tty.type("/mem")
        await tty.until("/memory")
        await tty.type("\t hu")
        await tty.until("human")
        await tty.type("\t" + ENTER + ENTER)
        await tty.until("you> /memory human\n")
        await tty.type("/memry" + ENTER)
        await tty.until("There is no command /memry\nDid you mean /memory?")
        await tty.type("//memry is what I typed" + ENTER)
        await tty.until("turn_")
        assert asked(place) == ["/memry is what I typed"]
        await tty.type("/quit" + ENTER)
        assert await tty.ended() == 0


@pytest.mark.parametrize("phase", ["thinking", "streaming", "tool", "starting", "approval"])
async def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(
    alone: Path, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "READY_WAIT_S", PATIENCE_S)  # no turn goes without its tools on a busy machine
    program = {"command": sys.executable, "args": ["-I", "-S", str(PROGRAM), str(alone / "log")]}
    slow = {**program, "args": [*program["args"], "slow"]}
    scripts: dict[str, Answer] = {
        "thinking": NEVER,
        "streaming": Paced(answer=says("First block.\n\nSecond block is cut."), between_s=math.inf),
        "tool": calls("x__hang"),
        "starting": says("Without it."),
        "approval": calls("block_edit", EDIT),
    }
    fields: dict[str, Any] = {"mcp": {"x": slow if phase == "starting" else program}}
    fields |= {"enabled_tools": ["block_edit", "x__*"]} if phase in ("tool", "starting") else {}
    fields |= {"tool_rules": ASKS} if phase == "approval" else {}
    waits = {
        "thinking": "waiting for the model ·",
        "streaming": "First",
        "tool": "running x__hang ·",
        "starting": "starting MCP server x ·",
        "approval": "[l]ater:",
    }[phase]
    async with place_of(alone, [scripts[phase]], **fields) as place, chatting(place) as tty:
        await tty.type("Begin." + ENTER)
        await tty.until(waits)
        await tty.type("a draft" if phase == "thinking" else "")
        await tty.type(CTRL_C)
        seen = await tty.until("Stopped." if phase == "approval" else "turn_")
        assert "Stopped." in seen
        assert ("First" in seen) is (phase == "streaming")
        assert await endings(place) == ["turn.cancelled"]
        await tty.until(lambda text: text.endswith("you> a draft" if phase == "thinking" else "you>"))
        if phase == "thinking":
            await tty.type(CTRL_C)  # of a line it clears the line
            await tty.until(lambda text: text.endswith("you>"))
        monkeypatch.setattr(servers, "READY_WAIT_S", 0.0)  # the slow one does not start
        await tty.type("Again." + ENTER)
        await tty.until(lambda text: "turn_" in text.partition("Again.")[2])
        await tty.type("/cancel" + ENTER)
        await tty.until("No answer is in progress.")
        await tty.type(CTRL_C)
        assert await tty.ended() == 0


@pytest.mark.parametrize(
    ("typed", "content", "words"),
    [
        (["a"], "Ruth lives in Rome.", "Done."),
        (["y"], "Ruth lives in Rome.", "Done."),
        (["perhaps", "always"], "Ruth lives in Rome.", "That is not one of the answers. Type a, e, d, s, always or l."),
        (["d not now"], "", "Done."),
        (
            ["e", "\x01" + "\x0b" + '{"op": "append", "label": "human", "content": "Ruth moved."}'],
            "Ruth moved.",
            "Done.",
        ),
        (["e", "\x01" + "\x0b" + "{", "a"], "Ruth lives in Rome.", "The arguments are not JSON"),
        (["l", "/approve", "a"], "Ruth lives in Rome.", "/approve answers it"),
    ],
)
async def test_an_approval_is_answered_in_place(alone: Path, typed: list[str], content: str, words: str) -> None:
    script: list[Answer] = [calls("block_edit", EDIT), says("Done.")]
    async with place_of(alone, script, tool_rules=ASKS) as place, chatting(place) as tty:
        await tty.type("Remember." + ENTER)
        await tty.until("  content: Ruth lives in Rome.")
        await tty.until("[l]ater:")
        for count, line in enumerate(typed):
            await tty.type(line + ENTER)
            if line == "e":
                await tty.until('arguments (JSON): {"op": "append"')
            elif line == "l":
                await tty.until("/approve answers it")
            elif line != typed[-1]:
                await tty.until(lambda text, least=count + 2: text.count("[l]ater:") >= min(least, 2))  # type: ignore[misc]  # a default binds the count
        seen = await tty.until("turn_")
        assert words in seen and "Done." in seen
        block = (await place.admin.get("/constellations/home/agents/ada/memory/human")).json()
        assert block["content"].strip() == content
        grants = (await place.admin.get("/constellations/home/grants")).json()["items"]
        assert len(grants) == ("always" in typed)


async def test_what_is_typed_while_a_question_comes_is_no_answer_to_it(alone: Path) -> None:
    gate = trio.Event()
    script: list[Answer] = [Paced(answer=calls("block_edit", EDIT), gate=gate), says("Done.")]
    async with place_of(alone, script, tool_rules=ASKS) as place, chatting(place) as tty:
        await tty.type("Remember." + ENTER)
        await tty.until("waiting for the model")
        await tty.type("yes")
        await tty.until("you> yes")
        gate.set()
        await tty.until("[l]ater:")
        await tty.type(ENTER)  # an empty answer is later
        await tty.until("/approve answers it")
        seen = await tty.until(lambda text: text.endswith("you> yes"))
        assert "Done." not in seen


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("enqueue", "(ada is busy; the message is queued)"),
        ("reject", "Error: "),
        ("steer", "(joined the answer in progress)"),
        ("interrupt", "(ada is busy; the message is queued)"),
    ],
)
async def test_a_message_typed_during_an_answer_follows_the_policy(alone: Path, policy: str, words: str) -> None:
    gate = trio.Event()
    first = Paced(answer=says("The first answer."), gate=gate)
    async with place_of(alone, [first], config={"message_policy": policy}) as place, chatting(place) as tty:
        await tty.type("One." + ENTER)
        await tty.until("waiting for the model")
        await tty.type("Two." + ENTER)
        await tty.until("Error: " if policy == "reject" else "the message is queued")
        gate.set()
        await tty.until(words)
        seen = await tty.until("All right." if policy != "reject" else "The first answer.")
        assert seen.index("One.") < seen.index("Two.")


async def test_a_server_that_is_killed_and_started_again_loses_and_repeats_nothing(data_dir: Path) -> None:
    begins = replace(events(chunk({"role": "assistant", "content": "The beginning is lost. "})), never_ends=True)
    answers = iter([begins])

    def vendor(request: WireRequest) -> Play:
        if not request.path.endswith("/chat/completions"):  # what is known of the model
            return NO_SCRIPT
        return next(answers, replies(says("A whole answer.")))

    async with WireServer(otherwise=vendor) as wire:
        data_dir.mkdir()
        house = f'[providers.house]\nkind = "openai"\nbase_url = "{wire.url}/v1"\n'
        (data_dir / "pattern.toml").write_text(f'default_provider = "house"\ndefault_model = "m"\n{house}')
        with server_of(data_dir, data_dir.parent) as server:
            for command in (["constellation", "create", "home"], ["agent", "create", "ada", "-c", "home"]):
                made = [sys.executable, "-m", "pattern_server", *command, "--data-dir", str(data_dir)]
                await trio.run_process(made, capture_stdout=True)
            async with terminal("chat", "-c", "home", "--data-dir", str(data_dir)) as tty:
                await tty.until("you>")
                await tty.type("Begin." + ENTER)
                await tty.until("The beginning is lost.")
                server.send_signal(signal.SIGKILL)
                server.wait()
                await tty.until("the connection was lost, reconnecting ·")
                with server_of(data_dir, data_dir.parent):
                    seen = await tty.until("turn_")
                    assert "retrying)" in seen
                    assert seen.count("A whole answer.") == 1
                    await tty.type("Again." + ENTER)  # with the token of the second run
                    await tty.until(lambda text: text.count("A whole answer.") == 2)
                    await tty.type("/memory" + ENTER)
                    await tty.until("you> /memory")
                    await tty.type(CTRL_D)
                    assert await tty.ended() == 0


@pytest.mark.parametrize("columns", [60, 40])
async def test_a_narrow_terminal_wraps_between_words_and_may_be_resized(alone: Path, columns: int) -> None:
    words = (
        "Words of a paragraph that has to be wrapped at the end of each line of a narrow terminal, however long it is."
    )
    gate = trio.Event()
    script: list[Answer] = [says(words), Paced(answer=says("After the change."), gate=gate)]
    async with place_of(alone, script) as place, chatting(place, columns=columns) as tty:
        await tty.type("Say something." + ENTER)
        seen = await tty.until("turn_")
        shown = [line for line in seen.splitlines() if line]
        assert all(len(line) <= columns for line in shown)
        assert " ".join(words.split()) in " ".join(shown)
        await tty.type("Once more." + ENTER)
        await tty.until("waiting for the model")
        tty.resize(100, 30)
        gate.set()
        seen = await tty.until(lambda text: text.count("turn_") == 2)
        assert "After the change." in seen
        await tty.type("x" * 90)
        await tty.until("you> " + "x" * 90)


async def test_no_color_is_honoured(alone: Path) -> None:
    script: list[Answer] = [calls("block_edit", EDIT), says("It is **done** with `code`.")]
    async with place_of(alone, script) as place, chatting(place, NO_COLOR="1") as tty:
        await tty.type("/nothing" + ENTER)
        await tty.until("Error:")
        await tty.type("Do it." + ENTER)
        await tty.until("turn_")
        assert tty.colours == set()


async def test_plain_is_lines_without_any_control_code(alone: Path) -> None:
    script: list[Answer] = [
        calls("block_edit", EDIT),
        says("It is **done**."),
        Paced(answer=says("Never."), between_s=math.inf),
    ]
    async with place_of(alone, script, tool_rules=ASKS) as place, chatting(place, "--plain") as tty:
        await tty.type("Do it.\n")
        await tty.until("[l]ater:")
        await tty.type("a\n")
        seen = await tty.until("turn_")
        assert "ada: It is **done**.\n" in seen
        assert "\nhuman  + Ruth lives in Rome.\n" in seen
        await tty.type("\x1b[A and more\n")
        await tty.until("ada: Never.")
        assert asked(place)[-1] == " and more"
        await tty.type(CTRL_C)
        await tty.until("Stopped.")
        assert b"\x1b" not in tty.raw.replace(b"\x1b[A", b"").replace(b"^[", b"")
        await tty.type("/quit\n")
        assert await tty.ended() == 0


async def test_pipes_carry_plain_text(alone: Path) -> None:
    async with place_of(alone, [says("It is **done**.")]) as place:
        command = [sys.executable, "-m", "pattern_server", "chat", "-c", "home", "--server", place.url]
        environment = {**os.environ, "PATTERN_TOKEN": place.parts.local_token}
        done = await trio.run_process(
            command, stdin=b"Do \x1b[1mit\x1b[0m.\n", capture_stdout=True, capture_stderr=True, env=environment
        )
        assert (done.stdout, done.stderr) == (b"It is **done**.\n", b"")
        assert asked(place) == ["Do it.\n"]


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("One paragraph\nof two lines", ""),
        ("One.\n\nTwo", "One.\n\n"),
        ("- a\n- b\n\n  more of b", ""),
        ("- a\n- b\n\nText", "- a\n- b\n\n"),
        ("```\ncode\n\nmore\n", ""),
        ("```\ncode\n```\nText", "```\ncode\n```\n"),
        ("A line\n---", ""),
        ("| a |\n|---|\n| 1 |", ""),
        ("", ""),
    ],
)
def test_a_block_is_finished_when_another_begins(text: str, finished: str) -> None:
    assert text[: last_block(text)] == finished
