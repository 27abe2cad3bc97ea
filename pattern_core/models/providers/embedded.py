"""The embedded provider: rules instead of a language model, for use without a key and without a network.

It remembers, finds and forgets, and keeps tasks and reminders, through the agent's own tools, so that a newcomer's
first minute exercises the journal, memory and search. Between the steps of a turn it keeps nothing but what the request
shows: the last message of a person, the calls made since, and their results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from html import unescape

import trio

from pattern_core.messages import Note, Text, ToolCall, ToolResult
from pattern_core.models.model import ModelReply, ModelRequest, OnDelta, Provider, TextDelta, made_up_call_id
from pattern_core.models.providers.encoding import JsonObject, valid_unicode
from pattern_core.models.providers.settings import ProviderSettings
from pattern_core.models.tokens import CHARS_PER_TOKEN, estimate_usage

QUESTION_CHARS_MAX = 4_000  # only a request to remember may be longer
TASK_CHARS_MAX = 500  # of a message about tasks
SEARCH_HITS = 20
SEARCH_WORDS_MAX = 12
SENTENCES_MAX = 8
SENTENCE_CHARS_MAX = 600
SCORE_SHARE_MIN = 0.6  # of the best sentence's score: two words of three are worth showing, one of two is not
BONUS = 0.3  # weight of memory, archive and files, compared with messages
CHOICES_MAX = 10

NO_MODEL = (
    "No language model is configured, so I follow rules: I remember, find and forget. To connect a model, run "
    "`pattern up`: it looks for a key (ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY) or a server such as Ollama."
)
HELP = (
    "I follow rules, without a language model. I can do this:\n"
    "- remember that … (I keep it in my memory)\n"
    "- what do you know about …? who is …? when did …?\n"
    "- forget that …\n"
    "- remind me to … tomorrow at 9, add a task …, what is due?, done with … (with the tools for tasks)"
)
HELLO = "Hello! Tell me what to remember, or ask me what I know; “help” lists what I can do."
NOT_UNDERSTOOD = "I do not understand that; “help” lists what I can do."
NOT_FOUND = "I find nothing about that in my memory or in what we said."
NO_TASKS = (
    "I have no tools for tasks. To add them: pattern agent edit NAME --add-tool task_create --add-tool task_update"
    " --add-tool task_list"
)
HISTORY_STAYS = "What was said in our conversations and what is in my archive stays where it is."

_ASKING = r"\s*(?:[\w-]+,\s+|(?:hello|hi|hey|please|and|also)[.!]?\s+|(?:can|could|would|will) you )*+"
_FLAGS = re.IGNORECASE | re.DOTALL
_REMEMBER = re.compile(
    _ASKING + r"(?:remember|note|(?:do not|don't|never) forget|keep in mind|write down|save|store)\b"
    r"(?:\s+that\b|\s+this\b)?[\s:,-]+(?P<fact>.*\w.*)",
    _FLAGS,
)
_FORGET = re.compile(_ASKING + r"forget(?:\s+that|\s+about)?\s+(?P<topic>.*\w.*)", _FLAGS)
_HELLO = re.compile(r"\s*(?:hello|hi|hey|good (?:morning|afternoon|evening))\b.{0,40}", _FLAGS)
_HELP = re.compile(r"\s*help\W*", _FLAGS)
_QUESTION = re.compile(
    _ASKING + r"(?:who|whom|whose|what|when|where|which|why|how|is|are|was|were|do|does|did|has|have|had|should|am"
    r"|tell me|remind me|search|find|look up|recall)\b",
    _FLAGS,
)
# Tasks and reminders. To be reminded of what someone knows is a question.
_QUESTION_WORDS = r"(?:who|whom|whose|what|when|where|which|why|how|if|whether)\b"
_REMIND = re.compile(
    rf"{_ASKING}(?:remind me|set (?:me )?a reminder)\b[\s:,-]+(?!{_QUESTION_WORDS})(?P<what>.*\w.*)", _FLAGS
)
_TASK = re.compile(
    _ASKING
    + r"(?:(?:add|create|make|note|new)\b(?: an?| another| the| new)* )?(?:task|to-?do)\b[\s:,-]+(?P<what>.*\w.*)"
    r"|"
    + _ASKING
    + r"(?:add|put)\s+(?P<listed>\S.*?)\s+(?:to|on) (?:my|the) (?:tasks|(?:task |to-?do )?list|to-?dos)\W*",
    _FLAGS,
)
_DUE = re.compile(
    _ASKING + r"(?:what(?:'s| is| are)? (?:still )?(?:due|to do|left to do|on my list|my (?:tasks|to-?dos|reminders))"
    r"|what do i have to do|(?:list|show)(?: me)?(?: my| all| the| open)* (?:tasks|to-?dos|reminders))\b.*",
    _FLAGS,
)
_DONE = re.compile(
    _ASKING + r"(?:(?:i(?:'m| am|'ve| have)? )?(?:(?:done|finished) with|finished|completed)|tick off|check off)\s+"
    r"(?P<what>.*\w.*)|" + _ASKING + r"mark\s+(?P<marked>.*\w.*)\s+(?:as )?(?:done|finished|completed)\W*",
    _FLAGS,
)
_STARTED = re.compile(r"It is time for your task: (?P<title>[^\n]+)")  # as `schedule.starts` writes it
_NOW = re.compile(r"\(It is (\d{4}-\d\d-\d\d \d\d:\d\d) UTC")  # as `prompts.build` writes it
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WHEN = re.compile(
    r"\b(?:in (?P<count>\d{1,3}|an?) (?P<unit>minute|hour|day|week)s?"
    rf"|(?:(?:on|this|next) )?(?P<day>today|tonight|tomorrow|{'|'.join(_DAYS)}|\d{{4}}-\d\d-\d\d)"
    r"|at (?P<hour>[01]?\d|2[0-3])(?:[:.](?P<minute>[0-5]\d))?(?:\s?(?P<half>[ap])\.?m\b\.?)?(?: o'clock)?)(?!\w)",
    re.IGNORECASE,
)
_MORNING, _EVENING = 9, 20  # hours of a day that is named without one
_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"(?<=[.!?…。！？])(?<!\b[MD]r\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bSt\.)\s+|\n+", re.IGNORECASE)
_STOP = frozenset(
    _WORD.findall(
        """
    a about all am an and any anything are as at be because been but by can could did do does everything find for from
    get got had has have he her hers him his how i if in into is it its know let like look me mine more much my myself
    need no not now of on one or our ours out over please recall remember remind s said say search she should so some
    something tell than that the their them then there these they thing things this those to too up us very was we were
    what when where which who whom whose why will with would yes you your yours
        """
    )
)
_ME = frozenset({"me", "myself", "i"})
_BLOCK = re.compile(  # as `memory.content.prompt` writes it
    r"## (?P<label>[^\n]+) \((?P<about>[^\n()]*?)(?:(?P<used>[\d,]+) of (?P<limit>[\d,]+) characters|nothing yet)\)"
    r"(?::[^\n]*)?(?:\n(?P<content>.*))?",
    re.DOTALL,
)
_ITEM = re.compile(r"^- (.*?)(?:: |$)", re.MULTILINE)  # of the list of empty blocks: its label
_READ_ONLY, _ASKS = "read only", "changes need consent"  # said of a block
_MARK = re.compile(r'<data from="[^"]*">\n|\n</data>')
# A line of memory as clauses, with what joins them. No grammar: a clause is one only if it has a verb of this list, and
# where that is not enough to tell, nothing is removed.
_CLAUSE = re.compile(rf"((?:[,;]|(?<![\s,;]))\s++(?:and|but)\s++|;\s+|{_SENTENCE.pattern})", re.IGNORECASE)
_VERB = (
    r"(?:am|is|are|was|were|ha[sd]|have|will|would|can|could|must|should|do|does|did|goes|comes|studies|\w{3,}ed"
    r"|(?:like|love|hate|live|work|play|want|need|own|speak|drink|eat|use|keep|know|think|start|run|teach)s?)\b"
)
_PREDICATE = re.compile(_VERB, re.IGNORECASE)
_SUBJECT = re.compile(
    rf"(?P<subject>\S+?(?: (?!(?:that|who|which)\b)\S+)*?)(?P<verb> {_VERB}|'(?:m|re|ve)\b)", re.IGNORECASE
)
_PIECE = re.compile(r"(?:\S+\s*|\s+){1,3}")


# What a group asks its members (`pattern_core/groups`): the words behind what others said, a vote, a choice of members.
_IN_GROUP = re.compile(
    r"Group [^\n]*: you are [^\n]*\n\n(?:Said since you last spoke:\n.*\n\nNow answer:\n)?(?P<said>.*)", re.DOTALL
)
_OPTION = re.compile(r"^The options:\n- (?P<option>[^\n]+)\n.*^VOTE: ", re.MULTILINE | re.DOTALL)
_CANDIDATE = re.compile(r"Who should answer this message\?[^\n]*\n\n(?P<name>[\w-]+)")


class EmbeddedProvider(Provider):
    """A provider of kind "embedded". It is not a language model, and says so; the same request gets the same reply."""

    def __init__(self, name: str, _: ProviderSettings) -> None:
        self.name = name

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Reply by the rules; words come in pieces of up to three. Raises nothing."""
        await trio.lowlevel.checkpoint()
        reply = reply_to(request)
        for part in reply.parts:
            for piece in _PIECE.findall(part.text) if isinstance(part, Text) else ():
                await on_delta(TextDelta(text=piece))
        return reply


