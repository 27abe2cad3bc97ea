from __future__ import annotations

from collections.abc import Sequence

import trio

from pattern_core.agent_settings import ContextSettings
from pattern_core.errors import InvalidInput
from pattern_core.prompts.parts import Findings, Kind
from pattern_core.prompts.recalled import QUERY_WORDS_MAX, Searching, choose, query_of, recall, source_of, terms
from pattern_core.search import Hit, SearchRequest, SearchResult
from pattern_core.untrusted import MASK
from pattern_db.enums import CONSTELLATION_OWNER, Role, SearchKind

SETTINGS = ContextSettings(recall_max=2)
WORDS = "Where does Ruth keep the greenhouse keys?"
KINDS = (SearchKind.MESSAGE, SearchKind.ARCHIVAL)
IN_VIEW = ("<block:human>\nRuth lives in Lisbon.\n</block:human>",)


async def recalled(
    searching: Searching,
    *,
    words: str = WORDS,
    kinds: Sequence[SearchKind] = KINDS,
    settings: ContextSettings = SETTINGS,
) -> Findings:
    now = "2026-01-01T00:00:00.000Z"
    return await recall(
        searching, settings, words, agent_id="agent_ada", kinds=KINDS, before="42", in_view=IN_VIEW, now=now
    )


def hit(content: str, *, kind: SearchKind = SearchKind.ARCHIVAL, label: str | None = None, snippet: str = "") -> Hit:
    return Hit(
        kind=kind,
        id=f"id of {content[:20].strip()}",
        agent_id="agent_ada",
        content=content,
        snippet=snippet or content,
        score=1.0,
        parts={},
        reason="its words fit (+0.81)",
        created_at="2025-06-01T10:00:00.000Z",
        label=label,
        role=Role.USER if kind is SearchKind.MESSAGE else None,
    )


class Library:
    """Answers searches with what it holds, after a while."""

    def __init__(self, *hits: Hit, takes_s: float = 0.0) -> None:
        self._hits = hits
        self._takes_s = takes_s
        self.asked: list[SearchRequest] = []

    async def search(self, request: SearchRequest) -> SearchResult:
        """The hits."""
        self.asked.append(request)
        await trio.sleep(self._takes_s)
        return SearchResult(hits=self._hits)


def test_telling_words_are_compared_by_their_beginnings() -> None:
    assert terms("Where is the Greenhouse? greenhouses!") == {"where", "greenh"}
    assert terms("hi, ok?") == frozenset()
    assert terms("東京タワー") == {"東京", "京タ", "タワ", "ワー"}


async def test_what_shares_words_with_the_message_is_shown_with_its_source() -> None:
    library = Library(hit("The greenhouse keys hang behind the clock. Password: tulip-2020"))
    found = await recalled(library.search)
    [part] = found.parts
    assert part.text == (
        f'<data from="the archive, 2025-06-01">\nThe greenhouse keys hang behind the clock. Password: {MASK}\n</data>'
    )
    assert (part.kind, part.reason) == (Kind.RECALLED, "found for the message: its words fit (+0.81)")
    [asked] = library.asked
    assert (asked.query, asked.kinds, asked.before) == (query_of(WORDS), KINDS, "42")
    assert asked.agents == ["agent_ada", CONSTELLATION_OWNER]


def test_the_longest_words_are_asked_for_in_their_order() -> None:
    assert query_of("Hi, do you know where the greenhouse keys hang?") == "know where greenhouse keys hang"
    many = query_of(" ".join(f"word{'s' * length}" for length in range(20)))
    assert [len(word) - 4 for word in many.split()] == list(range(20 - QUERY_WORDS_MAX, 20))
    assert query_of("昨日の会議はどこ") == "昨日の会議はどこ"
    assert query_of("hi") == ""


async def test_nothing_is_looked_for_without_words_or_where_it_is_switched_off() -> None:
    library = Library(hit("greenhouse keys"))
    assert not (await recalled(library.search, words="hi")).parts
    assert not (await recalled(library.search, settings=ContextSettings(recall_max=0))).parts
    assert library.asked == []


async def test_a_turn_does_not_wait_for_a_slow_search(autojump_clock: trio.testing.MockClock) -> None:
    slow = Library(hit("The greenhouse keys hang behind the clock."), takes_s=10)
    before = trio.current_time()
    found = await recalled(slow.search)
    assert trio.current_time() - before < 0.2
    assert found.parts == ()
    assert [one.reason for one in found.left_out] == ["the search took longer than 150 ms (context.recall_timeout_ms)"]
    assert (await recalled(Library(hit("greenhouse keys"), takes_s=0.1).search)).parts


async def test_a_search_that_fails_fails_no_turn() -> None:
    async def failing(_request: SearchRequest) -> SearchResult:
        raise InvalidInput("no")

    found = await recalled(failing)
    assert [one.reason for one in found.left_out] == ["the search failed: no"]


def test_what_is_not_shown_says_why() -> None:
    wanted = terms(WORDS)
    hits = [
        hit("Something else altogether."),
        hit("Ruth lives in Lisbon."),
        hit("the greenhouse keys hang behind the clock"),
        hit("The greenhouse keys, again"),
        hit("Those greenhouse keys, once more"),
        hit(" "),
    ]
    found = choose(hits, wanted, IN_VIEW, SETTINGS)
    assert [part.ref for part in found.parts] == ["id of the greenhouse keys", "id of The greenhouse keys,"]
    assert [one.reason for one in found.left_out] == [
        "it shares 0 of the 6 telling words of the message",
        "it shares 1 of the 6 telling words of the message",
    ]
    alone = choose(hits[4:], wanted, (), ContextSettings(recall_max=5))
    assert [one.reason for one in alone.left_out] == ["it has no words"]
    more = choose(hits[2:5], wanted, (), SETTINGS)
    assert [one.reason for one in more.left_out] == ["2 passages are shown (context.recall_max)"]


def test_the_same_words_are_never_shown_twice() -> None:
    wanted = terms("the greenhouse keys")
    seen = choose([hit("greenhouse keys")], wanted, ["I said: greenhouse keys!"], SETTINGS)
    assert [one.reason for one in seen.left_out] == ["the prompt shows the same words already"]
    twice = choose([hit("greenhouse keys"), hit("greenhouse keys")], wanted, (), SETTINGS)
    assert len(twice.parts) == 1


def test_a_long_passage_is_shown_as_its_excerpt() -> None:
    long = hit("word " * 1_000 + "greenhouse keys", snippet="… greenhouse keys")
    [part] = choose([long], terms("greenhouse keys"), (), SETTINGS).parts
    assert part.text == '<data from="the archive, 2025-06-01">\n… greenhouse keys\n</data>'


def test_sources_are_told_in_words() -> None:
    assert source_of(hit("x", kind=SearchKind.MESSAGE)) == "the conversation of 2025-06-01, user"
    assert source_of(hit("x", kind=SearchKind.FILE, label="a.md")) == "the file a.md, 2025-06-01"
