"""What the embedded provider does next: call tools, or answer from their results; pure.

A turn is a few steps. Nothing is remembered between them but what the request shows: the last message of a person, the
calls made since, and their results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pattern_core.messages import Message, ToolResult
from pattern_core.models.embedded.answers import (
    HISTORY_STAYS,
    KNOWS_NOTHING_OF_YOU,
    NO_MODEL,
    SMALL_TALK,
    WHAT_I_AM,
    Excerpt,
    best_sentences,
    content_of,
    hits_of,
    keywords,
    lines_of,
    listed,
    sentences,
    telling_words,
    unmarked,
)
from pattern_core.models.embedded.blocks import (
    Rewrite,
    SeenBlock,
    change_line,
    cut_lines,
    home_of,
    seen_blocks,
    without_blocks,
)
from pattern_core.models.embedded.intents import (
    Correct,
    Forget,
    Intent,
    Recall,
    Remember,
    Send,
    ShowMemory,
    SmallTalk,
    Talked,
    Unknown,
    WhoAreYou,
    parse,
)
from pattern_core.models.model import ModelRequest

SEARCH_HITS = 20
SEARCH_WORDS_MAX = 12
CANDIDATES_MAX = 10
LATELY_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCall:
    """A tool call to make now."""

    tool: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCall:
    """A tool call of this turn with its result."""

    tool: str
    arguments: Mapping[str, object]
    result: ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a request shows, sorted."""

    said: str
    earlier: Sequence[Message]
    done: Sequence[PastCall]
    blocks: Sequence[SeenBlock]
    instructions: str
    tools: frozenset[str]

    def results_of(self, tool: str, op: str | None = None) -> list[PastCall]:
        """The calls made of a tool (with that `op`) in this turn."""
        return [one for one in self.done if one.tool == tool and (op is None or one.arguments.get("op") == op)]

    @property
    def failure(self) -> str:
        """The words of the last result if it was an error, else ""."""
        return self.done[-1].result.content[:300] if self.done and self.done[-1].result.is_error else ""


def scene_of(request: ModelRequest) -> Scene:
    """Sort a request into what was said, what was done since, and what is in view."""
    messages = request.messages
    start = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "user"), len(messages))
    calls = {call.call_id: call for message in messages[start:] for call in message.tool_calls}
    results = [part for message in messages[start:] for part in message.parts if isinstance(part, ToolResult)]
    return Scene(
        said=messages[start].text if start < len(messages) else "",
        earlier=messages[:start],
        done=[
            PastCall(
                tool=result.tool,
                arguments=calls[result.call_id].arguments,
                result=replace(result, content=unmarked(result.content)),
            )
            for result in results
            if result.call_id in calls
        ],
        blocks=seen_blocks([*request.system, *request.tail]),
        instructions=without_blocks(request.system[:1]),
        tools=frozenset(tool.name for tool in request.tools),
    )


def next_move(scene: Scene) -> list[NextCall] | str:
    """The tools to call now, or the answer that ends the turn."""
    intent: Intent = parse(scene.said)
    match intent:
        case Remember():
            return _remember(scene, intent.fact)
        case Recall():
            return _recall(scene, intent)
        case Forget():
            return _forget(scene, intent)
        case Correct():
            return _correct(scene, intent)
        case Talked():
            return _talked(scene, intent.topic)
        case Send():
            return _send(scene, intent)
        case ShowMemory():
            return _show(scene, intent.label)
        case WhoAreYou():
            return _introduce(scene)
        case SmallTalk():
            return SMALL_TALK[intent.kind]
        case Unknown():
            return NO_MODEL


def _remember(scene: Scene, fact: str) -> list[NextCall] | str:
    known = next((block.label for block in scene.blocks if fact in block.lines), None)
    if known is not None and not scene.done:
        return f"I know that already; it is in my memory block {known}."
    edits, inserts = scene.results_of("block_edit"), scene.results_of("recall", "insert")
    home = home_of(fact, scene.blocks)
    if not edits and not inserts and home is not None and "block_edit" in scene.tools:
        begin = "\n" if home.content and not home.content.endswith("\n") else ""
        return [
            NextCall(tool="block_edit", arguments={"op": "append", "label": home.label, "content": f"{begin}{fact}\n"})
        ]
    if not inserts and (not edits or scene.failure) and "recall" in scene.tools:
        return [NextCall(tool="recall", arguments={"op": "insert", "content": fact})]
    if not scene.done:
        return "I cannot keep that: none of the tools that I may use writes to memory."
    if scene.failure:
        return f"I could not keep that. {scene.failure}"
    if home is not None and home.asks_consent and not inserts:
        return f"My memory block {home.label} is changed only if a person agrees. I have asked; until then it stays."
    place = f"in my memory block {edits[-1].arguments.get('label')}" if edits and not inserts else "in my archive"
    return f"I will remember that, {place}: {fact}"


