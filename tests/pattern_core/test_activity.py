"""What agents and groups do together is noted for the others, and shown once."""

from __future__ import annotations

from functools import partial

from pattern_core.agent_settings import settings_of
from pattern_core.conversation.history import load_history
from pattern_core.memory.block import Attribution, NewBlock
from pattern_core.memory.edits import AppendText
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.prompts.collect import Seen
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import says
from pattern_db.enums import CONSTELLATION_OWNER
from tests.pattern_core.groups import rig
from tests.support import BY_USER, Running, note_in, rows, running

SHOWN = {"context": {"show": {"activity": True}}}


def speak(request: ModelRequest) -> ModelReply:
    return says("Fine.")


async def noted(world: Running) -> list[tuple[object, ...]]:
    return await world.database.read(
        rows, "SELECT event_type, details ->> 'summary', importance FROM activity_events ORDER BY timestamp, id"
    )


async def looked(world: Running, name: str, now_ms: int) -> Seen | None:
    """What the agent's next turn would look for beyond its conversation."""
    agent, services = await world.constellation.roster.get(name), world.constellation._services
    history = await world.database.read(
        load_history, agent.id, services.limits.prompt, active=None, is_untrusted=services.tools.is_untrusted
    )
    return await world.database.write(
        partial(
            services.prompts.look,
            agent_id=agent.id,
            turn_id="turn_next",
            history=history,
            now_ms=now_ms,
            settings=settings_of(agent.config).context,
        )
    )


async def test_others_are_shown_once_what_was_shared_handed_over_and_edited() -> None:
    clock = StoppedClock()
    async with running(otherwise=speak, clock=clock) as world:
        ada, here = await world.agent("ada"), world.constellation
        await world.agent("bob", config=SHOWN)
        await here.memory.create(CONSTELLATION_OWNER, NewBlock(label="plan", content="Dig."), by=BY_USER)
        await world.say("Hello", "bob")
        by_ada = Attribution(author=f"agent:{ada.id}")
        for change in (
            here.state.set("job", "ada", expected=0, author=by_ada.author),
            here.handoffs.add("The spade is broken.", author=by_ada.author, from_agent=ada.id),
            here.memory.edit(ada.id, "plan", AppendText(text=" Plant."), by=by_ada),
            here.memory.edit(ada.id, "human", AppendText(text="Own block."), by=by_ada),
            here.state.delete("job", expected=1, author=BY_USER.author),
        ):
            clock.advance(60_000)
            await change
        assert await noted(world) == [
            ("state_changed", "job", 0),
            ("note_left", "for any agent", 1),
            ("memory_updated", "plan", 1),
            ("state_deleted", "job", 0),
        ]
        await world.say("Anything new?", "bob")
        lines = note_in(world.provider.requests[-1]).partition("# Recent activity\n")[2].splitlines()[1:5]
        assert lines == [
            "[00:05] [SYSTEM] state deleted: job",
            "[00:03] [AGENT:ada] memory updated: plan",
            "[00:02] [AGENT:ada] note left: for any agent",
            "[00:01] [AGENT:ada] state changed: job",
        ]
        clock.advance(60_000)
        await world.say("And now?", "bob")
        assert await looked(world, "bob", clock.now_ms()) is None, "what was shown costs later turns no commit"
        assert "memory updated" not in note_in(world.provider.requests[-1])
        clock.advance(60_000)
        await here.state.set("job", "bob", expected=0, author=by_ada.author)
        await world.say("And now?", "bob")
        assert "[00:07] [AGENT:ada] state changed: job" in note_in(world.provider.requests[-1])


async def test_a_groups_answer_is_noted_for_all() -> None:
    async with running(otherwise=rig.speak) as world:
        await rig.group(world, "round_robin")
        await rig.say(world)
        [event] = await noted(world)
        assert event == ("group_answered", "desk: ada answers", 2)
        await world.agent("eve", config=SHOWN)
        await world.say("Anything new?", "eve")
        assert "group answered: desk: ada answers" in note_in(world.provider.requests[-1])


async def test_a_groups_answer_is_no_news_to_its_members_and_nothing_of_a_session() -> None:
    async with running(otherwise=rig.speak) as world:
        desk = await rig.group(world, "round_robin")
        await rig.say(world)
        assert await looked(world, "cleo", 0) is None, "so it costs them no commit"
        await world.say("Anything new?", "cleo")
        assert "group answered" not in note_in(world.provider.requests[-1])
        session = await world.constellation.sessions.create(desk.id)
        await world.constellation.wait(await rig.submit(world, session_id=session.id))
        assert len(await noted(world)) == 1
