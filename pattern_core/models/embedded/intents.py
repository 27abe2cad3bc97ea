"""What a person wants, as far as plain rules can tell from English sentences; pure, and never fails for any text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

PARSED_CHARS_MAX = 4_000  # of a message that does not begin by asking to remember, only this much is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Remember:
    """Keep this fact; the words as the person said them."""

    fact: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Tell what is known about a topic, or answer a question; "me" is the person who asks."""

    topic: str
    is_question: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Remove what the memory says about a topic: one thing, or all of it."""

    topic: str
    everything: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Correct:
    """Put `new` where the memory says `old`."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Talked:
    """What was talked about lately, or said about a topic."""

    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Tell another agent something."""

    target: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowMemory:
    """Show the memory blocks, or the one of this label."""

    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhoAreYou:
    """Introduce yourself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallTalk:
    """A phrase with a set answer: hello, help, thanks, bye, how_are_you, never_mind."""

    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nothing that rules understand."""


Intent = Remember | Recall | Forget | Correct | Talked | Send | ShowMemory | WhoAreYou | SmallTalk | Unknown
_Maker = Callable[[re.Match[str]], Intent]

_FLAGS = re.IGNORECASE | re.DOTALL
_ASKING = r"(?:please,? |(?:can|could|would|will) you (?:please )?|i (?:want|would like|'d like) you to |kindly )*"
_KEEP = (
    r"(?:remember|note(?: down)?|make a (?:mental )?note(?: of)?|take (?:a )?note(?: of)?|write down|jot down"
    r"|keep in mind|bear in mind|(?:do not|don't|never) forget|memori[sz]e"
    r"|(?:save|store|record)(?= ?:| this\b| that\b))"
)
_GREETING = re.compile(
    r"(?:hello|hi|hey|good (?:morning|afternoon|evening|day)|greetings|ok(?:ay)?|so|well|and|also|then|listen"
    r"|by the way)(?: there| again| [\w-]+(?=,))?(?:[,.!:;]+| -)\s+",
    _FLAGS,
)
_CALLED = re.compile(r"[\w-]{1,64},\s+")
_SENTENCE_END = re.compile(
    r"(?<=[.!?…。！？])(?<!\b[MD]r\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bSt\.)(?<!\bProf\.)\s+|\n+", re.IGNORECASE
)
_QUESTION_WORD = re.compile(
    r"(?:who|whom|whose|what|when|where|which|why|how|is|are|was|were|do|does|did|has|have|had|can|could|will|would"
    r"|should|am)(?:'s|'re)?\b",
    _FLAGS,
)


def _rule(pattern: str, make: _Maker) -> tuple[re.Pattern[str], _Maker]:
    return re.compile(pattern, _FLAGS), make


def _fact(found: re.Match[str]) -> Intent:
    fact = found["fact"].strip()
    return Remember(fact=fact[0].upper() + fact[1:]) if any(map(str.isalnum, fact)) else Unknown()


def _recall(found: re.Match[str]) -> Intent:
    topic = _bare(found["topic"])
    return Recall(topic=topic) if topic else Unknown()


def _forget(found: re.Match[str]) -> Intent:
    topic = _bare(found["topic"])
    return Forget(topic=topic, everything=bool(found["all"])) if topic else Unknown()


def _correct(found: re.Match[str]) -> Intent:
    old, new = _bare(found["old"]), _bare(found["new"])
    return Correct(old=old, new=new) if old and new and old != new else Unknown()


def _send(found: re.Match[str]) -> Intent:
    content = found["content"].strip()
    return Send(target=found["target"], content=content[0].upper() + content[1:]) if content else Unknown()


def _small(kind: str) -> _Maker:
    return lambda found: SmallTalk(kind=kind)


# What to remember may be long and of many sentences, so these look at the whole message.
_WHOLE_RULES = (
    _rule(
        rf"{_ASKING}{_KEEP}(?:(?: this| the following)?\s*[:,\-]\s*|\s+(?:that |this[:,]? |the fact that )?)"
        r"(?!(?:me\b|when\b|how\b|what\b|who\b|where\b|anything\b).*\?\s*$)(?P<fact>.+)",
        _fact,
    ),
    _rule(
        r"(?:for the record|fyi|for your information|just so you know|you should know|i want you to know)[,:]?"
        r"(?: that)? (?P<fact>.+)",
        _fact,
    ),
)
# The first rule that matches a whole sentence decides; the narrow ones stand first.
_RULES = (
    _rule(
        r"(?:(?:please )?(?:forget|drop) it|never ?mind|forget (?:that|about it)|no worries)[.! ]*",
        _small("never_mind"),
    ),
    *_WHOLE_RULES,
    _rule(
        r"(?P<fact>(?:my name is|i am called|i'm called|call me|i live in|i work (?:at|as|in|for)|i was born"
        r"|i (?:really )?(?:like|love|hate|prefer|enjoy)|i(?: am|'m) allergic|i(?: am|'m) from)\b[^?]*)",
        _fact,
    ),
    _rule(
        r"(?P<fact>my (?:favou?rite|birthday|wife|husband|partner|son|daughter|brother|sister|mother|father|cat|dog|job"
        r"|address|phone number|email)\b[^?]*?\b(?:is|are|was|lives|works|likes|has)\b[^?]*)",
        _fact,
    ),
    _rule(r"(?:who|what)(?: are|'re) you(?: exactly| really)?[?!. ]*", lambda found: WhoAreYou()),
    _rule(
        r"(?:what(?: is|'s) your name|introduce yourself|tell me (?:something )?about yourself|which model are you.*"
        r"|are you (?:an? )?(?:ai|bot|robot|human|person|machine|language model|llm|chatgpt|claude|real)\b.*)[?!. ]*",
        lambda found: WhoAreYou(),
    ),
    _rule(
        r"what (?:did|have) we (?:say|said|talk(?:ed)? about|discuss(?:ed)?|decided?|agreed?(?: on)?)"
        r"(?: on| about| regarding) (?P<topic>.+)",
        lambda found: Talked(topic=_bare(found["topic"])),
    ),
    _rule(
        r"what (?:did|have) we (?:just )?(?:talk(?:ed|ing)?|speak|spoken|chat(?:ted)?|discuss(?:ed)?|been talking)\b.*"
        r"|what were we (?:talking|speaking|chatting) about.*"
        r"|(?:please )?(?:summari[sz]e|recap|sum up) (?:our|this|the) (?:conversation|chat|talk|discussion).*"
        r"|where (?:were|did) we (?:leave off|stop).*|what was our last (?:topic|conversation).*",
        lambda found: Talked(),
    ),
    _rule(
        r"(?:please )?(?:show|list|print|display) (?:me )?(?:all )?(?:of )?your"
        r" (?:memor(?:y|ies)|memory blocks|blocks|notes)[?!. ]*",
        lambda found: ShowMemory(),
    ),
    _rule(
        r"what(?: is|'s) in your (?:memory|(?:memory )?block (?P<label>[\w-]+)|(?P<before>[\w-]+) block)[?!. ]*",
        lambda found: ShowMemory(label=found["label"] or found["before"] or ""),
    ),
    _rule(
        rf"{_ASKING}(?:what (?:do|can) you (?:know|remember|recall|have|tell me)|what have (?:i|we) told you"
        r"|what did (?:i|we) (?:tell you|say)|do you (?:know|remember|recall|have)(?: anything| something)?"
        r"|tell me(?: everything| all| what| something)?(?: (?:that )?you (?:know|remember|have))?"
        r"|remind me(?: again)?|what do we know|what about|search(?: your memory)?|look up|find|recall)"
        r"(?: about| of| on| for| regarding| concerning)? (?P<topic>.+)",
        _recall,
    ),
    _rule(rf"{_ASKING}remember (?P<topic>.+\?\s*)", _recall),
    _rule(rf"{_ASKING}forget (?:everything|all)(?P<topic>)[.! ]*", lambda found: Forget(topic="", everything=True)),
    _rule(
        rf"{_ASKING}(?:forget|(?:delete|remove|erase|drop)(?= .*\b(?:memory|remember|notes?|about|fact|that)\b))"
        r"(?P<all> (?:everything|all|anything)(?: (?:that )?you (?:know|remember))?(?: (?:about|of|on))?)?"
        r"(?:(?: the fact)? that| what (?:i|we) (?:said|told you)(?: about)?| about)? (?P<topic>.+?)"
        r"(?: from (?:your|my|the) (?:memory|notes))?[.!]*",
        _forget,
    ),
    _rule(rf"{_ASKING}(?:correct|change|update|amend|fix) (?P<old>.+?) (?:to|into) (?P<new>.+)", _correct),
    _rule(rf"{_ASKING}(?:replace|swap) (?P<old>.+?) (?:with|by|for) (?P<new>.+)", _correct),
    _rule(
        r"(?:actually|no|sorry|correction|i meant|wait)[,:.!]? ?(?:actually,? )?"
        r"(?:it(?: is|'s| was| should be) |i (?:meant|said) )?(?!not )"
        r"(?P<new>.+?)(?:,| and|;)? (?:not|instead of|rather than) (?P<old>.+)",
        _correct,
    ),
    _rule(r"it(?:'s| is| was| should be) (?!not )(?P<new>.+?), not (?P<old>.+)", _correct),
    _rule(
        r"(?:actually,? |no,? )?(?:it(?: is|'s| was)(?:n't| not) |it isn't |it wasn't |not )(?P<old>.+?)(?:,|;| but)+"
        r" (?:but )?(?:it(?:'s| is| was) )?(?P<new>.+)",
        _correct,
    ),
    _rule(
        r"(?:please )?(?:tell|message|send|write to|let)(?: a message to)?"
        r" (?!me\b|us\b|you\b|him\b|her\b|them\b|it\b|a\b|the\b)@?"
        r"(?P<target>[\w-]{1,64})(?:,? that |: ?| know (?:that )?)(?P<content>.+)",
        _send,
    ),
    _rule(
        r"(?:hello|hi|hey|howdy|greetings|good (?:morning|afternoon|evening|day))(?: [\w-]+){0,2}[!,.? ]*",
        _small("hello"),
    ),
    _rule(
        r"(?:help|help me|what can you do|what do you do|how (?:do|does) (?:you|this|it) work|usage)[?!. ]*",
        _small("help"),
    ),
    _rule(r"(?:bye|goodbye|good night|see you|see ya|farewell|take care)(?: [\w-]+){0,2}[!,. ]*", _small("bye")),
    _rule(
        r"(?:(?:many )?thanks|thank you|thx|cheers|great|nice|cool|perfect|ok(?:ay)?|good|well done)"
        r"(?: [\w-]+){0,3}[!,. ]*",
        _small("thanks"),
    ),
    _rule(
        r"how(?: are|'re) you(?: doing)?(?: [\w-]+)?[?!. ]*|how(?: is|'s) it going[?!. ]*",
        _small("how_are_you"),
    ),
)


def parse(text: str) -> Intent:
    """What the person wants; a name before a comma may stand first.

    A request to remember takes the rest of the message; otherwise the first sentence that asks for something decides.
    A question that no rule knows is a `Recall` of its own words.
    """
    whole = _plain(text)
    intent = _message(whole)
    called = _CALLED.match(whole)
    if called is not None and (isinstance(intent, Unknown | SmallTalk) or _is_recall_of_itself(intent)):
        inner = _message(whole[called.end() :])
        return intent if isinstance(inner, Unknown) else inner
    return intent


def _is_recall_of_itself(intent: Intent) -> bool:
    return isinstance(intent, Recall) and intent.is_question


def _message(whole: str) -> Intent:
    intent = _first(_WHOLE_RULES, whole)
    if not isinstance(intent, Unknown):
        return intent
    talk: Intent = Unknown()
    for sentence in _SENTENCE_END.split(whole[:PARSED_CHARS_MAX]):
        intent = _sentence(_plain(sentence))
        if not isinstance(intent, Unknown | SmallTalk):
            return intent
        if isinstance(talk, Unknown):
            talk = intent
    return talk


def _sentence(text: str) -> Intent:
    intent = _first(_RULES, text)
    if isinstance(intent, Unknown) and _is_question(text):
        topic = _bare(text)
        return Recall(topic=topic, is_question=True) if topic else intent
    return intent


def _first(rules: tuple[tuple[re.Pattern[str], _Maker], ...], text: str) -> Intent:
    for pattern, make in rules:
        found = pattern.fullmatch(text)
        if found is not None:
            intent = make(found)
            if not isinstance(intent, Unknown):
                return intent
    return Unknown()


def _is_question(text: str) -> bool:
    return text.endswith(("?", "？")) or (len(text) < 200 and _QUESTION_WORD.match(text) is not None)


def _plain(text: str) -> str:
    """The text without surrounding space and greetings, with typewriter apostrophes."""
    plain = text.replace("’", "'").replace("‘", "'").strip()
    while (greeting := _GREETING.match(plain)) and greeting.end() < len(plain):
        plain = plain[greeting.end() :]
    return plain


def _bare(words: str) -> str:
    """A topic without closing marks, quotes and the article before it."""
    bare = words.strip().rstrip("?!.,;: ").strip().strip("\"'“”«»").strip()
    for ending in (" again", " please", " for me", " now"):
        bare = bare.removesuffix(ending)
    return bare.rstrip(",;: ")
