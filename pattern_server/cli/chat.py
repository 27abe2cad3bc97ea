"""`pattern chat`: one message, or a conversation; and what an agent asks a person in the middle of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import get_args

import click
import trio

from pattern_core.agent_settings import MessagePolicy
from pattern_core.answers import CUT
from pattern_core.errors import InvalidInput, PatternError
from pattern_core.events import TERMINAL
from pattern_core.ids import Ids, SystemClock, system_randomness
from pattern_server.cli.approvals import what_is_asked
from pattern_server.cli.client import Json, ServerEvent, ServerFailed
from pattern_server.cli.command import ExitCode, Home, hosting, piped
from pattern_server.cli.history import not_whole
from pattern_server.cli.output import DONE, FAILED, SKIPPED, Output, cut, in_line

PROMPT = "Agree? [y]es, [n]o (a reason may follow), [a]lways, [l]ater: "
TRIES = 3


def turn_of(request: Json) -> str | None:
    """Return the turn in which something was asked; a question about memory has it in its cause."""
    found = request.get("turn_id") or (request.get("cause") or {}).get("turn")
    return None if found is None else str(found)


def answer_of(line: str) -> Json | None:
    """Return the decision that a typed line stands for: the body of the API's answer, {} if it is none, None for
    later.
    """
    word, _, rest = line.strip().partition(" ")
    match word.lower():
        case "y" | "yes":
            return {"decision": "approve"}
        case "a" | "always":
            return {"decision": "approve", "scope": "always"}
        case "n" | "no":
            return {"decision": "deny", **({"reason": rest.strip()} if rest.strip() else {})}
        case "" | "l" | "later":
            return None
        case _:
            return {}


FAREWELLS = {"/quit", "/exit", "/q"}
TROUBLES = {"error", "timeout", "denied", "in_doubt"}  # of tool calls
STOPPED = {
    "user": "a person cancelled it",
    "superseded": "another message came before it",
    "rolled_back": "another message took its place",
    "agent_deleted": "its agent was deleted",
    "halted": "an agent halted the constellation; see pattern constellation show",
    "restored_as_a_copy": "it belongs to the constellation of which this one is a copy",
}  # by the reason of the cancellation
WORDS_SHOWN = 160  # characters of what a call in trouble says


@click.command(epilog='Example: pattern chat -a ada "What do you know about me?"')
@click.option("-a", "--agent", metavar="NAME", help="The agent; may be left out if there is only one.")
@click.option(
    "--policy",
    type=click.Choice(get_args(MessagePolicy)),
    help="If the agent is busy: wait (enqueue), be refused (reject), stop what it does (interrupt), the same and take"
    " that out of the conversation (rollback), or join it (steer).  [default: the agent's own]",
)
@click.argument("message", required=False)
@hosting
async def chat(home: Home, output: Output, agent: str | None, policy: str | None, message: str | None) -> ExitCode:
    """Say MESSAGE to an agent and show its answer; without MESSAGE, have a conversation.

    What is piped in is one message: `pattern chat -c home < letter.txt`. Where the agent needs your consent, you are
    asked at the terminal; without one, it says how to give it, and the exit code is 3.
    """
    is_live = sys.stdin.isatty() and not output.is_json
    name = agent or await _only_agent(home)
    talk = Talk(home, output, name, policy, is_live=is_live)
    if message is None and not sys.stdin.isatty():
        message = await piped("give some words to say")
    if message is not None:
        if not message.strip():
            raise InvalidInput("The message is empty: give some words to say.")
        return await talk.say(message)
    # An unknown name is refused before the first line.
    await home.get("agents", name)
    return await _converse(output, talk, name)


async def _only_agent(home: Home) -> str:
    agents = await home.pages("agents")
    awake = [agent["name"] for agent in agents if agent["status"] != "archived"]
    if len(awake) == 1:
        return str(awake[0])
    if not awake:
        raise InvalidInput(f"{home.name} has no agent yet: pattern agent create NAME -c {home.name}")
    raise InvalidInput(f"{home.name} has several agents; name one with --agent: {', '.join(sorted(awake))}")


async def _converse(output: Output, talk: Talk, name: str) -> ExitCode:
    output.note(f"You are talking to {name}. An empty line or /quit ends it.")
    while True:
        line = await trio.to_thread.run_sync(partial(output.ask, "you> "), abandon_on_cancel=True)
        if line is None or not line.strip() or line.strip() in FAREWELLS:
            return DONE
        try:
            await talk.say(line)
        except PatternError as error:
            output.error(error.message)


@dataclass(frozen=True, slots=True)
class Talk:
    """Messages to one agent: each is sent once, and what comes of it is shown until its turn rests.

    Open questions of the agent's turns are asked at the terminal if `is_live`; else the person is shown how to answer.
    """

    home: Home
    output: Output
    agent: str
    policy: str | None
    is_live: bool

    @property
    def _history(self) -> str:
        return f"pattern history show -c {self.home.name} -a {self.agent}"

    async def say(self, message: str) -> ExitCode:
        """Send one message and show what comes; a turn that did not complete is reported on the standard error."""
        body: Json = {"content": message, **({"policy": self.policy} if self.policy else {})}
        # A repeated request (a lost connection, an impatient proxy) must not become a second message.
        key = Ids(SystemClock(), system_randomness()).new("key")
        if not self.home.api.streams or self.output.is_json:
            return await self._await(body, key)
        screen = Screen(self.output)
        try:
            return await self._listen(body, key, screen)
        except KeyboardInterrupt:
            if screen.turn_id:
                stop = f"pattern turn cancel {screen.turn_id} -c {self.home.name}"
                self.output.note(f"\nThe turn continues. To stop it: {stop}")
            raise

    async def _listen(self, body: Json, key: str, screen: Screen) -> ExitCode:
        has_asked = False
        async with self.home.api.events(self.home.at("agents", self.agent, "messages"), body=body, key=key) as events:
            async for event in events:
                screen.show(event)
                has_asked = has_asked or event.name == "approval.requested"
                if event.name == "turn.waiting" and not await self._put(event.data["approvals"]):
                    return self._waits()
                if event.name in TERMINAL:
                    if has_asked:
                        await self._put_all(str(event.data["turn_id"]))
                    return self._verdict(event.name.removeprefix("turn."), event.data.get("error"))
        self.output.note(
            "The server ended the stream before the turn was over; the turn continues, its answer will be in the"
            f" history: {self._history}"
        )
        return FAILED

    async def _await(self, body: Json, key: str) -> ExitCode:
        shown: set[str] = set()
        where, headers = self.home.at("agents", self.agent, "messages"), {"Idempotency-Key": key}
        while True:
            turn = await self.home.api.call("POST", where, body=body, headers=headers)
            for said in turn["messages"]:
                if said["role"] == "assistant" and said["content"] and said["id"] not in shown:
                    self.output.say(said["content"])
                    shown.add(said["id"])
                    if said.get("finish_reason") in CUT:
                        self.output.note(not_whole(said["finish_reason"]))
            if turn["status"] != "waiting":
                break
            if not await self._put(turn["approvals"]):
                self.output.data(turn)
                return self._waits()
        self.output.data(turn)
        await self._put_all(turn["turn_id"])
        return self._verdict(turn["status"], turn.get("error"))

    async def _put_all(self, turn_id: str) -> None:
        """Put the open questions that a turn asked, oldest first."""
        rows = await self.home.pages("approvals", status="pending")
        await self._put(one["id"] for one in reversed(rows) if turn_of(one["request"]) == turn_id)

    async def _put(self, ids: Iterable[str]) -> bool:
        """Put questions to the person, or show how to answer them; return whether all of them are answered now."""
        answers = [await self._put_one(one) for one in ids]
        return all(answers)

    async def _put_one(self, approval_id: str) -> bool:
        approval = await self.home.get("approvals", approval_id)
        if approval["status"] != "pending":  # answered from elsewhere in this moment
            return True
        self.output.note(f"? {what_is_asked(approval['request'])}")
        for _ in range(TRIES if self.is_live else 0):
            line = await trio.to_thread.run_sync(partial(self.output.ask, PROMPT), abandon_on_cancel=True)
            body = None if line is None else answer_of(line)
            if body is None:
                break
            if body and await self._answer(approval_id, body):
                return True
        self.output.note(f"Answer with: pattern approvals approve {approval_id} -c {self.home.name}, or deny.")
        return False

    async def _answer(self, approval_id: str, body: Json) -> bool:
        try:
            await self.home.call("POST", "approvals", approval_id, body=body)
        except ServerFailed as error:
            self.output.error(error.message)
            return False
        return True

    def _waits(self) -> ExitCode:
        self.output.note(
            "The turn waits for that, and continues when it is answered; its answer will be in the history:"
            f" {self._history}"
        )
        return SKIPPED

    def _verdict(self, status: str, error: Json | None) -> ExitCode:
        if status == "completed":
            return DONE
        self.output.error(ended(status, error), code=str((error or {}).get("code", status)))
        return FAILED


def ended(status: str, error: Json | None) -> str:
    """Return how a turn ended that did not complete, in a sentence."""
    message = str((error or {}).get("message") or "")
    if status == "cancelled":
        reason = message.removeprefix("cancelled: ")
        return f"The turn was stopped: {STOPPED.get(reason, reason)}" if reason else "The turn was stopped"
    return f"The turn ended as {status}: {message}" if message else f"The turn ended as {status}"


class Screen:
    """Shows the events of one turn as lines: words as they arrive, tools as remarks. `turn_id` is empty before them."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._is_mid_line = False
        self._streamed = ""
        self.turn_id = ""

    def show(self, event: ServerEvent) -> None:
        """Show one event; those that mean nothing to a reader are passed over."""
        self.turn_id = str(event.data.get("turn_id") or self.turn_id)
        match event.name:
            case "text.delta":
                self._words(str(event.data.get("text", "")))
            case "step.superseded":
                self._end_line()
                self._streamed = ""
                why = "the model gave no answer" if event.data.get("why") == "no_answer" else "interrupted"
                self._output.note(f"({why}; once more)")
            case "tool.call":
                self._end_line()
                self._output.note(f"· {event.data.get('tool')}")
            case "tool.result" if event.data.get("status") in TROUBLES:
                short = cut(in_line(event.data.get("content") or ""), WORDS_SHOWN)
                self._output.note(f"  {event.data.get('tool')}: {short or event.data['status']}")
            case "model.retry":
                self._end_line()
                self._output.note(f"(the model failed: {event.data.get('code')}; it is asked again)")
            case "model.fallback":
                self._end_line()
                self._output.note(f"({event.data.get('from')} does not answer; now {event.data.get('to')} is asked)")
            case "turn.completed" if event.data.get("joined"):
                self._output.note("(the agent was busy; this joined what it does)")
            case "message" if event.data.get("role") == "assistant":
                # A provider that does not stream has sent no words yet.
                if not self._streamed:
                    self._words(str(event.data.get("content") or ""))
                self._end_line()
                self._streamed = ""
                if event.data.get("partial") in CUT:  # what a turn ended is said with its end
                    self._output.note(not_whole(str(event.data["partial"])))
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
