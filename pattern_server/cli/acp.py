"""`pattern acp`: an agent for editors that speak the Agent Client Protocol, version 1.

An editor starts the command and talks to it over standard input and output, in lines of JSON-RPC 2.0. Its sessions are
sessions of the agent, updates are made from the events of turns, and requests for permission from approvals.

Source: agentclientprotocol.com, protocol version 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import trio

from pattern_core.errors import PatternError
from pattern_core.events import TERMINAL
from pattern_core.ids import Ids, SystemClock, system_randomness
from pattern_server.cli.approvals import what_is_asked
from pattern_server.cli.client import Followed, Json, ServerEvent, ServerFailed, ServerUnreachable
from pattern_server.cli.command import Home, agent_option, always_hosting
from pattern_server.cli.output import Output

PROTOCOL_VERSION = 1
LINE_BYTES_MAX = 64 * 1024 * 1024  # of the editor; images are in it
RUNNING_MAX = 64  # requests of the editor that are answered at the same time
ORIGIN = "acp"  # of sessions and messages
AGAIN = "\n\n(The answer was interrupted; it begins again.)\n\n"

# Codes of JSON-RPC 2.0, and those of the protocol.
NOT_JSON, NOT_A_REQUEST, NO_METHOD, NOT_VALID, FAILED = -32700, -32600, -32601, -32602, -32603
CODES: Mapping[int, int] = {401: -32000, 404: -32002, 422: NOT_VALID}  # by HTTP status

CAPABILITIES: Json = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
    "mcpCapabilities": {"http": False, "sse": False},
}
# Tools of an editor, by what it says that it can do.
_PATH = {"path": {"type": "string", "description": "Relative to the project's folder, or absolute."}}
READ, WRITE, RUN = "editor_read_file", "editor_write_file", "editor_run"
EDITOR_TOOLS: Mapping[str, tuple[str, str, Json]] = {  # the kind of their calls, what they are for, and parameters
    READ: (
        "read",
        "Read a text file of the project as the editor has it, with changes that are not saved.",
        {**_PATH, "line": {"type": "integer", "description": "The first line, from 1."}, "limit": {"type": "integer"}},
    ),
    WRITE: (
        "edit",
        "Write a whole text file of the project in the editor. A person is asked first.",
        {**_PATH, "content": {"type": "string"}},
    ),
    RUN: (
        "execute",
        "Run a program in a terminal of the editor, and return its output. A person is asked first.",
        {"command": {"type": "string"}, "args": {"type": "array", "items": {"type": "string"}}},
    ),
}
OUTPUT_BYTES_MAX = 50_000  # of a terminal
RELEASE_S = 5.0  # how long the editor may need to end a terminal
ALLOW: Json = {"optionId": "once", "name": "Allow", "kind": "allow_once"}
ALWAYS: Json = {"optionId": "always", "name": "Always allow this tool", "kind": "allow_always"}
DENY: Json = {"optionId": "deny", "name": "Deny", "kind": "reject_once"}
STOPS = {
    "length": "max_tokens",
    "content_filter": "refusal",
}  # why a turn that completed stopped, by what its model says


@click.command(epilog="Example: pattern acp -c home -a ada")
@agent_option
@always_hosting
async def acp(home: Home, output: Output, agent: str) -> None:
    """Serve an agent to an editor that speaks the Agent Client Protocol, such as Zed, which starts this command.

    Speaks the protocol over standard input and output until the input ends; turns that run then continue. Starts a
    server in the background if none runs.
    """
    await home.get("agents", agent)  # a wrong name or token is refused here, with a reason that a person can read
    incoming, outgoing = trio.wrap_file(sys.stdin.buffer), trio.wrap_file(sys.stdout.buffer)
    async with trio.open_nursery() as nursery:
        await Editor(home, agent, output, nursery, outgoing).serve(incoming)
        nursery.cancel_scope.cancel()


class RpcError(Exception):
    """The answer to a request is this error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True, eq=False, kw_only=True)