def _recall(scene: Scene, intent: Recall) -> list[NextCall] | str:
    topic = intent.topic
    if topic.casefold() in ("me", "myself", "i"):
        human = [block for block in scene.blocks if block.label == "human"]
        known = [
            Excerpt(text=line, kind="block", label="human") for block in human for line in sentences(block.content)
        ]
        return f"This is what I know about you:\n{listed(known)}" if known else KNOWS_NOTHING_OF_YOU
    if searches := _search(scene, topic, "all"):
        return searches
    found = [*lines_of(scene.blocks), *(hit for one in scene.done for hit in hits_of(one.result.content))]
    best = best_sentences(topic, found, spoken=[scene.said])
    if best:
        start = "From what I remember:" if intent.is_question else f"This is what I remember about {topic}:"
        return f"{start}\n{listed(best)}"
    if scene.failure:
        return f"I could not search. {scene.failure}"
    if intent.is_question:
        return f"I find nothing in my memory that answers this. {NO_MODEL}"
    return f"I find nothing about {topic} in my memory or in what we said. {NO_MODEL}"


def _search(scene: Scene, topic: str, domain: str) -> list[NextCall]:
    """The next search worth making: for the topic, then for its most telling word; none when both are done."""
    words = telling_words(topic)[:SEARCH_WORDS_MAX]
    tool = "search" if "search" in scene.tools else "recall" if "recall" in scene.tools else ""
    searches = scene.results_of(tool)
    if not tool or not words or len(searches) > 1 or scene.failure:
        return []
    query = " ".join(words)  # the bare words: a minus or an age in the question is no wish to exclude
    if searches:
        found = [hit for one in searches for hit in hits_of(one.result.content)]
        query = max(words, key=len)
        if len(words) == 1 or best_sentences(topic, found, spoken=[scene.said]):
            return []
    arguments: dict[str, object] = {"query": query, "limit": SEARCH_HITS}
    arguments |= {"domain": domain} if tool == "search" else {"op": "search"}
    return [NextCall(tool=tool, arguments=arguments)]


def _forget(scene: Scene, intent: Forget) -> list[NextCall] | str:
    if scene.done:
        if scene.failure:
            return f"I could not remove that. {scene.failure}"
        removed = "\n".join(f"- {line}" for one in scene.results_of("block_edit") for line in _removed(one))
        return f"I removed this from my memory:\n{removed}\n{HISTORY_STAYS}"
    topic = intent.topic
    if not topic:
        return "I do not forget everything at once. Say about what, as in: forget everything about Ruth."
    if "block_edit" not in scene.tools:
        return "I cannot forget that: none of the tools that I may use edits memory."
    exact, near = _candidates(scene, topic)
    if not exact and not near:
        return f"I find nothing about {topic} in the memory blocks that I may edit. {HISTORY_STAYS}"
    if not exact or (len({line for _, line in exact}) > 1 and not intent.everything):
        return f"Which of these shall I forget?\n{_choices(exact or near)}\nSay it in more of its words."
    return _removals(exact)


def _removals(candidates: Sequence[tuple[SeenBlock, str]]) -> list[NextCall]:
    """One edit per block, so that no edit depends on another's having run."""
    lines: dict[str, list[str]] = {}
    for block, line in candidates:
        lines.setdefault(block.label, []).append(line)
    contents = {block.label: block.content for block, _ in candidates}
    return [_edit(label, cut_lines(contents[label], unwanted)) for label, unwanted in lines.items()]


def _removed(one: PastCall) -> list[str]:
    """The lines that an edit took away."""
    old, new = str(one.arguments.get("old", "")), str(one.arguments.get("new", ""))
    if one.arguments.get("mode") == "nth":
        old = old.partition(": ")[2]
    return [line for line in old.split("\n") if line.strip() and line not in new.split("\n")]


