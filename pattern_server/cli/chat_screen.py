"""What a person sees of a turn: its events as words, remarks and phases; and what an agent asks in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime

from pattern_core.answers import CUT
from pattern_core.budgets.budget import dollars
from pattern_core.events import TERMINAL
from pattern_server.cli.approvals import what_is_asked
from pattern_server.cli.client import Json, ServerEvent, json_or_words
from pattern_server.cli.history import not_whole
from pattern_server.cli.output import Output, cut, in_line

CALL_CHARS_MAX = 100  # shown of a call's arguments …
RESULT_CHARS_MAX = 120  # … and of its result
CHANGED_LINES_MAX = 8  # shown of a change of memory
MARKS = {"+": "green", "-": "red"}
STOPPED = {
    "user": "a person cancelled it",
    "superseded": "another message came before it",
    "rolled_back": "another message replaced it",
    "agent_deleted": "its agent was deleted",
    "halted": "an agent halted the constellation; see pattern constellation show",
    "restored_as_a_copy": "it belongs to the constellation of which this one is a copy",
}  # by the reason of the cancellation

# Escape sequences whole (a key, a colour, a title), then every other control character but tab and line feed.
_CONTROLS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[O ]?.)?|[\0-\x08\x0b-\x1f\x7f-\x9f]")


def typed_text(text: str) -> str:
    """Return what a person typed or pasted, without what only drives terminals."""
    return _CONTROLS.sub("", re.sub(r"\r\n?", "\n", text))


class Lines:
    """Where a turn is shown: as lines, words on the standard output and remarks on the standard error.

    Each answer begins with the `name`, if there is one.
    """

    def __init__(self, output: Output, name: str = "") -> None:
        self._output = output
        self._head = f"{name}: " if name else ""
        self._is_mid_line = False
        self._is_mid_answer = False

    def words(self, text: str) -> None:
        """Print a piece of an answer at once."""
        self._output.words(text if self._is_mid_answer else self._head + text)
        self._is_mid_answer = True
        self._is_mid_line = not text.endswith("\n")

    def end(self, *, is_void: bool = False) -> None:
        """End the answer; of one that is void, what is printed stays."""
        if self._is_mid_line:
            self._output.words("\n")
        self._is_mid_line = self._is_mid_answer = False

    def note(self, text: str, style: str = "") -> None:
        """Print a remark on a line of its own, where there are colours in a style of rich's."""
        self.end()
        self._output.note(text)

    def phase(self, text: str) -> None:
        """Show what is waited for, where that can be removed again; nothing if the text is empty."""


class Screen:
    """Shows the events of one turn in a sink; with `has_footer`, at the end what it used."""

    def __init__(self, sink: Lines, *, has_footer: bool = False) -> None:
        self.sink = sink
        self._has_footer = has_footer
        self._streamed = ""
        self._calls: dict[str, str] = {}
        self._noted: set[str] = set()
        self._started_at = ""
        self._is_group = False
        self.heard: set[str] = set()  # what members of the group said

    def show(self, event: ServerEvent) -> None:
        """Show one event; those that mean nothing to a reader are passed over."""
        data = event.data
        match event.name:
            case "turn.queued":
                self.sink.phase("waiting in the queue")
            case "turn.started" | "turn.resumed":
                self._started_at = self._started_at or str(data.get("created_at") or "")
                self.sink.phase("preparing")
            case "mcp.starting":
                self.sink.phase(f"starting MCP server {', '.join(data['servers'])}")
            case "step.started":
                self.sink.phase("waiting for the model")
            case "reasoning.delta":
                self.sink.phase("thinking")
            case "text.delta":
                self._words(str(data.get("text", "")))
            case "step.superseded":
                self._streamed = ""
                self.sink.end(is_void=True)
                why = "the model gave no answer" if data.get("why") == "no_answer" else "the answer was interrupted"
                self.sink.note(f"({why}; retrying)", "yellow")
            case "message" if data.get("role") == "assistant":
                self._message(data)
            case "tool.call" | "tool.result":
                self._call(event)
            case "model.retry" | "model.fallback":
                self._model(event)
            case _ if event.name.startswith("group."):
                self._group(event)
            case "turn.waiting":
                self.sink.phase("waiting for your approval")
            case _ if event.name in TERMINAL:
                self._end(data)

    def changed(self, label: str, diff: str) -> None:
        """Show a change of a memory block, as the lines of a unified diff that were added and removed."""
        lines = [line for line in diff.splitlines() if line[:1] in MARKS and line[:3] not in ("+++", "---")]
        for line in lines[:CHANGED_LINES_MAX]:
            self.sink.note(f"{label}  {line[0]} {line[1:]}", MARKS[line[0]])
        if len(lines) > CHANGED_LINES_MAX:
            self.sink.note(f"{label}  … {len(lines) - CHANGED_LINES_MAX} more", "dim")

    def _words(self, text: str) -> None:
        if text:
            self.sink.phase("answering")
            self.sink.words(text)
            self._streamed += text

    def _message(self, data: Json) -> None:
        if not self._streamed:  # a provider that does not stream has sent no words yet
            self._words(str(data.get("content") or ""))
        self.sink.end()
        self._streamed = ""
        if data.get("partial") in CUT:  # what a turn ended is said with its end
            self.sink.note(not_whole(str(data["partial"])), "yellow")

    def _call(self, event: ServerEvent) -> None:
        data = event.data
        tool, call_id = str(data.get("tool")), str(data.get("call_id"))
        if event.name == "tool.call":
            self._calls[call_id] = call_line(tool, data.get("arguments") or {})
            self.sink.phase(f"running {tool}")
            return
        status, duration = str(data.get("status")), data.get("duration_ms")
        result = cut(result_text(str(data.get("content") or "")), RESULT_CHARS_MAX) or status
        spent = "" if duration is None else f" · {duration} ms" if duration < 1000 else f" · {duration / 1000:.1f} s"
        self.sink.end()
        self.sink.note(f"{self._calls.pop(call_id, tool)} → {result}{spent}", "cyan" if status == "done" else "red")

    def _model(self, event: ServerEvent) -> None:
        data = event.data
        if event.name == "model.fallback":
            self.sink.note(f"({data.get('from')} does not answer; asking {data.get('to')})", "yellow")
            return
        code = str(data.get("code"))
        is_loading = code == "model_loading"
        self.sink.phase("the model is loading" if is_loading else f"the model failed ({code}), retrying")
        if code not in self._noted and not is_loading:  # a failure that repeats itself is one line
            self._noted.add(code)
            self.sink.note(f"(the model failed: {code}; retrying)", "yellow")

    def _group(self, event: ServerEvent) -> None:
        data = event.data
        match event.name:
            case "group.selected":
                self.sink.phase(f"waiting for {data['agent']}")
                self._is_group = True
            case "group.handoff":
                self.sink.note(f"{data['from']} hands over to {data['to']}. {data['reason']}".rstrip(), "cyan")
            case "group.round" if what := data.get("stage") or data.get("round"):
                self.sink.note(f"{'stage' if 'stage' in data else 'round'} {what}", "dim")

    def _end(self, data: Json) -> None:
        text = str(data.get("text") or "")
        if self._is_group and not any(words in text for words in self.heard):  # it is not what members have said
            self._words(text)
        self.sink.end()
        self.sink.phase("")
        if data.get("joined"):
            self.sink.note("(joined the answer in progress)", "dim")
        elif self._has_footer and (usage := data.get("usage")):
            cost = usage.get("cost_microdollars")
            parts = [f"{usage['input_tokens']:,} in", f"{usage['output_tokens']:,} out"]
            parts += [] if cost is None else [dollars(cost)]
            if self._started_at:
                spent = datetime.fromisoformat(data["created_at"]) - datetime.fromisoformat(self._started_at)
                parts.append(f"{spent.total_seconds():.1f} s")
            self.sink.note(" · ".join([*parts, str(data["turn_id"])]), "dim")