class EditorPrompt(Followed):
    """A prompt that is answered."""

    params: Json
    session_id: str
    is_cancelled: bool = False
    is_streamed: bool = False  # the text of the next message was sent piece by piece
    tools: set[trio.CancelScope] = field(default_factory=set)  # calls that the editor runs


@dataclass(eq=False)
class Editor:
    """The editor at the other end, and its prompts."""

    home: Home
    agent: str
    output: Output
    nursery: trio.Nursery
    outgoing: Any  # a file of bytes, in trio's form
    _sending: trio.Lock = field(default_factory=trio.Lock)
    _running: int = 0
    _asked: dict[int, trio.MemorySendChannel[Json]] = field(default_factory=dict)
    _count: int = 0
    _prompts: list[EditorPrompt] = field(default_factory=list)
    _tools: Sequence[Json] = ()
    _folders: dict[str, str] = field(default_factory=dict)  # of the projects, by session
    _allowed: set[tuple[str, str]] = field(default_factory=set)  # tools that always may run, by session
    _ids: Ids = field(default_factory=lambda: Ids(SystemClock(), system_randomness()))

    # JSON-RPC

    async def serve(self, incoming: Any) -> None:
        """Serve what the editor sends, until its input ends."""
        while line := await incoming.readline(LINE_BYTES_MAX):
            try:
                message = json.loads(line)
            except ValueError:
                await self._send({"id": None, "error": {"code": NOT_JSON, "message": "the line is not JSON"}})
                continue
            if not isinstance(message, dict):
                await self._send({"id": None, "error": {"code": NOT_A_REQUEST, "message": "this is not a request"}})
            elif "method" not in message:
                number = message.get("id")
                if isinstance(number, int) and (waiting := self._asked.pop(number, None)) is not None:
                    waiting.send_nowait(message)
            elif "id" not in message:
                if message["method"] == "session/cancel":
                    await self._cancel(message.get("params"))
            elif self._running >= RUNNING_MAX:
                refusal = {"code": FAILED, "message": f"{RUNNING_MAX} requests are running; send it again later"}
                await self._send({"id": message["id"], "error": refusal})
            else:
                self._running += 1
                if message["method"] == "session/prompt" and isinstance(params := message.get("params"), dict):
                    # Known before the next line is read, which may cancel it.
                    where, session_id = ("agents", self.agent, "messages"), str(params.get("sessionId"))
                    prompt = EditorPrompt(where, {}, self._ids.new("key"), params=params, session_id=session_id)
                    self._prompts.append(prompt)
                self.nursery.start_soon(self._answer, message)

    async def _answer(self, request: Json) -> None:
        methods = {
            "initialize": self._initialize,
            "session/new": self._new,
            "session/load": self._load,
            "session/prompt": self._prompt,
        }
        answer: Json
        try:
            if (method := methods.get(str(request["method"]))) is None:
                raise RpcError(NO_METHOD, f"there is no method {request['method']!r}")
            answer = {"result": await method(request.get("params", {}))}
        except RpcError as error:
            answer = {"error": {"code": error.code, "message": str(error)}}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            answer = {"error": {"code": NOT_VALID, "message": f"the parameters are not valid: {error!r}"}}
        except ServerFailed as error:
            code = CODES.get(error.status, FAILED)
            answer = {"error": {"code": code, "message": error.message, "data": {"code": error.problem_code}}}
        except PatternError as error:
            answer = {"error": {"code": FAILED, "message": error.message, "data": {"code": error.code}}}
        finally:
            self._running -= 1
        await self._send({"id": request["id"], **answer})

    async def _send(self, message: Json) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False, separators=(",", ":"))
        async with self._sending:
            await self.outgoing.write(line.encode("utf-8", "replace") + b"\n")
            await self.outgoing.flush()

    async def _ask(self, method: str, params: Json) -> Json:
        """Return the editor's answer to a request: its whole message."""
        self._count += 1
        number = self._count
        self._asked[number], receiving = trio.open_memory_channel[Json](1)
        await self._send({"id": number, "method": method, "params": params})
        return await receiving.receive()

    async def _ask_for(self, method: str, params: Json) -> Json:
        """Return the result of a request to the editor.

        Raises:
            RpcError: it refuses.
        """
        answer = await self._ask(method, params)
        if "error" in answer:
            raise RpcError(FAILED, str((answer["error"] or {}).get("message")))
        return answer.get("result") or {}

    async def _update(self, session_id: str, updates: Iterator[Json]) -> None:
        for update in updates:
            await self._send({"method": "session/update", "params": {"sessionId": session_id, "update": update}})

    # Methods

    async def _initialize(self, params: Json) -> Json:
        int(params["protocolVersion"])
        self._tools = tools_of(params.get("clientCapabilities") or {})
        about = {"name": "pattern", "title": "Pattern", "version": version("pattern-server")}
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": CAPABILITIES,
            "agentInfo": about,
            "authMethods": [],
        }

    async def _new(self, params: Json) -> Json:
        folder, workspace = str(params.get("cwd") or ""), None
        with suppress(ServerFailed):  # it belongs to none
            workspace = (await self.home.get("workspaces", path=folder))["items"][0]["id"]
        body = {"origin": ORIGIN, "workspace": workspace}
        made = await self.home.call("POST", "agents", self.agent, "sessions", body=body)
        self._folders[made["id"]] = folder
        return {"sessionId": made["id"]}

    async def _load(self, params: Json) -> Json:
        session_id = str(params["sessionId"])
        self._folders[session_id] = str(params.get("cwd") or "")
        await self.home.get("agents", self.agent, "sessions", session_id)
        rows = await self.home.pages("agents", self.agent, "messages", session=session_id)
        for row in reversed(rows):
            await self._update(session_id, of_row(row))
        return {}

    async def _prompt(self, params: Json) -> Json:
        [prompt] = [one for one in self._prompts if one.params is params]
        try:
            prompt.body = {"content": content_of(params["prompt"]), "session_id": prompt.session_id, "source": ORIGIN}
            prompt.body["tools"] = self._tools
            ended = "the server ended the stream; the turn continues"
            last = await prompt.follow(self.home, partial(self._take, prompt), ended=ended)
            return {"stopReason": stop_of(last)}
        finally:
            self._prompts.remove(prompt)
            for scope in prompt.tools:
                scope.cancel()

    async def _take(self, prompt: EditorPrompt, event: ServerEvent) -> ServerEvent | None:
        """Tell the editor what an event means; return the event if it ends the turn."""
        if not prompt.turn_id:
            prompt.turn_id = str(event.data["turn_id"])
            if prompt.is_cancelled:
                await self._post("turns", prompt.turn_id, "cancel")
        if event.name in TERMINAL:
            return event
        if event.name == "approval.requested":
            answer = self._run if "client" in event.data["request"] else self._put
            self.nursery.start_soon(answer, prompt, event.data)
        await self._update(prompt.session_id, of_event(event, prompt))
        return None

    async def _cancel(self, params: Any) -> None:
        session_id = params.get("sessionId") if isinstance(params, dict) else None
        for prompt in [one for one in self._prompts if one.session_id == session_id]:
            prompt.is_cancelled = True
            if prompt.turn_id:
                self.nursery.start_soon(self._post, "turns", prompt.turn_id, "cancel")

    async def _post(self, *below: str, body: Json | None = None) -> None:
        try:
            await self.home.call("POST", *below, body=body)
        except (ServerFailed, ServerUnreachable) as error:
            self.output.note(error.message)

    async def _put(self, prompt: EditorPrompt, approval: Json) -> None:
        """Put a question to the person at the editor. An answer from elsewhere counts if it comes first."""
        chosen = await self._chosen(prompt, approval, has_subject=bool(approval["request"].get("subject")))
        if chosen is None:
            return  # the turn is cancelled, or waits for an answer from elsewhere
        body = {"decision": "deny"} if chosen == "deny" else {"decision": "approve", "scope": chosen}
        await self._post("approvals", approval["approval_id"], body=body)

    async def _chosen(self, prompt: EditorPrompt, approval: Json, *, has_subject: bool) -> str | None:
        """Return what the person at the editor chose; None for nothing."""
        request = approval["request"]
        options = [ALLOW, ALWAYS, DENY] if has_subject else [ALLOW, DENY]
        call: Json = {"toolCallId": approval["approval_id"]}
        if "call_id" in request:
            call = {"toolCallId": id_of(prompt.turn_id, request), "rawInput": request.get("arguments")}
        asked = {"sessionId": prompt.session_id, "toolCall": {**call, "title": what_is_asked(request)}}
        answer = await self._ask("session/request_permission", {**asked, "options": options})
        outcome = (answer.get("result") or {}).get("outcome") or {}
        return str(outcome.get("optionId")) if outcome.get("outcome") == "selected" else None

    async def _run(self, prompt: EditorPrompt, approval: Json) -> None:
        """Have the editor run a call of one of its tools, until the prompt is answered."""
        request = approval["request"]
        known = prompt.session_id, request["tool"]
        with trio.CancelScope() as scope:
            prompt.tools.add(scope)
            body: Json = {"decision": "approve"}
            try:
                if request["tool"] != READ and known not in self._allowed:
                    match await self._chosen(prompt, approval, has_subject=True):
                        case "always":
                            self._allowed.add(known)
                        case "once":
                            pass
                        case _:
                            body = {"decision": "deny", "reason": "the person at the editor did not allow it"}
                if body["decision"] == "approve":
                    body["result"] = await self._result(prompt.session_id, request["tool"], request["arguments"])
            except RpcError as error:
                body["result"] = f"Error: {error}"
            except (KeyError, TypeError) as error:
                body["result"] = f"Error: the arguments or the editor's answer are not valid: {error!r}"
            await self._post("approvals", approval["approval_id"], body=body)

    async def _result(self, session_id: str, tool: str, given: Json) -> str:
        """Return what a tool of the editor answers.

        Raises:
            RpcError: the editor refuses.
        """
        here, folder = {"sessionId": session_id}, self._folders.get(session_id, "")
        if tool == READ:
            part = {name: value for name, value in given.items() if name in ("line", "limit")}
            asked = {**here, **part, "path": str(Path(folder, given["path"]))}
            return str((await self._ask_for("fs/read_text_file", asked))["content"])
        if tool == WRITE:
            path = str(Path(folder, given["path"]))
            await self._ask_for("fs/write_text_file", {**here, "path": path, "content": given["content"]})
            return f"Wrote {path}."
        program = {"command": given["command"], "args": given.get("args") or [], "cwd": folder or None}
        made = await self._ask_for("terminal/create", {**here, **program, "outputByteLimit": OUTPUT_BYTES_MAX})
        terminal = {**here, "terminalId": made["terminalId"]}
        try:
            ended = await self._ask_for("terminal/wait_for_exit", terminal)
            output = str((await self._ask_for("terminal/output", terminal))["output"])
        finally:
            with trio.move_on_after(RELEASE_S, shield=True):  # it ends the program, too
                await self._ask_for("terminal/release", terminal)
        status = f"signal {ended['signal']}" if ended.get("signal") else f"exit code {ended.get('exitCode')}"
        return f"{output}\n({status})"