def reply_to(request: ModelRequest) -> ModelReply:
    """Return the reply that the rules give: one tool call, or words. Its usage is an estimate; pure."""
    move = _Turn(request).move()
    if isinstance(move, tuple):
        tool, arguments = move
        call = ToolCall(call_id=made_up_call_id(request, 0), tool=tool, arguments=arguments)
        return ModelReply(parts=(call,), finish_reason="tool_calls", usage=estimate_usage(request, (call,)))
    whole = valid_unicode(move)
    said = Text(text=whole[: request.max_output_tokens * CHARS_PER_TOKEN])
    usage = estimate_usage(request, (said,))
    return ModelReply(parts=(said,), finish_reason="stop" if said.text == whole else "length", usage=usage)


_Move = tuple[str, dict[str, object]] | str
"""A tool and its arguments, or the answer that ends the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A block that the prompt shows; `room` is how many characters still fit, None if it does not say, `about` what it
    says of who may change the block.
    """

    label: str
    content: str = ""
    room: int | None = None
    about: frozenset[str] = frozenset()

    @property
    def lines(self) -> list[str]:
        return self.content.split("\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Excerpt:
    """A piece of text with its origin: a block's label, or the kind, role and time of a search hit."""

    text: str
    kind: str  # "block", "message", "archival", "file"
    label: str = ""
    role: str = ""
    created_at: str = ""

    def __str__(self) -> str:
        day = f", {self.created_at[:10]}" if self.created_at else ""
        said = {"user": "you said", "assistant": "I said"}.get(self.role, "from our conversations")
        named = {"block": f"memory block {self.label}", "file": f"file {self.label}", "message": f"{said}{day}"}
        return f"- {self.text} ({named.get(self.kind, f'archive{day}').rstrip()})"


class _Turn:
    """The content of a request: the last message, the calls made since, and the visible blocks."""

    def __init__(self, request: ModelRequest) -> None:
        messages = request.messages
        start = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "user"), len(messages))
        text = messages[start].text.replace("’", "'") if start < len(messages) else ""
        in_group = _IN_GROUP.fullmatch(text)
        self.said = text if in_group is None else in_group["said"]
        calls = {call.call_id: call for message in messages[start:] for call in message.tool_calls}
        parts = [part for message in messages[start:] for part in message.parts]
        self.done = [
            (calls[part.call_id], part) for part in parts if isinstance(part, ToolResult) and part.call_id in calls
        ]
        self.tools = {tool.name for tool in request.tools}
        self.blocks = [_block(found) for part in request.memory if (found := _BLOCK.fullmatch(part))]
        lists = [part for part in request.memory if part.startswith("Empty blocks:\n")]
        self.blocks += [_Block(label=unescape(label)) for part in lists for label in _ITEM.findall(part)]
        last = self.done[-1][1] if self.done else None
        self.is_introduced = any(NO_MODEL in one.text for one in messages if one.role == "assistant")
        self.failure = _MARK.sub("", last.content)[:300] if last is not None and last.is_error else ""
        notes = (part.text for one in reversed(messages) for part in one.parts if isinstance(part, Note))
        self.now = next((datetime.fromisoformat(found[1]) for note in notes if (found := _NOW.match(note))), None)

    def move(self) -> _Move:
        """Return the tool to call now, or the answer that ends the turn."""
        if (chosen := _OPTION.search(self.said)) is not None:
            return f"VOTE: {chosen['option']}\nREASON: It is the first option, and I follow rules."
        if (chosen := _CANDIDATE.match(self.said)) is not None:
            return chosen["name"]
        if len(self.said) <= TASK_CHARS_MAX and (move := self._with_tasks()) is not None:
            return move
        fact = _REMEMBER.fullmatch(self.said)
        if fact is not None and not (self.said.rstrip().endswith("?") and not keywords(fact["fact"])):
            return self._remember(fact["fact"].strip())
        self.said = self.said[:QUESTION_CHARS_MAX]
        if (topic := _FORGET.fullmatch(self.said)) is not None:
            return self._forget(topic["topic"])
        if _HELP.fullmatch(self.said):
            return self._introduced(HELP)
        if self.said.rstrip().endswith(("?", "？")) or _QUESTION.match(self.said):
            return self._recall()
        return self._introduced(HELLO if _HELLO.fullmatch(self.said) else NOT_UNDERSTOOD)

    def _introduced(self, answer: str) -> str:
        """Return an answer, and, the first time in a conversation, that there is no language model."""
        return answer if self.is_introduced else f"{answer}\n{NO_MODEL}"

    def _remember(self, fact: str) -> _Move:
        fact = fact[0].upper() + fact[1:]
        known = next((block.label for block in self.blocks if fact in block.lines), None)
        if known is not None and not self.done:
            return f"I know that already; it is in my memory block {known}."
        made = [call.tool for call, _ in self.done]
        home = _home_of(fact, self.blocks)
        if not made and home is not None and "block_edit" in self.tools:
            begin = "\n" if home.content and not home.content.endswith("\n") else ""
            return "block_edit", {"op": "append", "label": home.label, "content": f"{begin}{fact}\n"}
        if "recall" not in made and "recall" in self.tools and (not made or self.failure):
            return "recall", {"op": "insert", "content": fact}
        if not made:
            return "I cannot keep that: none of the tools that I may use writes to memory."
        if self.failure:
            return f"I could not keep that. {self.failure}"
        if made[-1] == "recall":
            return f"I will remember that, in my archive: {fact}"
        label = self.done[-1][0].arguments.get("label")
        if home is not None and _ASKS in home.about:
            return f"My memory block {label} is changed only if a person agrees. I have asked; until then it stays."
        return f"I will remember that, in my memory block {label}: {fact}"

    def _recall(self) -> _Move:
        words = _telling(self.said)
        if not words:
            if not _ME & set(_WORD.findall(self.said.casefold())):
                return self._introduced(HELP)
            known = [piece for piece in self._memory() if piece.label == "human"]
            if not known:
                return "I know nothing about you yet. Tell me something, as in: remember that I live in Lisbon."
            return "This is what I know about you:\n" + "\n".join(map(str, known))
        if not self.done and "search" in self.tools:
            query = " ".join(words[:SEARCH_WORDS_MAX])
            return "search", {"query": query, "domain": "all", "limit": SEARCH_HITS}
        found = [hit for _, result in self.done for hit in _hits(result.content)]
        best = best_sentences(self.said, [*self._memory(), *found])
        if best:
            return "From what I remember:\n" + "\n".join(map(str, best))
        if self.failure:
            return f"I could not search. {self.failure}"
        return self._introduced(NOT_FOUND)

    def _with_tasks(self) -> _Move | None:
        """Return what follows if the message is about tasks; None if it is not."""
        if (started := _STARTED.match(self.said)) is not None:
            return f"It is time: {started['title']}. When it is done, tell me: done with {started['title']}"
        has_tools = {"task_create", "task_list", "task_update"} <= self.tools
        if has_tools and _DUE.fullmatch(self.said):
            return self._list_tasks()
        if (ended := _DONE.fullmatch(self.said)) is not None:
            return self._complete(ended["what"] or ended["marked"]) if has_tools else NO_TASKS
        remind, task = _REMIND.fullmatch(self.said), _TASK.fullmatch(self.said)
        if task is not None:
            return self._add(task["what"] or task["listed"], is_reminder=False) if has_tools else NO_TASKS
        if remind is not None and (remind["what"].startswith("to ") or _WHEN.search(remind["what"])):
            return self._add(remind["what"], is_reminder=True) if has_tools else NO_TASKS
        return None

    def _add(self, what: str, *, is_reminder: bool) -> _Move:
        title, at = timed(what, self.now or datetime.max)
        if not title or (at is not None and at <= (self.now or datetime.max)):
            return "I do not understand what or when. Say it as in: remind me to call Ruth tomorrow at 9"
        if not self.done:
            time = None if at is None else f"{at:%Y-%m-%dT%H:%M}:00Z"
            times = {"due_at": time, **({"scheduled_at": time} if is_reminder else {})} if time else {}
            return "task_create", {"titles": [title], **times}
        if self.failure:
            return f"I could not note that. {self.failure}"
        if at is None:
            return f"Noted as a task: {title}" + (". To be reminded, name a time." if is_reminder else "")
        return (
            f"{'I will remind you on' if is_reminder else 'Noted as a task, due'} {at:%A %Y-%m-%d %H:%M} UTC: {title}"
        )

    def _list_tasks(self) -> _Move:
        if not self.done:
            days = next((days for word, days in (("today", 1), ("tomorrow", 2)) if word in self.said.casefold()), None)
            before = None if days is None or self.now is None else self.now + timedelta(days=days)
            return "task_list", {} if before is None else {"due_before": f"{before:%Y-%m-%d}"}
        if self.failure:
            return f"I could not look that up. {self.failure}"
        tasks = self._tasks()
        return f"To do, the most urgent first:\n{_as_list(tasks)}" if tasks else "There is nothing to do. Enjoy it!"

    def _complete(self, what: str) -> _Move:
        """Complete the one open task that the words mean."""
        if not self.done:
            return "task_list", {}
        if self.failure:
            return f"I could not do that. {self.failure}"
        wanted = set(keywords(what))
        known = [(task, set(keywords(task.text("title")))) for task in self._tasks()]
        found = [task for task, words in known if wanted == words] or [task for task, words in known if wanted <= words]
        if len({task.text("title") for task in found}) != 1:  # of equal ones, the most urgent
            which = f"Which of these is done?\n{_as_list(found)}" if found else "I find no open task like that."
            return f"{which}\n“What is due?” lists all tasks."
        if self.done[-1][0].tool == "task_list":
            return "task_update", {"task_id": found[0].text("id"), "status": "completed"}
        return f"Done: {found[0].text('title')}. One thing less to think of."

    def _tasks(self) -> list[JsonObject]:
        results = [JsonObject.parse(_MARK.sub("", result.content)).nested("data") for _, result in self.done]
        return [task for result in results for task in result.listed("tasks")]

    def _memory(self) -> list[_Excerpt]:
        return [
            _Excerpt(text=line, kind="block", label=block.label)
            for block in self.blocks
            for line in block.lines
            if line.strip()
        ]

    def _forget(self, topic: str) -> _Move:
        """Remove the one clause of memory that holds all words of the topic, and nothing else."""
        if self.done:
            arguments = JsonObject(self.done[-1][0].arguments)
            if self.failure:
                return f"I could not remove that. {self.failure}"
            rest = arguments.text("content").partition(": ")[2]
            reads = f" The line is now: {rest}" if rest else ""
            return f"I removed that from my memory block {arguments.get('label')}.{reads} {HISTORY_STAYS}"
        if "block_edit" not in self.tools:
            return "I cannot forget that: none of the tools that I may use edits memory."
        wanted = frozenset(keywords(topic))
        found = [
            (block, number, clause, left)
            for block in self.blocks
            if not block.about & {_READ_ONLY, _ASKS, "append only"}
            for number, line in enumerate(block.lines, start=1)
            for clause, left in clauses_about(line, wanted)
        ]
        if not found:
            return f"I find no line about that in the memory blocks that I may edit. {HISTORY_STAYS}"
        choices = "\n".join(f"- {clause} (memory block {block.label})" for block, _, clause, _ in found[:CHOICES_MAX])
        if len(found) > 1:
            return f"Which of these should I forget?\n{choices}\nSay it in more of its words."
        block, number, _, left = found[0]
        if left is None:
            return f"I cannot separate that from the rest:\n{choices}\nTo forget all of it, use all of its words."
        return "block_edit", {"op": "edit_range", "label": block.label, "content": f"{number}-{number}: {left}"}