def call_line(tool: str, arguments: Json) -> str:
    """Return a call in a line: `calculator(17*23)`, with names where it has several arguments."""
    values = [in_line(value) for value in arguments.values()]
    if len(arguments) > 1:
        values = [f"{name}: {value}" for name, value in zip(arguments, values, strict=True)]
    return f"{tool}({cut(', '.join(values), CALL_CHARS_MAX)})"


def result_text(content: str) -> str:
    """Return a result in a line: of our own tools, which answer in JSON, what they found or did."""
    found = json_or_words(content)
    if isinstance(found, dict):
        data = found.get("data")
        found = data["result"] if isinstance(data, dict) and "result" in data else found.get("message", found)
    return in_line(found)


def question_lines(request: Json) -> Iterator[tuple[str, str]]:
    """Yield what an agent asks consent for, as lines with their styles: each argument whole, or an edit as a diff."""
    if "tool" in request:
        yield f"{request['agent']} wants to run {request['tool']}: {request.get('reason', '')}", "bold yellow"
        for name, value in request["arguments"].items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"  {name}: {text.replace(chr(10), chr(10) + '    ')}", ""
    elif isinstance(request.get("edit"), dict):
        yield f"{request['agent']} wants to change the block {request['label']}", "bold yellow"
        for name, value in request["edit"].items():
            if name == "edit":
                continue
            mark = "-" if name == "old" else "+" if isinstance(value, str) and name in ("new", "text", "~value") else ""
            for line in str(value).splitlines() if mark else [f"{name}: {in_line(value)}"]:
                yield f"  {mark} {line}" if mark else f"  {line}", MARKS.get(mark, "")
    else:
        yield what_is_asked(request), "bold yellow"


def answer_of(line: str) -> Json | None:
    """Return the decision that a typed line stands for: the body of the API's answer, {} if it is none, None for
    later. A standing yes is never one letter that could be meant as a simple one.
    """
    word, _, rest = line.strip().partition(" ")
    match word.lower():
        case "a" | "approve" | "y" | "yes":
            return {"decision": "approve"}
        case "s" | "same":
            return {"decision": "approve", "scope": "same"}
        case "always":
            return {"decision": "approve", "scope": "always"}
        case "d" | "deny" | "n" | "no":
            return {"decision": "deny", **({"reason": rest.strip()} if rest.strip() else {})}
        case "" | "l" | "later":
            return None
        case _:
            return {}


def ended(status: str, error: Json | None) -> str:
    """Return how a turn ended that did not complete, in a sentence."""
    message = str((error or {}).get("message") or "")
    if status == "cancelled":
        reason = message.removeprefix("cancelled: ")
        return f"The turn was stopped: {STOPPED.get(reason, reason)}" if reason else "The turn was stopped"
    return f"The turn ended as {status}: {message}" if message else f"The turn ended as {status}"