# What the editor sends


def tools_of(capabilities: Json) -> list[Json]:
    """Return the tools that an editor offers, as a message has them."""
    files = capabilities.get("fs") or {}
    can = {READ: files.get("readTextFile"), WRITE: files.get("writeTextFile"), RUN: capabilities.get("terminal")}
    made = []
    for name, (_kind, description, properties) in EDITOR_TOOLS.items():
        if can[name]:
            needed = [one for one in properties if one in ("path", "content", "command")]
            parameters = {"type": "object", "properties": properties, "required": needed}
            made.append({"name": name, "description": description, "parameters": parameters})
    return made


def content_of(blocks: Sequence[Json]) -> list[Json]:
    """Return the blocks of a prompt as the content of a message.

    Raises:
        RpcError: a block is of an unknown kind.
    """
    content: list[Json] = []
    for block in blocks:
        match block["type"]:
            case "text":
                content.append({"type": "text", "text": block["text"]})
            case "image":
                content.append({"type": "image", "data": block["data"], "media_type": block["mimeType"]})
            case "resource_link":
                content.append({"type": "text", "text": f"[{block['name']}]({block['uri']})"})
            case "resource" if "text" in block["resource"]:
                resource = block["resource"]
                content.append({"type": "text", "text": f"{resource['uri']}:\n\n{resource['text']}"})
            case other:
                raise RpcError(NOT_VALID, f"a prompt cannot have the content {other!r}; send text, images or resources")
    return content