def timed(text: str, now: datetime) -> tuple[str, datetime | None]:
    """Return what is to be done, "" for a time that does not exist, and when (UTC, as `now`), None without a time."""
    found = {
        name: value.lower() for match in _WHEN.finditer(text) for name, value in match.groupdict().items() if value
    }
    words = " ".join(_WHEN.sub(" ", text).split()).strip(" .,;:!")
    title = re.sub(r"^(?:to|about|that|of)\s+", "", words, flags=re.IGNORECASE)
    title = title[:1].upper() + title[1:]
    day, at = found.get("day", ""), now
    try:
        if "unit" in found:
            at += timedelta(**{f"{found['unit']}s": int(found["count"]) if found["count"].isdigit() else 1})
        elif day in _DAYS:
            at += timedelta(days=(_DAYS.index(day) - now.weekday() - 1) % 7 + 1)
        elif day[:1].isdigit():
            at = datetime.fromisoformat(day)
        at += timedelta(days=day == "tomorrow")
        if "hour" in found:
            half, hour = found.get("half"), int(found["hour"])
            at = at.replace(
                hour=hour if half is None else hour % 12 + 12 * (half == "p"), minute=int(found.get("minute", 0))
            )
            at += timedelta(days=not day and "unit" not in found and at <= now)
        elif day:
            at = at.replace(hour=_EVENING if day == "tonight" else _MORNING, minute=0)
            at = max(at, now + timedelta(hours=1)) if day == "today" else at
    except (ValueError, OverflowError):  # such as the 31st of February
        return "", None
    return title, at if found else None


