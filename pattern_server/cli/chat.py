"""`pattern chat`: one message, or a conversation."""

from __future__ import annotations

import sys
from functools import partial

import click
import trio

from pattern_core.errors import InvalidInput, PatternError
from pattern_core.events import TERMINAL
from pattern_core.ids import Ids
from pattern_core.runtime import Runtime
from pattern_server.cli.client import Api, Json, ServerEvent, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import DONE, FAILED, Output

FAREWELLS = {"/quit", "/exit", "/q"}


@click.command()
@constellation_option
@click.option("-a", "--agent", metavar="NAME", help="The agent; may be left out if there is only one.")
@click.argument("message", required=False)
@connected
async def chat(api: Api, output: Output, constellation: str, agent: str | None, message: str | None) -> ExitCode:
    """Say MESSAGE to an agent and show its answer; without MESSAGE, have a conversation.

    What is piped in is one message: `pattern chat -c home < letter.txt`.
    """
    name = agent or await _only_agent(api, constellation)
    where = path("constellations", constellation, "agents", name, "messages")
    if message is None and not sys.stdin.isatty():
        message = await trio.to_thread.run_sync(sys.stdin.read)
    if message is not None:
        if not message.strip():
            raise InvalidInput("The message is empty: give some words to say.")
        return await _say(api, output, where, message)
    await api.get(
        path("constellations", constellation, "agents", name)
    )  # an unknown name is told before the first line
    return await _converse(api, output, where, name)


async def _only_agent(api: Api, constellation: str) -> str:
    agents = await api.pages(path("constellations", constellation, "agents"))
    awake = [agent["name"] for agent in agents if agent["status"] != "archived"]
    if len(awake) == 1:
        return str(awake[0])
    if not awake:
        raise InvalidInput(f"{constellation} has no agent yet: pattern agent create NAME -c {constellation}")
    raise InvalidInput(f"{constellation} has several agents; name one with --agent: {', '.join(sorted(awake))}")


async def _converse(api: Api, output: Output, where: str, name: str) -> ExitCode:
    output.note(f"You are talking to {name}. An empty line or /quit ends it.")
    while True:
        line = await trio.to_thread.run_sync(partial(output.ask, "you> "), abandon_on_cancel=True)
        if line is None or not line.strip() or line.strip() in FAREWELLS:
            return DONE
        try:
            await _say(api, output, where, line)
        except PatternError as error:
            output.error(error.message)


async def _say(api: Api, output: Output, where: str, message: str) -> ExitCode:
    """Send one message and show what comes; a turn that did not complete is told on the standard error."""
    body = {"content": message}
    # A repeated request (a lost connection, an impatient proxy) must not become a second message.
    key = Ids(Runtime().clock, Runtime().randomness).new("key")
    if not api.streams or output.is_json:
        turn = await api.call("POST", where, body=body, headers={"Idempotency-Key": key})
        output.data(turn)
        for text in (said["content"] for said in turn["messages"] if said["role"] == "assistant" and said["content"]):
            output.say(text)
        return _verdict(output, turn["status"], turn.get("error"))
    screen = Screen(output)
    async with api.events(where, body=body, key=key) as events:
        async for event in events:
            screen.show(event)
            if event.name in TERMINAL:
                return _verdict(output, event.name.removeprefix("turn."), event.data.get("error"))
    output.note(
        "The server ended the stream before the turn was over; the turn goes on, its answer will be in the history."
    )
    return FAILED


def _verdict(output: Output, status: str, error: Json | None) -> ExitCode:
    if status == "completed":
        return DONE
    reason = f": {error['message']}" if error and error.get("message") else ""
    output.error(f"The turn ended as {status}{reason}", code=str((error or {}).get("code", status)))
    return FAILED


class Screen:
    """Shows the events of one turn as lines: words as they arrive, tools as remarks."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._is_mid_line = False
        self._streamed = ""

    def show(self, event: ServerEvent) -> None:
        """Show one event; those that mean nothing to a reader are passed over."""
        match event.name:
            case "text.delta":
                self._words(str(event.data.get("text", "")))
            case "step.superseded":
                self._end_line()
                self._streamed = ""
                self._output.note("(interrupted; once more)")
            case "tool.call":
                self._end_line()
                self._output.note(f"· {event.data.get('tool')}")
            case "message" if event.data.get("role") == "assistant":
                # A provider that does not stream has told nothing yet.
                if not self._streamed:
                    self._words(str(event.data.get("content") or ""))
                self._end_line()
                self._streamed = ""
            case _ if event.name in TERMINAL:
                self._end_line()

    def _words(self, text: str) -> None:
        if text:
            self._output.words(text)
            self._streamed += text
            self._is_mid_line = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._is_mid_line:
            self._output.words("\n")
            self._is_mid_line = False