def _correct(scene: Scene, intent: Correct) -> list[NextCall] | str:
    if scene.done:
        if scene.failure:
            return f"I could not correct that. {scene.failure}"
        one = scene.done[-1]
        return f"Corrected in my memory block {one.arguments.get('label')}: {one.arguments.get('new')}"
    if "block_edit" not in scene.tools:
        return "I cannot correct that: none of the tools that I may use edits memory."
    low = intent.old.casefold()
    lines = [(block, line) for block in scene.blocks if block.may_rewrite for line in block.lines]
    candidates = [(block, line) for block, line in lines if low in line.casefold()]
    if not candidates:
        return f"I do not find “{intent.old}” in the memory blocks that I may edit. Tell me: remember that …"
    if len({line for _, line in candidates}) > 1:
        choices = _choices(candidates)
        return f"In which of these shall I put {intent.new} for {intent.old}?\n{choices}\nSay it in more of its words."
    block, line = candidates[0]
    at = line.casefold().find(low)
    # Where case folding changes lengths the place is unsure; then the whole line is shown as it would become.
    end = at + len(intent.old)
    if line[at:end].casefold() != low:
        return f"I am not sure how to put {intent.new} into: {line}"
    return [_edit(block.label, change_line(block.content, line, line[:at] + intent.new + line[end:]))]


def _candidates(scene: Scene, topic: str) -> tuple[list[tuple[SeenBlock, str]], list[tuple[SeenBlock, str]]]:
    """The lines that may be changed and hold all words of the topic, and those that hold at least one."""
    wanted = set(keywords(topic))
    lines = [(block, line) for block in scene.blocks if block.may_rewrite for line in dict.fromkeys(block.lines)]
    exact = [(block, line) for block, line in lines if wanted and wanted <= set(keywords(line))]
    near = [(block, line) for block, line in lines if wanted & set(keywords(line))]
    return exact[:CANDIDATES_MAX], near[:CANDIDATES_MAX]


def _choices(candidates: Sequence[tuple[SeenBlock, str]]) -> str:
    return listed([Excerpt(text=line, kind="block", label=block.label) for block, line in candidates])


def _edit(label: str, edit: Rewrite) -> NextCall:
    arguments = {"op": "replace", "label": label, "old": edit.old, "new": edit.new, "mode": edit.mode}
    return NextCall(tool="block_edit", arguments=arguments)


def _talked(scene: Scene, topic: str) -> list[NextCall] | str:
    if topic:
        if searches := _search(scene, topic, "conversations"):
            return searches
        found = [hit for one in scene.done for hit in hits_of(one.result.content)]
        best = best_sentences(topic, found, spoken=[scene.said])
        return f"About {topic} I find:\n{listed(best)}" if best else f"I find nothing that we said about {topic}."
    lately = [message for message in scene.earlier if message.role == "user" and message.text.strip()][-LATELY_MAX:]
    if not lately:
        return "We have not talked about anything yet, as far as I can see."
    said = [
        Excerpt(text=" ".join(message.text.split())[:200], kind="message", role="user", created_at=message.created_at)
        for message in lately
    ]
    return f"Lately we talked about this:\n{listed(said)}"


def _send(scene: Scene, intent: Send) -> list[NextCall] | str:
    if scene.done:
        return f"I could not send that. {scene.failure}" if scene.failure else f"I sent that to {intent.target}."
    if "send_message" not in scene.tools:
        return f"I cannot write to {intent.target}: I may not use the tool send_message."
    arguments = {"target_type": "agent", "target": intent.target, "content": intent.content}
    return [NextCall(tool="send_message", arguments=arguments)]


def _show(scene: Scene, label: str) -> list[NextCall] | str:
    block = next((block for block in scene.blocks if block.label.casefold() == label.casefold()), None)
    if block is not None:
        return f"My memory block {block.label} says:\n{block.content}" if block.lines else f"{block.label} is empty."
    if label and not scene.done and "block" in scene.tools:
        return [NextCall(tool="block", arguments={"op": "load", "label": label})]
    if label:
        loaded = content_of(scene.done[-1].result.content) if scene.done and not scene.failure else None
        if loaded is not None:
            return f"My memory block {label} says:\n{loaded}"
        return f"I have no memory block {label} in view. {scene.failure}".strip()
    if not scene.blocks:
        return "I have no memory blocks in view."
    shown = (f"{block.label}:\n{block.content.strip() or '(empty)'}" for block in scene.blocks)
    return "My memory blocks:\n\n" + "\n\n".join(shown)


def _introduce(scene: Scene) -> str:
    persona = next((block.content for block in scene.blocks if block.label == "persona" and block.lines), "")
    words = [*sentences(scene.instructions)[:4], *sentences(persona)[:4]]
    told = f"My instructions say: “{' '.join(words)}” " if words else ""
    return f"{told}{WHAT_I_AM}"
