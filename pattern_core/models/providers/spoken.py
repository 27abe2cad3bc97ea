"""What open models write in the forms of their templates: thoughts, tool calls and control tokens in plain text; pure.

A server that knows a model's template sends thoughts and calls in fields of their own; one that does not passes the
model's words on as they are. To such models the same forms in a message or a result are what they seem to be, so they
are changed before they are sent.

Sources: the templates and model cards of Hermes 2 Pro and Qwen 2.5 (`<tool_call>` around JSON; its coder models also
`<tools>`, a fence, or our own `<data>`), Qwen 3 Coder (`<function=name><parameter=key>`), Llama 3.1 (`<|python_tag|>`,
`<function=name>{…}</function>`, bare JSON with `parameters`), Mistral (`[TOOL_CALLS]`, `[ARGS]`, `[THINK]`), Phi 4 mini
(`<|tool_call|>`), DeepSeek R1 and Qwen 3 (`<think>`), Gemma (`<start_of_turn>`); vLLM, "Tool Calling", its parsers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from pattern_core.messages import ToolResult
from pattern_core.models.model import ANY_TOOL, Delta, ModelRequest
from pattern_core.models.providers.draft import ReplyDraft
from pattern_core.models.providers.encoding import Encoded, JsonObject

HELD_CHARS_MAX = 100_000  # of what looks like a call; more is text
BEGINNING_CHARS_MAX = 1_000  # of JSON in which a tool's name has to come
PIECE_CHARS_MAX = 4_000  # compared together
PLACES_MAX = 1_000  # of a text, at which a call may begin

_THOUGHTS = ("<think>", "<thinking>", "<thought>", "<reasoning>", "[THINK]")
_THOUGHT = re.compile(r"\s*(?:<(?:think|thinking|thought|reasoning)>|\[THINK\])")
_THOUGHT_END = re.compile(r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]")
# The start of another speaker's turn, or the end of one: text after it is not part of the answer.
_TURN = (
    r"<[|｜](?!python_tag|tool_call|/tool_call)[\w▁]{1,40}[|｜]>|<(?:start|end)_of_turn>|\[/?INST\]|</?tool_response>"
)
_TURNS = re.compile(_TURN)
_OPENING = r"<tool_call>|<tools>|<\|tool_calls?\|>|<\|python_tag\|>|\[TOOL_CALLS\]"
_MARK = re.compile(
    rf"(?P<turn>{_TURN}|</s>)|(?P<thought>{_THOUGHT_END.pattern})"
    rf"|(?P<call>{_OPENING}|<function=)|(?P<json>(?<=\n)[ \t]*(?:```|[\[{{])|<data>\s{{0,20}}(?:```|[\[{{]))"
)
# The end of what came so far, where more may make one of these of it.
_TAIL = re.compile(r"(?:<[^\s<>]{0,60}|<data>\s{0,20}`{0,2}|\[[A-Z/_]{0,16}|`{1,2}|(?<=\n)[ \t]{1,20})\Z")
# JSON as far as it came, in a fence or a list or bare; `said` is what follows its first key.
_JSON_BEGUN = re.compile(
    r'\s*(?:<data>\s*)?(?:```\w{0,12}\s*)?(?:\[\s*)?(?:\{{1,2}\s*(?:"(?P<key>\w{0,12})(?:"(?P<said>.*))?)?)?', re.DOTALL
)
_KEYS = ("name", "function", "tool_name", "type", "id", "arguments", "parameters", "tool_calls")
_NAME = re.compile(r'"(?:name|function|tool_name)"\s*:\s*"([\w.-]+)"')
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:\s*')
_CALL = re.compile(
    rf"(?P<opening>{_OPENING}|(?:<data>\s{{0,20}})?```\w*|<data>)?\s{{0,20}}(?:<function=(?P<function>[\w.-]+)>(?P<body>.*?)(?:</function>|\Z)"
    r"|(?<=\])\s*(?P<named>[\w.-]+)\s*(?:\[ARGS\])?\s*(?=\{)|(?=[\[{]))",
    re.DOTALL,
)
_BROKEN_END = re.compile(r"</tool_call>|</tools>|</data>|```")
_CLOSING = re.compile(r"[\s\]},;]*(?:</tool_call>|</tools>|<\|/tool_calls?\|>|```)?\s*(?:</s>|</data>)?")
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?(?:</parameter>|\Z)", re.DOTALL)
_JSON = json.JSONDecoder(strict=False)  # models write line feeds into strings as they are

# Text from others could end its own message and begin one of the system's. A word joiner behind the first character
# helps: tokenizers look for control tokens by their exact characters, before they normalise anything, and no
# normalisation removes this one. It is not shown, and always at the same place, so that caches stay valid.
_JOINER = "\u2060"
_CONTROL = re.compile(
    r"<(?=[|｜][^<>\s]{1,60}[|｜]>|<?/?(?:s|SYS|bos|eos|pad|unk|start_of_turn|end_of_turn|think|thinking|thought|reasoning"
    r"|tools|tool_calls?|tool_response|function|parameter)[=>])"
    r"|\[(?=/?(?:INST|THINK|ARGS|CALL_ID|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT)\])"
)
_DESCRIBED = """You can call these tools. Each line describes one:
<tools>
{tools}
</tools>

