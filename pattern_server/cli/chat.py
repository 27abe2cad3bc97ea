"""`pattern chat`: one message, or a conversation, with commands and with what an agent asks a person in the middle."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import TypeAlias, get_args

import click
import trio

from pattern_core.agent_settings import MessagePolicy
from pattern_core.errors import InvalidInput, PatternError
from pattern_core.events import TERMINAL
from pattern_core.ids import Ids, SystemClock, system_randomness
from pattern_server.cli.chat_screen import Lines, Screen, answer_of, ended, question_lines, typed_text
from pattern_server.cli.client import Followed, Json, ServerEvent, ServerFailed, ServerUnreachable
from pattern_server.cli.command import ExitCode, Home, hosting, piped
from pattern_server.cli.names import AGENT, GROUP, ONLY_AGENT, SESSION
from pattern_server.cli.output import DONE, FAILED, SKIPPED, Output
from pattern_server.config import user_state_dir

QUESTION = "[a]pprove [e]dit [d]eny REASON [s]ame [always] [l]ater: "
ARGUMENTS = "arguments (JSON): "
TRIES = 3
HIDDEN = {"text.delta", "reasoning.delta", "step.started", "model.retry"}  # of a group's members
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "/help": "list these commands",
        "/agent": "[NAME]  talk to another agent; without NAME, list them",
        "/new": "[TITLE]  begin another conversation, a session",
        "/sessions": "[ID]  continue a session; without ID, list them",
        "/why": "[TURN]  what the model was shown, and why",
        "/memory": "[LABEL]  list the memory blocks, or show one",
        "/search": "WORDS  search messages, memory, archive and files",
        "/undo": "[LABEL]  undo the agent's last change of its memory",
        "/approve": "answer what waits for your approval",
        "/usage": "tokens and cost",
        "/model": "[PROVIDER/MODEL]  show or change the agent's model",
        "/cancel": "stop the answer in progress, as Ctrl-C does",
        "/quit": "leave, as Ctrl-D does",
    }
)

HELP = (
    "Approvals: approve once, edit the arguments first, deny with a reason, approve the same arguments or all of them"
    " from now on, or later."
)
OF_AGENT = {"/why", "/memory", "/undo", "/approve", "/model"}

Ask: TypeAlias = Callable[[str, str], Awaitable[str | None]]


@click.command(epilog='Example: pattern chat -a ada "What do you know about me?"')
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="The agent; may be left out if there is only one.")
@click.option("-g", "--group", metavar="NAME", type=GROUP, help="Talk to this group of agents instead.")
@click.option(
    "--policy",
    type=click.Choice(get_args(MessagePolicy)),
    help="If the agent is busy: wait (enqueue), be refused (reject), stop what it does (interrupt), the same and take"
    " that out of the conversation (rollback), or join it (steer).  [default: the agent's own]",
)
@click.option("--session", metavar="ID", help="Talk in this session instead of the main conversation.")
@click.option("--plain", is_flag=True, help="Lines only, for screen readers: no colour, spinner or redrawing.")
@click.argument("message", required=False)
@hosting
async def chat(
    home: Home,
    output: Output,
    agent: str | None,
    group: str | None,
    policy: str | None,
    session: str | None,
    plain: bool,
    message: str | None,
) -> ExitCode:
    """Say MESSAGE to an agent or a group and show the answer; without MESSAGE, have a conversation.

    What is piped in is one message: `pattern chat -c home < letter.txt`. Where the agent needs your approval, you are
    asked at the terminal; without one, it says how to give it, and the exit code is 3.
    """
    is_terminal = sys.stdin.isatty() and not output.is_json
    if agent is not None and group is not None:
        raise click.UsageError("Choose an agent or a group: --agent and --group exclude each other.")
    name = group or agent or await ONLY_AGENT.only(home.api, {"constellation": home.name})
    talk = Talk(home, output, name, policy, _asker(output) if is_terminal else None)
    talk.kind = "agents" if group is None else "groups"
    if session is not None:
        await talk.enter(session)
    if message is None and not sys.stdin.isatty():
        message = await piped("give some words to say")
    if message is not None:
        return await talk.say(message)
    # An unknown name is refused before the first line.
    found = await home.get(talk.kind, talk.agent)
    talk.agent, talk.is_conversation = found["name"], True
    about = f"{found['model_provider']}/{found['model_name']}" if group is None else found["pattern_type"]
    output.note(f"You are talking to {talk.agent} ({about}).")
    output.note("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.")
    return await (_on_screen(talk) if is_terminal and output.is_screen and not plain else _in_lines(talk))


def _asker(output: Output) -> Ask:
    async def ask(question: str, _default: str) -> str | None:
        return await trio.to_thread.run_sync(partial(output.ask, question), abandon_on_cancel=True)

    return ask


async def _in_lines(talk: Talk) -> ExitCode:
    """Have a conversation in lines: one message, then its answer."""
    talk.sink_of = partial(Lines, talk.output)
    while not talk.is_over:
        line = None if talk.ask is None else await talk.ask("you> ", "")
        if line is None:
            break
        await talk.read(line)
    return DONE


async def _on_screen(talk: Talk) -> ExitCode:
    """Have a conversation at a prompt that can be used while answers arrive."""
    # Imported now and not above: its libraries take half a second, and one message needs none of them.
    screen = import_module("pattern_server.cli.chat_terminal")
    terminal = screen.Terminal(user_state_dir() / "chat_history", await talk.names())
    talk.sink_of, talk.ask = partial(screen.Live, terminal), terminal.ask
    async with trio.open_nursery() as nursery:
        nursery.start_soon(terminal.run)
        await terminal.started.wait()

        async def read(line: str) -> None:
            await talk.read(line)
            if talk.is_over:
                terminal.close()
            terminal.names = await talk.names()

        with redirect_stdout(terminal), redirect_stderr(terminal):
            async for typed in terminal.typed:
                if typed is screen.Key.END or (typed is screen.Key.INTERRUPT and not talk.open):
                    break
                if typed is screen.Key.INTERRUPT:
                    nursery.start_soon(talk.stop)
                else:
                    nursery.start_soon(read, typed)
            for sent in talk.open:
                talk.output.note(f"The turn continues. To stop it: {talk.line('turn cancel', sent.turn_id)}")
            nursery.cancel_scope.cancel()
    return DONE


@dataclass(slots=True, eq=False, kw_only=True)
class SentMessage(Followed):
    """A message on its way, and where its turn is shown."""

    screen: Screen
    has_floor: bool = False  # it is shown; others wait
    has_asked: bool = False
    is_stopping: bool = False
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    members: dict[str, Screen] = field(default_factory=dict)  # of a group, by the turns of the members that it asked


class Talk:
    """Messages to one agent: each is sent once, and what comes of it is shown until its turn rests.

    Open questions of the agent's turns are put to `ask`; without it, the person is shown how to answer. Messages may be
    sent while others are answered (`open`); they are shown one after the other.
    """

    def __init__(self, home: Home, output: Output, agent: str, policy: str | None, ask: Ask | None) -> None:
        self.home = home
        self.output = output
        self.agent = agent
        self.ask = ask
        self.kind = "agents"  # or groups: of what `agent` is the name
        self.session_id: str | None = None  # None: the main conversation
        self.is_conversation = False
        self.is_over = False
        self.open: list[SentMessage] = []
        self.sink_of: Callable[[str], Lines] = lambda _name: Lines(output)
        self._policy = policy
        self._floor = trio.Lock()
        self._waiting: dict[str, int] = {}  # turns that wait for an answer that was put off, with their last event
        self._changed: tuple[str, str] | None = None  # the block and author of the last change of memory

    def line(self, command: str, *words: str) -> str:
        """Return a command line for hints."""
        return " ".join(["pattern", command, *words, "-c", self.home.name])

    async def enter(self, session_id: str) -> None:
        """Let the next messages be said in a session, named by its id or the beginning of that."""
        session_id = await SESSION.whole(
            self.home.api, session_id, {"constellation": self.home.name, "agent": self.agent}
        )
        found = await self.home.get("agents", self.agent, "sessions", session_id)
        self.session_id = found["id"]
        if self.is_conversation:
            self.output.say(f"This is the session {found['title'] or found['id']}.")

    async def read(self, line: str) -> None:
        """Do what a typed line says: a command, or a message. What goes wrong is shown."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                await self._command(line)
            elif line.strip():
                await self.say(line.removeprefix("/") if line.startswith("//") else line)
        except PatternError as error:
            self.output.error(error.message)
        except click.ClickException as error:
            self.output.error(error.format_message())
        except KeyboardInterrupt:
            self.output.note("Stopped.")

    async def say(self, message: str) -> ExitCode:
        """Send one message and show what comes; a turn that did not complete is reported on the standard error."""
        text = typed_text(message)
        if not text.strip():
            raise InvalidInput("The message is empty: give some words to say.")
        given = {"policy": self._policy, "session_id": self.session_id}
        body: Json = {"content": text, **{name: value for name, value in given.items() if value}}
        # A repeated request (a lost connection, an impatient proxy) must not become a second message.
        key = Ids(SystemClock(), system_randomness()).new("key")
        screen = Screen(self.sink_of(self.agent), has_footer=self.is_conversation)
        if not self.open:
            screen.sink.phase("sending")
        return await self._follow(SentMessage((self.kind, self.agent, "messages"), body, key, screen=screen))

    async def stop(self) -> None:
        """Stop the oldest running turn, as soon as its id is known; the second time, only stop waiting for it."""
        for sent in self.open[:1]:  # none if it has ended in this moment
            if sent.is_stopping:
                self.output.note("Not waiting for the answer any more; it may still come.")
                sent.scope.cancel()
            sent.is_stopping = True
            if sent.turn_id:
                await self._cancel(sent)

    async def _cancel(self, sent: SentMessage) -> None:
        try:
            await self.home.call("POST", "turns", sent.turn_id, "cancel")
        except (ServerUnreachable, ServerFailed) as error:
            self.output.error(error.message)
            sent.scope.cancel()

    async def _known(self, sent: SentMessage, turn_id: str) -> None:
        """Remember which turn answers a message; stop it if that was asked for before."""
        if not sent.turn_id:
            sent.turn_id = turn_id
            if sent.is_stopping:
                await self._cancel(sent)

    # The turn of one message

    async def _follow(self, sent: SentMessage) -> ExitCode:
        self.open.append(sent)
        try:
            with sent.scope:
                is_streamed = not sent.key or (self.home.streams and not self.output.is_json)
                return await (self._listen(sent) if is_streamed else self._await(sent))
        except KeyboardInterrupt:
            with trio.CancelScope(shield=True):
                await self.stop()
            sent.screen.sink.note("Stopped.", "dim")
        finally:
            self.open.remove(sent)
            if not self.open:
                sent.screen.sink.phase("")
            if sent.has_floor:
                self._floor.release()
        return FAILED

    async def _listen(self, sent: SentMessage) -> ExitCode:
        return await sent.follow(
            self.home,
            partial(self._take, sent),
            ended="The server ended the stream before the turn was over. The turn continues, and its answer will be in"
            f" the history: {self.line('history show', '-a', self.agent)}",
            is_patient=self.is_conversation,
            on_lost=partial(sent.screen.sink.phase, "the connection was lost, reconnecting"),
        )

    async def _take(self, sent: SentMessage, event: ServerEvent) -> ExitCode:
        """Show one event of a turn; return an exit code if it is the last one to wait for."""
        await self._known(sent, event.data["turn_id"])
        if not sent.has_floor and self._floor.locked() and event.name == "turn.queued":
            self.output.note(f"({self.agent} is busy; the message is queued)")
            return None
        if not sent.has_floor and not event.data.get("joined"):
            await self._floor.acquire()
            sent.has_floor = True
        if sent.is_stopping and event.name == "turn.cancelled":
            sent.screen.sink.end()
            sent.screen.sink.note("Stopped.", "dim")
        if (member := sent.members.get(str(event.data.get("turn_id")))) is not None:
            if event.name not in HIDDEN:  # members may speak at the same time: each is shown whole
                member.show(event)
            if event.name == "message" and event.data.get("content"):
                sent.screen.heard.add(str(event.data["content"]))
        else:
            sent.screen.show(event)
        match event.name:
            case "group.selected":
                name = str(event.data["agent"])
                sink = self.sink_of(name) if self.is_conversation else Lines(self.output, name)
                sent.members[event.data["member_turn"]] = Screen(sink)
            case "approval.requested" if self.kind == "groups":
                await self._put([str(event.data["approval_id"])])
            case "memory.changed":
                await self._show_change(sent, event.data)
            case "approval.requested":
                sent.has_asked = True
            case "turn.waiting" if not await self._put(event.data["approvals"]) and not sent.is_stopping:
                self._waiting[sent.turn_id] = event.seq
                return self._waits()
            case _ if event.name in TERMINAL:
                if sent.has_asked:
                    await self._put_all(sent.turn_id)
                return self._verdict(sent, event.name.removeprefix("turn."), event.data.get("error"))
        return None

    async def _show_change(self, sent: SentMessage, data: Json) -> None:
        label, version = str(data["label"]), int(data["version"])
        self._changed = label, str(data["by"])
        try:
            where = ("agents", str(data["agent_id"]), "memory", label, "diff")
            found = await self.home.get(*where, **{"from": version - 1, "to": version})
            sent.screen.changed(label, found["diff"])
        except ServerFailed:  # it was deleted or renamed since
            sent.screen.sink.note(f"{label}  {'deleted' if data.get('deleted') else 'changed'}", "dim")

    async def _await(self, sent: SentMessage) -> ExitCode:
        """Send a message where nothing can be streamed, and show its turn when that has ended."""
        send = partial(self.home.call, "POST", *sent.where, body=sent.body)
        # Accepted first, so that the turn can be stopped.
        accepted = await send(headers={"Idempotency-Key": sent.key, "Prefer": "respond-async"})
        await self._known(sent, accepted["turn_id"])
        sent.screen.sink.phase("waiting for the answer")
        while (turn := await send(headers={"Idempotency-Key": sent.key}))["status"] == "waiting":
            if not await self._put(turn["approvals"]):
                self.output.data(turn)
                return self._waits()
        if not self.output.is_json:
            return await self._listen(sent)
        self.output.data(turn)
        await self._put_all(sent.turn_id)
        return self._verdict(sent, turn["status"], turn.get("error"))

    def _waits(self) -> ExitCode:
        how = "/approve answers it" if self.is_conversation else "its answer will be in the history"
        history = "" if self.is_conversation else f": {self.line('history show', '-a', self.agent)}"
        self.output.note(f"The turn waits for that, and continues when it is answered; {how}{history}")
        return SKIPPED

    def _verdict(self, sent: SentMessage, status: str, error: Json | None) -> ExitCode:
        if status == "completed":
            return DONE
        if not sent.is_stopping:
            self.output.error(ended(status, error), code=str((error or {}).get("code", status)))
        return FAILED

    # What the agent asks

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
        sink = self.sink_of("")
        for text, style in question_lines(approval["request"]):
            sink.note(text, style)
        for _ in range(TRIES if self.ask is not None else 0):
            try:
                body = await self._decision(approval["request"])
                if body is None:
                    break
                if body:
                    await self.home.call("POST", "approvals", approval_id, body=body)
                    return True
            except ServerFailed as error:
                self.output.error(error.message)
        if not self.is_conversation:
            self.output.note(f"Answer with: {self.line('approvals approve', approval_id)}, or deny.")
        return False

    async def _decision(self, request: Json) -> Json | None:
        """Return the answer that a person types, as `answer_of` does; one who edits types the arguments, too."""
        assert self.ask is not None
        line = await self.ask(QUESTION, "")
        if line is None or line.strip().lower() not in ("e", "edit"):
            decision = None if line is None else answer_of(line)
            if decision == {}:
                self.output.note("That is not one of the answers. Type a, e, d, s, always or l.")
            return decision
        text = await self.ask(ARGUMENTS, json.dumps(request.get("arguments"), ensure_ascii=False))
        if text is None:
            return None
        try:
            return {"decision": "approve", "arguments": json.loads(text)}
        except ValueError as error:
            self.output.error(f"The arguments are not JSON: {error}. Write them as they were shown.")
            return {}

    # Commands

    async def names(self) -> Mapping[str, Sequence[str]]:
        """Return the commands with the names that may follow them."""
        try:
            agents = [one["name"] for one in await self.home.pages("agents")]
            labels = (
                []
                if self.kind == "groups"
                else [one["label"] for one in await self.home.pages("agents", self.agent, "memory")]
            )
        except PatternError:
            agents, labels = [], []
        return {**dict.fromkeys(COMMANDS, ()), "/agent": agents, "/memory": labels, "/undo": labels}

    async def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        of_agent = ("-a", self.agent)
        if self.kind == "groups" and name in OF_AGENT:
            raise InvalidInput(f"{name} is about an agent. You are talking to a group; /agent NAME talks to one of it.")
        match name:
            case "/help":
                for command, words in COMMANDS.items():
                    self.output.say(f"{command:<9} {words}")
                self.output.say("//text    send a message that begins with a slash")
                self.output.say(HELP)
            case "/agent" if rest:
                self.agent, self.kind = str((await self.home.get("agents", rest))["name"]), "agents"
                self.session_id = None
                self.output.say(f"You are talking to {self.agent}.")
            case "/agent":
                await self._run("agent", "list")
            case "/new":
                body = {"title": rest or None, "origin": "pattern chat"}
                await self.enter((await self.home.call("POST", "agents", self.agent, "sessions", body=body))["id"])
            case "/sessions" if rest:
                await self.enter(rest)
            case "/sessions":
                await self._run("session", "list", "-a", self.agent)
            case "/why":
                await self._run("why", *rest.split(), *of_agent)
            case "/memory":
                await self._run("memory", *(("show", rest) if rest else ("list",)), *of_agent)
            case "/search" if rest:
                await self._run("search", after=rest)
            case "/undo":
                await self._undo(rest)
            case "/approve":
                await self._approve()
            case "/usage":
                await self._run("usage")
            case "/model" if "/" in rest:
                provider, _, model = rest.partition("/")
                await self._run("agent", "edit", self.agent, "--provider", provider, "--model", model)
            case "/model" if not rest:
                found = await self.home.get("agents", self.agent)
                self.output.say(f"{self.agent} uses {found['model_provider']}/{found['model_name']}.")
            case "/cancel" if self.open:
                await self.stop()
            case "/cancel":
                self.output.say("No answer is in progress.")
            case "/quit":
                self.is_over = True
            case _ if name in COMMANDS:
                raise InvalidInput(f"Wrong arguments for {name}. Usage: {name} {COMMANDS[name]}")
            case _:
                near = get_close_matches(name, COMMANDS, n=1)
                hint = f"Did you mean {near[0]}?" if near else "/help lists the commands."
                raise InvalidInput(f"There is no command {name}. {hint} To send it as a message, write /{line}")

    async def _run(self, *words: str, after: str = "") -> None:
        """Run a command line of `pattern` on the API that is open already."""
        context = click.get_current_context()
        command: click.Command | None = context.find_root().command
        rest = [*words, "-c", self.home.name, *(("--", after) if after else ())]
        name: str | None = None
        while isinstance(command, click.Group):
            name, command, rest = command.resolve_command(context, rest)
        assert command is not None and command.callback is not None
        shown = partial(inspect.signature, follow_wrapped=False)
        inner = inspect.unwrap(command.callback, stop=lambda function: "api" in shown(function).parameters)
        given = command.make_context(name, rest).params
        shared = {"config_file", "data_dir", "is_json", "server", "token_file"}
        await inner(self.home.api, self.output, **{key: value for key, value in given.items() if key not in shared})

    async def _undo(self, label: str) -> None:
        """Undo the last change of a block by the agent, or the last one that was seen here, by any author."""
        if label:
            changed = label, f"agent:{(await self.home.get('agents', self.agent))['id']}"
        elif self._changed is None:
            raise InvalidInput("Nothing changed in this conversation. Name a block: /undo LABEL")
        else:
            changed = self._changed
        await self._run("memory", "undo", changed[0], "--author", changed[1], "-a", self.agent)

    async def _approve(self) -> None:
        """Put the open questions of the agent, and show how the turns that waited for them continue."""
        rows = await self.home.pages("approvals", status="pending")
        rows = [row for row in reversed(rows) if row["request"].get("agent") == self.agent]
        if not rows:
            self.output.say("Nothing waits for an answer.")
        answered = [row["request"] for row in rows if await self._put_one(row["id"])]
        for turn_id in dict.fromkeys(str(turn_of(request)) for request in answered if "tool" in request):
            screen = Screen(self.sink_of(self.agent), has_footer=True)
            seq = self._waiting.pop(turn_id, 0)  # all of it, if it was asked before this conversation
            await self._follow(SentMessage((), {}, "", turn_id=turn_id, seq=seq, screen=screen))


def turn_of(request: Json) -> str | None:
    """Return the turn in which something was asked; a question about memory has it in its cause."""
    found = request.get("turn_id") or (request.get("cause") or {}).get("turn")
    return None if found is None else str(found)