def _as_list(tasks: Iterable[JsonObject]) -> str:
    """Return tasks of `task_list` as lines."""
    lines = []
    for task in tasks:
        due, status = task.text("due_at"), task.text("status").replace("_", " ")
        about = [f"due {due[:10]} {due[11:16]} UTC"] * bool(due) + [status] * (status != "pending")
        lines.append(f"- {task.text('title')}" + (f" ({', '.join(about)})" if about else ""))
    return "\n".join(lines)


def clauses_about(line: str, wanted: frozenset[str]) -> list[tuple[str, str | None]]:
    """Return the clauses of a line that hold all the keywords, each with what is left of the line without it.

    What is left is None where the clause cannot be separated from the rest by rules.
    """
    if not wanted or not wanted <= set(keywords(line)):
        return []
    if wanted >= set(keywords(line)):
        return [(line, "")]
    body = line.rstrip(" .!?")
    # The first clause ends behind a verb: not in the middle of "Tom and Ruth live here".
    head = _SUBJECT.match(body)
    verb_end = len(body) if head is None else head.end()
    rest, *pieces = _CLAUSE.split(body[verb_end:])
    clauses, joints = [body[:verb_end] + rest, *pieces[1::2]], ["", *pieces[::2]]
    words = [set(keywords(clause)) for clause in clauses]
    # Those with all the words; else those with no other word, whose subject is in a clause before: "… and likes tea".
    found = [[at] for at, own in enumerate(words) if wanted <= own]
    found = found or [[at for at, own in enumerate(words) if at and own and own <= wanted]]
    return [
        (
            " … ".join(clauses[at] for at in gone) or line,
            # Among several, a person has to choose first.
            _left(clauses, joints, gone, wanted, line[len(body) :]) if len(found) == 1 else None,
        )
        for gone in found
    ]