To call a tool, write its name and arguments as JSON, in this form and nothing after it:
<tool_call>
{{"name": "name of the tool", "arguments": {{"name of an argument": "its value"}}}}
</tool_call>
The result comes back in <tool_response>. Without a tool call, your words are the answer."""

T = TypeVar("T")


def neutral(value: T) -> T:
    """Return encoded messages or tools in which no text holds a control token of a template."""
    made: object = value
    if isinstance(value, str):
        made = _CONTROL.sub(lambda found: found[0] + _JOINER, value) if "<" in value or "[" in value else value
    elif isinstance(value, Mapping):
        made = {name: neutral(one) for name, one in value.items()}
    elif isinstance(value, list):
        made = [neutral(one) for one in value]
    return made  # type: ignore[return-value]  # of the same type


def as_text(messages: Sequence[Encoded], tools: Sequence[Encoded], force_tool: str | None) -> list[Encoded]:
    """Return encoded messages for a model that knows tools from its instructions alone: calls and results are text."""
    made: list[Encoded] = []
    for message in map(JsonObject, messages):
        content = message.text("content")
        if calls := message.listed("tool_calls"):
            functions = [call.nested("function") for call in calls]
            said = [f'{{"name": {json.dumps(one["name"])}, "arguments": {one["arguments"]}}}' for one in functions]
            texts = [content] * bool(content) + [f"<tool_call>\n{text}\n</tool_call>" for text in said]
            made.append({"role": "assistant", "content": "\n".join(texts)})
        elif message["role"] == "tool":
            made.append({"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"})
        else:
            made.append(message)
    if tools:
        text = _DESCRIBED.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if force_tool is not None:
            text += " Call a tool now." if force_tool == ANY_TOOL else f" Call the tool {force_tool} now."
        first = made.pop(0)["content"] if made and made[0]["role"] == "system" else ""
        made.insert(0, {"role": "system", "content": f"{first}\n\n{text}".lstrip()})
    return made


class SpokenText:
    """Sorts an answer's text while it comes: thoughts at its beginning, words, calls of the tools that were offered.

    What may be the beginning of a call is held back, and shown if it turns out to be none. `is_over` becomes True where
    the model continues as another speaker.
    """

    def __init__(self, draft: ReplyDraft, request: ModelRequest) -> None:
        self.is_over = False
        self._draft = draft
        self._request = request
        tools = () if request.tool_calls == "native" else request.tools
        self._tools = {tool.name.lower(): tool.name for tool in tools}
        self._last, self._rest = "\n", ""  # character that was shown, and what is not decided
        self._held: list[str] = []  # what is a call, in pieces
        self._held_chars = 0
        self._begins, self._thinks, self._trims = True, False, False
        self._has_thought = self._strikes = False

    def feed(self, piece: str) -> list[Delta]:
        """Process a piece; return what can be shown now."""
        if len(piece) > PIECE_CHARS_MAX:
            places = range(0, len(piece), PIECE_CHARS_MAX)
            return [delta for at in places for delta in self.feed(piece[at : at + PIECE_CHARS_MAX])]
        if self.is_over or not piece:
            return []
        self._draft.is_held = True
        if self._held:
            return self._hold(piece)
        self._rest += piece.lstrip() if self._trims else piece
        self._trims = self._trims and not self._rest
        if self._begins:
            begun = self._rest.lstrip()
            if opened := _THOUGHT.match(self._rest):
                self._thinks = self._has_thought = True
                self._rest = self._rest[opened.end() :]
            elif len(self._rest) < BEGINNING_CHARS_MAX and any(one.startswith(begun) for one in _THOUGHTS):
                return []
            self._begins = False
        return self._sorted()

    def end(self) -> list[Delta]:
        """Process the end of the answer: add its calls to the draft; return what can be shown."""
        text, calls = "".join(self._held) or self._rest, Calls(self._tools, self._request)
        self._held, self._rest = [], ""
        if self._tools and not self._thinks:
            turn = _TURNS.search(text)
            text = calls.read(text if turn is None else text[: turn.start()])
        deltas = self._show(text)
        for tool, arguments in [] if self._draft.has_calls else calls.found:  # else the server reads them itself
            self._draft.extend(self._draft.begin_call(tool=tool), arguments)
        return deltas

    def _sorted(self) -> list[Delta]:
        deltas: list[Delta] = []
        while found := (_THOUGHT_END if self._thinks else _MARK).search(self._last + self._rest, 1):
            start, end = found.start() - 1, found.end() - 1
            kind = self._kind(found, self._rest[start:])
            deltas += self._show(self._rest[: end if kind == "words" else start])
            self._rest = self._rest[end if kind in ("words", "thought") else start :]
            match kind:
                case "thought":
                    if not self._thinks:
                        self._draft.think()
                    self._thinks, self._has_thought, self._last = False, True, "\n"
                    self._rest = self._rest.lstrip()
                    self._trims = not self._rest
                case "call":
                    piece, self._rest = self._rest, ""
                    return deltas + self._hold(piece)
                case "turn":
                    self.is_over, self._rest = True, ""
                    return deltas
                case "open":
                    return deltas
        tail = _TAIL.search(self._last + self._rest, 1)
        end = len(self._rest) if tail is None else tail.start() - 1
        text, self._rest = self._rest[:end], self._rest[end:]
        return deltas + self._show(text)

    def _kind(self, found: re.Match[str], text: str) -> str:
        """Return what was found: words, an end of thoughts, a turn, a call, or "open" as long as that is not known."""
        match found.lastgroup:
            case "thought" if self._has_thought:
                return "words"
            case "turn" if found[0] == "</s>" and (self._strikes or "<s>" in found.string[: found.start()]):
                return "words"  # HTML
            case "call" | "json" if not self._tools:
                return "words"
            case "json":
                return self._kind_of_json(text)
        return found.lastgroup or "thought"

    def _kind_of_json(self, text: str) -> str:
        begun = _JSON_BEGUN.fullmatch(text)
        if begun is None:
            return "open" if _TAIL.fullmatch(text) else "words"
        if begun["said"] is None:
            return "open"
        names = _NAME.findall(text)
        if any(name_of(name, self._tools) for name in names):
            return "call"
        is_open = begun["key"] in _KEYS and not (names and begun["key"] == "name")
        return "open" if is_open and len(text) < BEGINNING_CHARS_MAX else "words"

    def _hold(self, piece: str) -> list[Delta]:
        self._held.append(piece)
        self._held_chars += len(piece)
        self._rest = (self._rest + piece)[-100:]  # in which a turn may begin
        self.is_over = _TURNS.search(self._rest) is not None
        if self._held_chars <= HELD_CHARS_MAX:
            return []
        text, self._held, self._rest, self._held_chars = "".join(self._held), [], "", 0
        return self._show(text)

    def _show(self, text: str) -> list[Delta]:
        self._last = text[-1:] or self._last
        self._strikes = self._strikes or "<s>" in text
        return self._draft.words(text, is_reasoning=self._thinks)


def name_of(name: str, tools: Mapping[str, str]) -> str | None:
    """Return the offered tool of a name, which may have a prefix (`functions.`) and other capitals; None if none."""
    return tools.get(name.rpartition(".")[2].lower())


class Calls:
    """Finds the calls in a text; `found` are tools and the JSON text of their arguments.

    Text that also occurs in a message or a result is not a call: the model quotes it, and its author must not call
    tools.
    """

    def __init__(self, tools: Mapping[str, str], request: ModelRequest) -> None:
        self.found: list[tuple[str, str]] = []
        self._tools = tools  # by their names in lower case
        self._request = request
        self._others: str | None = None  # their words, without blanks

    def read(self, text: str) -> str:
        """Find the calls; return what else is said."""
        left, at = [], 0
        for _ in range(PLACES_MAX):
            found = _CALL.search(text, at)
            if found is None:
                break
            # In a form that is used for nothing else, a tool that does not exist is a mistake that the model must see.
            is_sure = bool(found["opening"] or found["function"])
            is_sure = is_sure and not (found["opening"] or "").startswith(("```", "<data>"))
            end = found.end()
            if found["function"]:
                values = dict(_PARAMETER.findall(found["body"]))
                arguments = json.dumps(values, ensure_ascii=False) if values else found["body"].strip()
                is_call = not self._is_quoted(found[0]) and self._add(found["function"], arguments, is_sure=True)
            else:
                is_call, end = self._read_json(text, end, found["named"], is_sure=is_sure)
            left.append(text[at : found.start() if is_call else end])
            closing = _CLOSING.match(text, end)
            at = closing.end() if is_call and closing else end
        return "".join([*left, text[at:]]) if self.found else text

    def _read_json(self, text: str, start: int, named: str | None, *, is_sure: bool) -> tuple[bool, int]:
        """Add the calls that the JSON at `start` is; return whether there were any, and where what was read ends."""
        start += text.startswith("{{", start)  # so some templates show the form, which their braces mean once
        try:
            value, end = _JSON.raw_decode(text, start)
        except (ValueError, RecursionError):
            return self._read_broken(text, start, is_sure=is_sure)
        if self._is_quoted(text[start:end]):
            return False, end
        if named:
            return self._add(named, json.dumps(value, ensure_ascii=False), is_sure=True), end
        added = [self._add(*call, is_sure=is_sure) for call in _calls(value, is_sure=is_sure)]
        return any(added), end if any(added) else start + 1

    def _read_broken(self, text: str, start: int, *, is_sure: bool) -> tuple[bool, int]:
        """Add a call with truncated or invalid JSON: its arguments are the rest of the text, and may be complete."""
        name, arguments = _NAME.search(text, start), _ARGUMENTS.search(text, start)
        if name is None or arguments is None:
            return False, start + 1
        said = _BROKEN_END.split(text[arguments.end() :], 1)[0]
        end = arguments.end() + len(said)
        return not self._is_quoted(text[start:end]) and self._add(name[1], said.strip(), is_sure=is_sure), end

    def _is_quoted(self, call: str) -> bool:
        if self._others is None:
            parts = [part for one in self._request.messages if one.role != "assistant" for part in one.parts]
            texts = [part.content if isinstance(part, ToolResult) else getattr(part, "text", "") for part in parts]
            self._others = "".join("".join(texts).split())
        return "".join(call.split()) in self._others

    def _add(self, name: str, arguments: str, *, is_sure: bool) -> bool:
        tool = name_of(name, self._tools) or (name if is_sure else None)
        if tool is not None:
            self.found.append((tool, arguments))
        return tool is not None


def _calls(value: object, *, is_sure: bool) -> Iterator[tuple[str, str]]:
    """Yield the name and the arguments' JSON text of each call that a JSON value is."""
    said = JsonObject.of(value)
    if isinstance(several := said.get("tool_calls", value), list):
        for one in several:
            yield from _calls(one, is_sure=is_sure)
        return
    said = said.nested("function") or said
    name = next(filter(None, (said.text(key) for key in ("name", "tool_name", "function"))), "")
    arguments = said.get("arguments", said.get("parameters", {} if is_sure else None))
    if name and arguments is not None and "description" not in said:  # with one it is a tool, not a call of it
        yield name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
