"""Sessions: what their turns are shown, forks, refusals, deletion, and what crashes leave."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.conversation.imports import PastMessage
from pattern_core.errors import Conflict, InvalidInput, NotFound, Unavailable
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.search import SearchRequest
from pattern_core.testing.model import Paced, calls, says
from pattern_db.database import Database
from pattern_db.enums import Role, SearchKind
from tests.pattern_core.groups import rig as groups
from tests.support import USER, Running, acting, in_memory, note, note_in, rows, running


def texts(request: ModelRequest) -> list[str]:
    """What a prompt shows of the conversation, calls as the names of their tools."""
    return [message.text or ",".join(call.tool for call in message.tool_calls) for message in request.messages]


async def said(world: Running, content: str, session_id: str | None = None) -> list[str]:
    """Say something, in a session or not; what the last prompt for it showed."""
    view = await world.wait(await world.submit(content, session_id=session_id))
    assert view.status == "completed"
    assert view.session_id == session_id
    return texts(world.provider.requests[-1])


def echo(request: ModelRequest) -> ModelReply:
    """Answer by what was said, the same whenever it is asked again."""
    words = request.messages[-1].text
    if words.startswith("call"):
        return calls("note", {"text": words})
    return says(f"re: {words}" if words else "noted")


async def own(world: Running, agent: str = "ada") -> str:
    return (await world.constellation.roster.get(agent)).id


async def test_a_turn_is_shown_its_sessions_messages_alone() -> None:
    async with acting(otherwise=echo) as world:
        ada, sessions = await own(world), world.constellation.sessions
        one = await sessions.create(ada, title="Rome", origin="test")
        two = await sessions.create(ada)
        assert await said(world, "main 1") == ["main 1"]
        assert await said(world, "one 1", one.id) == ["one 1"]
        assert await said(world, "two 1", two.id) == ["two 1"]
        assert await said(world, "one 2", one.id) == ["one 1", "re: one 1", "one 2"]
        assert await said(world, "main 2") == ["main 1", "re: main 1", "main 2"]
        found = await sessions.newest(ada, 9)
        assert {(row.id, row.title, row.origin, row.said_at is None) for row in found} == {
            (two.id, None, None, False),
            (one.id, "Rome", "test", False),
        }
        assert [row.content for row in await world.constellation.messages("ada", limit=2, session_id=one.id)] == [
            "re: one 2",
            "one 2",
        ]
        assert len(await world.constellation.messages("ada", limit=99)) == 10


async def test_what_another_conversation_said_is_found_for_a_message() -> None:
    async with acting(otherwise=echo) as world:
        ada = await own(world)
        session = await world.constellation.sessions.create(ada)
        await said(world, "hello there", session.id)
        await said(world, "My walnut tree stands in Aberystwyth.")
        await said(world, "Where does the walnut tree stand?", session.id)
        assert "Aberystwyth" in note_in(world.provider.requests[-1])
        await said(world, "Our sailing boat is called Marigold.", session.id)
        await said(world, "How is our sailing boat called?")
        assert "Marigold" in note_in(world.provider.requests[-1])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["say", "say", "call", "new", "fork", "forget", "restart"]),
        st.integers(0, 99),
        st.integers(0, 99),
    ),
    max_size=25,
)


async def do(world: Running, what: str, first: int, second: int, naive: dict[str | None, list[str]]) -> None:
    """Do one step in a conversation, and in the naive model: a list of texts for each (None: the main one)."""
    session_id, sessions, ada = list(naive)[first % len(naive)], world.constellation.sessions, await own(world)
    shown = naive[session_id]
    if what == "new":
        naive[(await sessions.create(ada)).id] = []
    elif what == "forget":
        world.constellation._actors.forget(ada)
    elif what == "fork" and session_id is not None:
        at = next((at for at in range(second % (len(shown) or 1), len(shown)) if shown[at] != "note"), None)
        stored = (await world.constellation.messages("ada", limit=999, session_id=session_id))[::-1]
        assert len(stored) == len(shown)
        fork = await sessions.fork(ada, session_id, None if at is None else stored[at].id, title=None)
        naive[fork.id] = [] if at is None else shown[: at + 1]
    elif what in ("say", "call"):
        words = f"{what} {second}"
        shown += [words]
        assert (await said(world, words, session_id))[-1] == ("" if what == "call" else words)
        shown += ["note", ""] if what == "call" else []
        assert texts(world.provider.requests[-1]) == shown
        shown += ["noted" if what == "call" else f"re: {words}"]


@settings(max_examples=60)
@given(STEPS)
async def test_no_session_leaks_into_another_ones_prompts(steps: list[tuple[str, int, int]]) -> None:
    naive: dict[str | None, list[str]] = {None: []}
    async with in_memory() as database:
        async with running(database=database, tools=[note]) as world:
            await world.agent()
        rest = [*steps, ("say", 1, 1), ("say", 2, 2)]
        while rest:
            async with running(otherwise=echo, database=database, tools=[note], seed=len(rest) + 2) as world:
                while rest and (step := rest.pop(0))[0] != "restart":
                    await do(world, *step, naive)


# Compaction

SMALL = {"context_window": 2_000, "context": {"show": {"recalled": False, "guide": False, "time": False}}}
LONG = " ".join(f"word{number}" for number in range(120))


async def filled(world: Running, session_id: str | None, name: str, count: int) -> None:
    for number in range(count):
        await said(world, f"{name} {number} {LONG}", session_id)


async def left(database: Database, session_id: str | None = None) -> set[str]:
    """What the main conversation does not show any more, or a session, by first words."""
    found = await database.read(
        rows,
        "SELECT content FROM messages AS m WHERE role = 'user' AND CASE WHEN ?1 IS NULL THEN is_archived AND session_id"
        " IS NULL ELSE EXISTS (SELECT 1 FROM session_message AS s WHERE s.session_id = ?1 AND s.position = m.position"
        " AND s.is_archived) END",
        session_id,
    )
    return {str(content)[:7] for (content,) in found}


async def test_compaction_of_a_session_summarises_it_alone() -> None:
    async with running(otherwise=echo) as world:
        await world.agent(config=SMALL)
        ada, sessions = await own(world), world.constellation.sessions
        one, two = await sessions.create(ada), await sessions.create(ada)
        await filled(world, None, "main", 1)
        await filled(world, two.id, "two", 1)
        await filled(world, one.id, "one", 8)
        gone = await left(world.database, one.id)
        assert gone and {name[:3] for name in gone} == {"one"}
        assert await left(world.database, two.id) == await left(world.database) == set()
        shown = await said(world, "and?", one.id)
        assert shown[0].startswith("What was said before this is archived")
        assert not any("main" in text or "two" in text for text in shown)
        world.constellation._actors.forget(ada)
        assert await said(world, "so?", one.id) == [*shown, "re: and?", "so?"]
        assert not any("one " in text for text in await said(world, "well?", two.id))
        assert (await said(world, "hm?"))[0].startswith("main 0")
        summaries = await world.database.read(rows, "SELECT DISTINCT session_id FROM archive_summaries")
        assert summaries == [(one.id,)]
        [event] = [event for event in await world.events() if event.name == "history.compacted"][:1]
        assert event.data["session_id"] == one.id


async def test_the_main_conversation_is_compacted_without_its_sessions() -> None:
    async with running(otherwise=echo) as world:
        await world.agent(config=SMALL)
        one = await world.constellation.sessions.create(await own(world))
        await filled(world, one.id, "one", 1)
        await filled(world, None, "main", 8)
        assert await left(world.database)
        assert await left(world.database, one.id) == set()
        assert (await said(world, "and?", one.id))[0].startswith("one 0")


async def test_a_fork_keeps_what_its_parent_showed_at_that_time() -> None:
    async with running(otherwise=echo) as world:
        await world.agent(config=SMALL)
        ada, sessions = await own(world), world.constellation.sessions
        one = await sessions.create(ada, title="trips")
        await filled(world, one.id, "one", 8)
        stored = (await world.constellation.messages("ada", limit=99, session_id=one.id))[::-1]
        early = await sessions.fork(ada, one.id, stored[1].id, title=None)
        late = await sessions.fork(ada, one.id, None, title="other")
        assert (early.title, early.parent_id, late.title) == ("trips", one.id, "other")
        # The early one shows nothing that was said, or summarised, behind its end.
        shown = await said(world, "and?", early.id)
        assert [text[:5] for text in shown] == ["one 0", "re: o", "and?"]
        before = texts(world.provider.requests[-2])
        shown = await said(world, "and?", late.id)
        assert shown == [*before, shown[-2], "and?"]
        # What leaves the parent afterwards stays in the fork, and the other way round.
        await filled(world, one.id, "new", 6)
        world.constellation._actors.forget(ada)
        assert (await said(world, "so?", late.id))[: len(shown)] == shown
        await filled(world, late.id, "fork", 8)
        assert not any("fork" in text for text in await said(world, "and?", one.id))
        assert "one 7 w" in await left(world.database, late.id)
        # No text is stored, or found, twice.
        hits = (await world.constellation.search(SearchRequest(query="one 0", kinds=[SearchKind.MESSAGE]))).hits
        assert sum(hit.content.startswith("one 0") for hit in hits) <= 1
        again = await sessions.fork(ada, late.id, stored[1].id, title=None)
        assert [text[:5] for text in await said(world, "and?", again.id)] == ["one 0", "re: o", "and?"]


# Refusals, policies and deletion


async def test_what_is_no_session_to_write_to_is_refused() -> None:
    async with acting(otherwise=echo) as world:
        await world.agent("bob")
        ada, sessions = await own(world), world.constellation.sessions
        one = await sessions.create(ada)
        await said(world, "hello", one.id)
        with pytest.raises(NotFound, match="no session"):
            await world.submit("hi", session_id="ses_none")
        with pytest.raises(NotFound, match="no session"):
            await world.submit("hi", "bob", session_id=one.id)
        with pytest.raises(NotFound, match="no session"):
            await sessions.get(await own(world, "bob"), one.id)
        archived = await sessions.update(ada, one.id, {"is_archived": True, "title": "old"})
        assert (archived.is_archived, archived.title) == (True, "old")
        for _ in range(2):  # from memory, and not
            with pytest.raises(Conflict, match="archived"):
                await world.submit("hi", session_id=one.id)
            world.constellation._actors.forget(ada)
        assert [row.id for row in await sessions.newest(ada, 9, is_archived=True)] == [one.id]
        assert await sessions.newest(ada, 9) == []
        await sessions.update(ada, one.id, {"is_archived": False})
        assert await said(world, "again", one.id) == ["hello", "re: hello", "again"]
        for title in ("", "x" * 201, "a\0b"):
            with pytest.raises(InvalidInput, match="title"):
                await sessions.create(ada, title=title)
        with pytest.raises(InvalidInput, match="title"):
            await sessions.update(ada, one.id, {"title": ""})
        for owner in ("_constellation_", "agent_none"):
            with pytest.raises(NotFound):
                await sessions.create(owner)
        with pytest.raises(NotFound, match="no message"):
            await sessions.fork(ada, one.id, "msg_0", title=None)
        elsewhere = (await world.constellation.messages("ada", limit=1))[0].id
        two = await sessions.create(ada)
        with pytest.raises(NotFound, match="no message"):
            await sessions.fork(ada, two.id, elsewhere, title=None)


@pytest.mark.parametrize("policy", ["steer", "interrupt", "rollback"])
async def test_a_message_joins_or_stops_no_turn_of_another_conversation(policy: str) -> None:
    gate = trio.Event()
    first = Paced(answer=calls("note", {"text": "x"}), gate=gate)
    async with acting([first], otherwise=says("done"), tools=[note]) as world:
        ada = await own(world)
        one, two = await world.constellation.sessions.create(ada), await world.constellation.sessions.create(ada)
        running_turn = await world.submit("go", session_id=one.id)
        await trio.testing.wait_all_tasks_blocked()
        other = await world.submit("other", session_id=two.id, policy=policy)
        same = await world.submit("same", session_id=one.id, policy="steer")
        gate.set()
        assert (await world.wait(running_turn)).status == "completed"
        assert [row.content for row in (await world.constellation.turn(running_turn)).messages][:1] == ["go"]
        await world.wait(other)
        await world.wait(same)
        assert "message.joined" in await world.names(running_turn)
        assert texts(world.provider.requests[-1]) == ["other"]
        assert texts(world.provider.requests[-2]) == ["go", "note", "", "same"]


async def test_a_deleted_session_is_found_nowhere() -> None:
    async with acting(otherwise=echo) as world:
        ada, sessions = await own(world), world.constellation.sessions
        one, two = await sessions.create(ada), await sessions.create(ada)
        await said(world, "a walnut here", one.id)
        await said(world, "a walnut there", two.id)
        fork = await sessions.fork(ada, one.id, None, title=None)
        await said(world, "a walnut in the fork", fork.id)
        with pytest.raises(Conflict, match="forked"):
            await sessions.delete(ada, one.id)
        assert not (await sessions.get(ada, one.id)).is_archived
        await sessions.delete(ada, fork.id)
        assert await said(world, "still?", one.id) == ["a walnut here", "re: a walnut here", "still?"]
        await sessions.delete(ada, one.id)
        with pytest.raises(NotFound):
            await sessions.delete(ada, one.id)
        found = await world.constellation.search(SearchRequest(query="walnut", kinds=[SearchKind.MESSAGE]))
        assert {hit.session_id for hit in found.hits} == {two.id}
        assert await said(world, "and?", two.id) == ["a walnut there", "re: a walnut there", "and?"]
        assert len(await world.constellation.messages("ada", limit=99)) == 4
        await world.constellation.delete_agent("ada")
        assert await world.database.read(rows, "SELECT count(*) FROM sessions") == [(0,)]


async def test_deleting_a_session_ends_its_turns() -> None:
    async with acting([Paced(answer=says("late"), gate=trio.Event())], otherwise=echo) as world:
        ada, sessions = await own(world), world.constellation.sessions
        one = await sessions.create(ada)
        first = await world.submit("go", session_id=one.id)
        waiting = await world.submit("and", session_id=one.id)
        main = await world.submit("main")
        await trio.testing.wait_all_tasks_blocked()
        await sessions.delete(ada, one.id)
        assert [(await world.wait(turn)).status for turn in (first, waiting, main)] == [
            "cancelled",
            "cancelled",
            "completed",
        ]


async def test_past_messages_are_imported_into_a_session() -> None:
    async with acting(otherwise=echo) as world:
        one = await world.constellation.sessions.create(await own(world))
        past = [
            PastMessage(Role.USER, "long ago", "2020-01-01T00:00:00Z", one.id),
            PastMessage(Role.USER, "elsewhere", "2020-01-02T00:00:00Z", "a name from elsewhere"),
        ]
        await world.constellation.imports.add("ada", past, author=USER)
        assert "long ago" in (await said(world, "and?", one.id))[0]
        assert len(texts(world.provider.requests[-1])) == 2
        assert "elsewhere" in (await said(world, "and?"))[0]
        assert len(texts(world.provider.requests[-1])) == 2


# Groups


async def test_a_session_of_a_group_is_one_of_each_member() -> None:
    async with running(otherwise=echo) as world:
        desk = await groups.group(world, "parallel")
        sessions = world.constellation.sessions
        one, two = await sessions.create(desk.id), await sessions.create(desk.id)
        assert (one.group_id, one.agent_id) == (desk.id, None)
        for session in (one, two):
            turn_id = await groups.submit(world, f"hello {session.id}", session_id=session.id)
            assert (await world.wait(turn_id)).session_id == session.id
        shown = [texts(request) for request in world.provider.requests]
        assert not any(one.id in text and two.id in text for texts_ in shown for text in texts_)
        assert all(len(texts_) == 1 for texts_ in shown), "no member has heard of another conversation"
        assert await said(world, "main") == ["main"]
        turn_id = await groups.submit(world, "again", session_id=one.id)
        await world.wait(turn_id)
        for request in world.provider.requests[-3:]:  # one of each member
            assert len(texts(request)) == 3
            assert not any(two.id in text for text in texts(request))
        with pytest.raises(InvalidInput, match="group"):
            await sessions.fork(desk.id, one.id, None, title=None)
        with pytest.raises(NotFound):
            await groups.submit(world, "hi", session_id="ses_none")
        with pytest.raises(NotFound):
            await world.submit("hi", session_id=one.id)
        await sessions.delete(desk.id, one.id)
        left = await world.database.read(
            rows, "SELECT count(*) FROM messages WHERE session_id = ? AND is_deleted = 0", one.id
        )
        assert left == [(0,)]
        turns = await world.database.read(rows, "SELECT session_id FROM turn WHERE group_id = ?", desk.id)
        assert turns == [(two.id,)]


# Crashes


async def lived(kills: list[int]) -> tuple[list[tuple[object, ...]], list[list[str]], int]:
    """Talk in two sessions, a fork and the main conversation, in lives of which each is killed after a commit
    (`kills`), and a last one that is not; what is stored, the prompts that asked last, and the last life's commits.
    """
    shown: dict[str, list[str]] = {}

    def answer(request: ModelRequest) -> ModelReply:
        words = texts(request)
        shown[next(text for text in reversed(words) if text.startswith(("call", "say"))) + str(bool(words[-1]))] = words
        return echo(request)

    async with in_memory() as database:
        async with running(otherwise=answer, database=database, tools=[note]) as world:
            await world.agent()
            ada, sessions = await own(world), world.constellation.sessions
            one, two = await sessions.create(ada), await sessions.create(ada)
            await said(world, "say 0", one.id)
            fork = await sessions.fork(ada, one.id, None, title=None)
        script = [one.id, two.id, None, fork.id, one.id, fork.id, two.id, None]
        meters = groups.DyingMeters(0)
        for seed, kill_at in enumerate([*kills, 0], start=2):
            meters = groups.DyingMeters(kill_at)
            try:
                async with running(
                    otherwise=answer, database=database, tools=[note], meters=meters, seed=seed
                ) as world:
                    for number, session_id in enumerate(script, start=1):
                        words = f"{'say' if number % 3 else 'call'} {number}"
                        await world.wait(await world.submit(words, session_id=session_id, key=words))
            except* (groups.Killed, Unavailable):  # what a client sees whose message was not accepted
                pass
        kept = await database.read(
            rows, "SELECT session_id, role, content FROM messages WHERE is_deleted = 0 ORDER BY session_id, position"
        )
        return kept, [shown[key] for key in sorted(shown)], meters.commits


async def test_a_turn_of_a_session_that_is_killed_after_any_commit_is_shown_the_same() -> None:
    kept, shown, commits = await lived([])
    assert commits > 20
    assert ["say 0", "re: say 0", "say 4", "re: say 4", "call 6"] in shown
    for kill_at in range(1, commits + 1):
        assert (await lived([kill_at]))[:2] == (kept, shown), f"killed after the commit {kill_at}"