def _left(clauses: list[str], joints: list[str], gone: list[int], wanted: frozenset[str], end: str) -> str | None:
    """Return a line without some of its clauses; None if that would take more away than was asked for."""
    if not gone:
        return None
    clauses, first = list(clauses), gone[0]
    says_more = wanted < set(keywords(clauses[first]))
    head = _SUBJECT.match(clauses[first])
    after = next((at for at in range(first + 1, len(clauses)) if _SUBJECT.match(clauses[at])), len(clauses))
    subject = head["subject"] if head else ""
    if wanted <= set(keywords(subject)) and not _CLAUSE.search(subject):
        gone = [*range(first, after)]  # all that is said of the subject
    elif says_more and (_CLAUSE.search(clauses[first]) or "," in clauses[first]):
        return None  # a list of several things
    elif head and after > first + 1 and len(gone) == 1:
        begin = subject if _PREDICATE.match(clauses[first + 1]) else head[0]
        clauses[first + 1] = f"{begin} {clauses[first + 1]}"
    kept = [at for at in range(len(clauses)) if at not in gone]
    text = "".join((joints[at] if at != kept[0] else "") + clauses[at] for at in kept)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else end) if text else ""


def _telling(text: str) -> list[str]:
    """Return the words that carry meaning, in lower case: what to search for."""
    words = (word for word in _WORD.findall(text.casefold()) if word not in _STOP)
    return [word for word in words if len(word) > 1 or word.isdigit()]