# What is sent to the editor


def of_event(event: ServerEvent, prompt: EditorPrompt) -> Iterator[Json]:
    """Yield the updates that an event of a turn means."""
    data = event.data
    match event.name:
        case "text.delta":
            prompt.is_streamed = True
            yield _chunk("agent_message_chunk", str(data["text"]))
        case "reasoning.delta":
            yield _chunk("agent_thought_chunk", str(data["text"]))
        case "step.superseded" if prompt.is_streamed:
            prompt.is_streamed = False
            yield _chunk("agent_message_chunk", AGAIN)
        case "message" if data.get("role") == "assistant":
            if data.get("content") and (not prompt.is_streamed or "channel" in data):
                yield _chunk("agent_message_chunk", str(data["content"]))
            prompt.is_streamed = prompt.is_streamed and "channel" in data
        case "tool.call":
            yield _call(id_of(prompt.turn_id, data), str(data.get("tool")), data.get("arguments"))
        case "tool.result":
            is_done, text = data.get("status") == "done", data.get("content")
            yield _called(id_of(prompt.turn_id, data), str(text or ""), is_done=is_done)


def of_row(row: Json) -> Iterator[Json]:
    """Yield the updates that repeat a stored message."""
    if row["role"] == "tool":
        is_done = not (row.get("tool_result") or {}).get("is_error")
        yield _called(id_of(row["batch_id"], {"call_id": row["tool_call_id"]}), row["content"] or "", is_done=is_done)
        return
    speaker = "user" if row["role"] == "user" else "agent"
    for part in row.get("parts") or [{"type": "text", "text": row["content"] or ""}]:
        match part["type"]:
            case "text" if part["text"]:
                yield _chunk(f"{speaker}_message_chunk", part["text"])
            case "reasoning" if part["text"]:
                yield _chunk("agent_thought_chunk", part["text"])
            case "tool_call":
                yield _call(id_of(row["batch_id"], part), part["tool"], part["arguments"])


def stop_of(event: ServerEvent) -> str:
    """Return why a turn stopped, by its terminal event.

    Raises:
        RpcError: it failed.
    """
    match event.name:
        case "turn.completed":
            return STOPS.get(str(event.data.get("finish_reason")), "end_turn")
        case "turn.cancelled":
            return "cancelled"
        case "turn.limit":
            return "max_turn_requests"
    error = event.data.get("error") or {}
    raise RpcError(FAILED, str(error.get("message") or event.name))


def id_of(turn: str, call: Json) -> str:
    """Return the id of a tool call, unique in its session: those of models are not."""
    return f"{turn}/{call['call_id']}"


def _chunk(kind: str, text: str) -> Json:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def _call(call_id: str, tool: str, arguments: object) -> Json:
    kind = EDITOR_TOOLS[tool][0] if tool in EDITOR_TOOLS else "other"
    about = {"title": tool, "kind": kind, "status": "pending", "rawInput": arguments}
    return {"sessionUpdate": "tool_call", "toolCallId": call_id, **about}


def _called(call_id: str, text: str, *, is_done: bool) -> Json:
    content = [{"type": "content", "content": {"type": "text", "text": text}}]
    status = "completed" if is_done else "failed"
    return {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": status, "content": content}
