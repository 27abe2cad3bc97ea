"""The promises of the tour, and the central one: what a killed server had accepted is neither lost nor done twice."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import trio

from pattern_core.errors import PatternError
from pattern_core.events import TERMINAL
from pattern_server.cli.child import ServerProcess
from pattern_server.cli.client import Api, Json, ServerEvent, ServerUnreachable, path
from pattern_server.cli.output import Output

DAYS = 24
# Messages accepted when the server is killed; the next one is on its way. A busy machine may let it end all turns
# before the signal comes: then it is killed once more, a little later.
KILLED_AFTER = (14, 17, 20, 23)
RECONNECT_S = 0.05
SETTLE_S = 30.0

_WHERE = path("constellations", "home", "agents", "ada", "messages")
_EVENTS = path("constellations", "home", "events")


class ClaimFailed(PatternError):
    """Something that the tour promised did not hold."""

    code = "claim_failed"


def claim(holds: object, what: str) -> None:
    """Check a promise.

    Raises:
        ClaimFailed: it does not hold.
    """
    if not holds:
        raise ClaimFailed(f"The tour stops, because this did not hold: {what}. Please report it.")


def _note(day: int) -> str:
    return f"Remember that on day {day:02d} I sowed row {100 + day} of peas."


@dataclass(slots=True)
class Watch:
    """A client that follows all events, through a lost connection too."""

    seen: list[ServerEvent] = field(default_factory=list)

    @property
    def latest(self) -> int:
        """The number of the newest event seen; 0 before the first."""
        return self.seen[-1].seq if self.seen else 0

    def ended(self) -> list[str]:
        """Return the turns that were seen to end, one entry per terminal event."""
        return [str(event.data["turn_id"]) for event in self.seen if event.name in TERMINAL]

    async def follow(self, child: ServerProcess) -> None:
        """Read events without end; after a lost connection continue after the last one seen (`Last-Event-ID`)."""
        while True:
            with suppress(ServerUnreachable):
                async with child.api() as api, api.events(_EVENTS, after=self.latest) as events:
                    async for event in events:
                        self.seen.append(event)
            await trio.sleep(RECONNECT_S)


async def kill_in_mid_work(child: ServerProcess, output: Output) -> None:
    """Send messages, kill the server between them, start it again, and check everything that was promised."""
    watch = Watch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.follow, child)
        accepted: dict[int, str] = {}
        for count in KILLED_AFTER:
            await _send_until_killed(child, accepted, count)
            open_turns = len(set(accepted.values()) - set(watch.ended()))
            output.say(f"   {DAYS} notes to send; {len(accepted)} were accepted: SIGKILL. {open_turns} had no end yet")
            if open_turns or count == KILLED_AFTER[-1]:
                break
            await child.start()
        _, took_s = await child.start()
        output.say(f"   started again in {took_s:.1f} s; the open turns continue by themselves")
        turns = await _send_again(child, accepted)
        output.say(f"   sent all {DAYS} again with the same Idempotency-Keys, as a careful client does")
        with trio.move_on_after(SETTLE_S):
            while not set(turns) <= set(watch.ended()):
                await trio.sleep(RECONNECT_S)
        nursery.cancel_scope.cancel()
    claim(all(watch.ended().count(turn) == 1 for turn in turns), "every turn ends exactly once")
    async with child.api() as api:
        await _check(api, output, watch)


async def _send_until_killed(child: ServerProcess, accepted: dict[int, str], count: int) -> None:
    """Send notes until `count` are accepted, and kill the server; `accepted` gets the turn of each day."""

    async def send(api: Api, day: int) -> None:
        # Killed under it, it cannot know whether the message was accepted, and sends it again.
        with suppress(ServerUnreachable):
            accepted[day] = (await _send(api, day))["turn_id"]

    async with child.api() as api, trio.open_nursery() as nursery:
        for day in range(1, count + 1):
            if day not in accepted:
                await send(api, day)
        nursery.start_soon(send, api, count + 1)
        await trio.sleep(0.001)
        await child.kill()


async def _send(api: Api, day: int) -> Json:
    headers = {"Prefer": "respond-async", "Idempotency-Key": f"demo-day-{day:02d}"}
    return await api.call("POST", _WHERE, body={"content": _note(day)}, headers=headers)


async def _send_again(child: ServerProcess, accepted: dict[int, str]) -> list[str]:
    async with child.api() as api:
        turns = [(await _send(api, day))["turn_id"] for day in range(1, DAYS + 1)]
    claim(len(set(turns)) == DAYS, "each note is one turn")
    claim(
        all(turns[day - 1] == turn for day, turn in accepted.items()),
        "a note that was accepted before the kill is answered with the same turn",
    )
    return turns


async def _check(api: Api, output: Output, watch: Watch) -> None:
    history = await api.pages(_WHERE)
    said = [message["content"] for message in reversed(history) if message["role"] == "user"]
    notes = [_note(day) for day in range(1, DAYS + 1)]
    claim([text for text in said if text in set(notes)] == notes, "every note is stored once, in order")
    output.say(f"   ✓ the history holds all {DAYS} notes, each once, in order")
    block = await api.get(path("constellations", "home", "agents", "ada", "memory", "human"))
    counts = [block["content"].count(f"row {100 + day} ") for day in range(1, DAYS + 1)]
    claim(counts == [1] * DAYS, f"every note was written to memory exactly once (the counts are {counts})")
    output.say("   ✓ the agent's memory holds each of them once: no tool ran twice")
    output.say(f"   ✓ {DAYS} turns, each with exactly one end")
    replayed, seen = _lasting(await _replay(api, watch.latest)), _lasting(watch.seen)
    claim(replayed == seen, "the resumed stream missed nothing and repeated nothing")
    output.say(f"   ✓ the event stream resumed after the kill: {len(seen)} events, none missing, none twice")


def _lasting(events: list[ServerEvent]) -> list[int]:
    """Return the numbers of the events that stay; pieces of a message are dropped once the whole message is stored."""
    return [event.seq for event in events if not event.name.endswith(".delta")]


async def _replay(api: Api, latest: int) -> list[ServerEvent]:
    """Return all events from the first to number `latest`, read again."""
    replay: list[ServerEvent] = []
    if latest:
        async with api.events(_EVENTS, after=0) as events:
            async for event in events:
                replay.append(event)
                if event.seq >= latest:
                    break
    return replay