def keywords(text: str) -> list[str]:
    """Return the words that carry meaning without common English endings, each once: what to compare."""
    return list(dict.fromkeys(map(_stem, _telling(text))))


def _stem(word: str) -> str:
    """Return the word without its ending, so that "lives" meets "live" and "walnuts" meets "walnut"."""
    if not word.isascii() or len(word) < 4:
        return word
    for ending, rest in (("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)] + rest
            break
    return word.removesuffix("e") if len(word) > 3 else word


def best_sentences(question: str, found: Sequence[_Excerpt]) -> list[_Excerpt]:
    """Return the sentences that share the most words with the question, best first, each once.

    What is in memory goes before what was said. Questions and requests are not answers, nor are the agent's own words.
    """
    wanted = set(keywords(question))
    seen: set[tuple[str, ...]] = set()
    scored: list[tuple[float, _Excerpt]] = []
    for piece in sorted(found, key=lambda piece: piece.kind == "message"):
        if piece.role in ("assistant", "tool") or piece.text == question:
            continue
        for sentence in _sentences(piece.text):
            words = keywords(sentence)
            shared = len(wanted & set(words))
            is_request = piece.role == "user" and (_REMEMBER.match(sentence) or _FORGET.match(sentence))
            if not shared or sentence.endswith(("?", "？")) or is_request or tuple(words) in seen:
                continue
            seen.add(tuple(words))
            scored.append((shared + BONUS * (piece.kind != "message"), replace(piece, text=sentence)))
    scored.sort(key=lambda entry: -entry[0])
    return [piece for score, piece in scored if score > scored[0][0] * SCORE_SHARE_MIN][:SENTENCES_MAX]


def _sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text, without list marks."""
    pieces = (piece.strip().lstrip("-*• ").strip() for piece in _SENTENCE.split(text))
    return [piece[:SENTENCE_CHARS_MAX] for piece in pieces if any(map(str.isalnum, piece))]


def _hits(content: str) -> Iterable[_Excerpt]:
    """Yield the hits of the search tool's result, a JSON object `{"hits": [{"kind", "content", …}]}`, marked or not."""
    for hit in JsonObject.parse(_MARK.sub("", content)).listed("hits"):
        fields = {name: hit.text(name) for name in ("kind", "label", "role", "created_at")}
        yield _Excerpt(text=hit.text("content"), **fields)


def _block(found: re.Match[str]) -> _Block:
    used, limit = (int(number.replace(",", "")) for number in (found["used"] or "0", found["limit"] or "0"))
    return _Block(
        label=unescape(found["label"]),
        content=found["content"] or "",
        room=limit - used if limit else None,
        about=frozenset(found["about"].split(", ")),
    )


def _home_of(fact: str, blocks: Sequence[_Block]) -> _Block | None:
    """Return the block where a fact belongs: "human", else the first with room that is not "persona"; None without one.

    One that needs a person's consent only if there is no other.
    """
    allowed = [one for one in blocks if one.label != "persona" and _READ_ONLY not in one.about]
    fitting = [one for one in allowed if one.room is None or one.room > len(fact) + 1]
    return min(fitting, key=lambda one: (_ASKS in one.about, one.label != "human"), default=None)
