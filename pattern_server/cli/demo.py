"""`pattern demo`: one story in seven chapters, in which everything really happens and every claim is checked.

It starts the server that an operator would start, and speaks to it over HTTP as any client would.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import trio

from pattern_core.errors import InvalidInput, PatternError
from pattern_core.events import TERMINAL
from pattern_server.cli.backup import back_up, restore_file
from pattern_server.cli.child import ServerProcess
from pattern_server.cli.client import Json, ServerEvent, ServerUnreachable
from pattern_server.cli.command import ExitCode, Home, reported
from pattern_server.cli.output import DONE, Output

TIME_MAX_S = 180.0  # far beyond what it needs: better a failure than a demo that hangs
WAIT_S = 30.0  # a model that is installed is loaded in this time, on a slow machine too
LOOK_EVERY_S = 0.05

# All lines fit a terminal of 80 columns.
FACT = "Ruth is allergic to nuts."
QUESTION = "Who is allergic to nuts?"
HERS = "Ruth arrives on Friday."
YOURS = "The spare key is under the third flower pot."
KEPT = "A pipe burst in the cellar. The plumber Ines Duarte repaired it."
# The first shares words with what it is to find, the second none.
BY_WORDS, BY_MEANING = "burst pipe", "someone to fix a leak"
SECRET = "the code of the garden gate is 4711."

DAYS = 24
# Messages accepted when the server is killed; the next one is on its way. A busy machine may let it end all turns
# before the signal comes: then it is killed again, a little later.
KILLED_AFTER = (14, 17, 20, 23)

CREW = ("gus", "ines", "omar", "pia")
TASK = "Plan the harvest of the peas."
ROUNDS_MAX = 5
ENDED = frozenset(name.removeprefix("turn.") for name in TERMINAL)

NEXT = (
    ("up", "connect a language model and start the server"),
    ("chat", "talk to an agent of your own"),
    ("why", "see what its last answer was based on"),
)

_MESSAGES = ("agents", "ada", "messages")
_MEMORY = ("agents", "ada", "memory", "human")


class ClaimFailed(PatternError):
    """Something that the demo claims did not hold."""

    code = "claim_failed"


def claim(holds: object, what: str) -> None:
    """Check a claim.

    Raises:
        ClaimFailed: it does not hold.
    """
    if not holds:
        raise ClaimFailed(f"This did not hold: {what}. Please report it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What the chapters share."""

    folder: Path
    child: ServerProcess
    output: Output

    def show(self, mark: str, text: str, color: str = "") -> None:
        """Print a line of a chapter, with a coloured mark in its margin."""
        self.output.beside(mark, text, color)

    def check(self, holds: object, what: str) -> None:
        """Check a claim and print it.

        Raises:
            ClaimFailed: it does not hold.
        """
        claim(holds, what)
        self.show("✓", what, "green")

    @asynccontextmanager
    async def home(self) -> AsyncIterator[Home]:
        """Yield the constellation, through the API of the server that runs now."""
        async with self.child.api() as api:
            yield Home(api, "home")


async def say(home: Home, content: str) -> str:
    """Send ada a message and wait for the turn to complete; her answer.

    Raises:
        ClaimFailed: the turn ended otherwise.
    """
    turn = await home.call("POST", *_MESSAGES, body={"content": content})
    claim(turn["status"] == "completed", f"the turn of {content!r} completes (it is {turn['status']})")
    return "\n".join(one["content"] for one in turn["messages"] if one["role"] == "assistant" and one["content"])


async def exchange(demo: Demo, home: Home, text: str, expected: str) -> None:
    """Say something to ada, and show what both say; her answer holds what is expected.

    Raises:
        ClaimFailed: it does not.
    """
    demo.show("you", text, "cyan")
    answer = await say(home, text)
    demo.show("ada", answer, "magenta")
    claim(expected in answer, f"the answer to {text!r} holds {expected!r}")


async def once(is_done: Callable[[Json], bool], ask: Callable[[], Awaitable[Json]]) -> Json:
    """Return an answer of the server once it is done, or as it is after `WAIT_S` seconds."""
    found = await ask()
    with trio.move_on_after(WAIT_S):
        while not is_done(found):
            await trio.sleep(LOOK_EVERY_S)
            found = await ask()
    return found


async def remember(demo: Demo) -> None:
    """A server starts, and an agent keeps what it is asked to."""
    _, took_s = await demo.child.start()
    demo.show("", f"Server ready in {took_s:.1f} s. Its agent ada has no language model, only rules.")
    async with demo.home() as home:
        await home.api.call("POST", "constellations", body={"name": "home"})
        block = {"label": "human", "content": "", "description": "What I know about the people here."}
        await home.call("POST", "agents", body={"name": "ada", "model_provider": "embedded", "memory": [block]})
        await exchange(demo, home, f"Remember that {FACT}", FACT)
        await exchange(demo, home, QUESTION, FACT)


async def merge(demo: Demo) -> None:
    """Two authors change one block at the same time."""
    async with demo.home() as home:
        before = await home.get(*_MEMORY)
        demo.show("", "You open that memory block in an editor. Then ada changes it:")
        await exchange(demo, home, f"Remember that {HERS}", HERS)
        demo.show("", "You save your edit of the older text. Both changes are kept:")
        written = {"content": f"{YOURS}\n{before['content']}", "base_version": before["version"]}
        await home.call("PUT", *_MEMORY, body=written)
        lines = (await home.get(*_MEMORY, "blame"))["lines"]
    authors = [(line["text"], "ada" if line["author"].startswith("agent:") else "you") for line in lines]
    for text, author in authors:
        demo.show("│", f"{author}  {text}", "bright_black")
    kept = [(YOURS, "you"), (FACT, "ada"), (HERS, "ada")]
    claim(authors == kept, "a merged block holds the lines of both authors")


async def search(demo: Demo) -> None:
    """One search by words, one by meaning where there is a model for it."""
    async with demo.home() as home:
        await home.call("POST", "agents", "ada", "archival", body={"content": KEPT})
        demo.show("", "A note in ada's archive is found by its words, and by its meaning:")
        await find(demo, home, "words", BY_WORDS)
        state = await once(_is_settled, partial(home.get, "embeddings"))
        if state["state"] == "unavailable":
            demo.show("", f"Search by meaning is off: {state['reason']}")
        else:
            await find(demo, home, "meaning", BY_MEANING)


async def find(demo: Demo, home: Home, mode: str, query: str) -> None:
    """Search for the note in the archive.

    Raises:
        ClaimFailed: something else was found first, or it hardly fits.
    """
    demo.show("$", f"pattern search --mode {mode} {query!r}", "yellow")
    body = {"query": query, "mode": mode, "limit": 1}
    # A busy machine may be late with the question's vector: that is noticed, and the next question finds it.
    answer = await once(lambda answer: not answer["notice"], partial(home.call, "POST", "search", body=body))
    for hit in answer["hits"]:
        demo.show("│", f"{hit['score']:.2f}  {hit['content']}", "bright_black")
    claim([hit["content"] for hit in answer["hits"]] == [KEPT], f"{query!r} finds the note first")
    claim(not answer["notice"], f"{query!r} finds it with certainty ({answer['notice']})")


def _is_settled(embeddings: Json) -> bool:
    """Return whether all texts have become vectors, or it is known that they will not soon."""
    return bool(embeddings["state"] == "unavailable" or embeddings["done"] >= embeddings["total"])


def note(day: int) -> str:
    """Return what is said on a day."""
    return f"Remember that on day {day:02d} I sowed row {100 + day} of peas."


async def follow(demo: Demo, seen: list[ServerEvent]) -> None:
    """Read events without end; after a lost connection continue after the last one seen (`Last-Event-ID`)."""
    while True:
        with suppress(ServerUnreachable):
            async with demo.home() as home:
                latest = seen[-1].seq if seen else 0
                async with home.events("events", after=latest) as events:
                    async for event in events:
                        seen.append(event)
        await trio.sleep(LOOK_EVERY_S)


def ended(seen: Collection[ServerEvent]) -> list[str]:
    """Return the turns that were seen to end, one entry per terminal event."""
    return [str(event.data["turn_id"]) for event in seen if event.name in TERMINAL]


async def survive(demo: Demo) -> None:
    """Kill the server between messages, start it again, and check that nothing is lost or done twice."""
    seen: list[ServerEvent] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, demo, seen)
        accepted: dict[int, str] = {}
        unfinished = 0
        for count in KILLED_AFTER:
            await send_until_killed(demo, accepted, count)
            unfinished = len(set(accepted.values()) - set(ended(seen)))
            if unfinished or count == KILLED_AFTER[-1]:
                break
            await demo.child.start()
        demo.show("", f"{DAYS} notes for ada. After {len(accepted)}, kill -9; unfinished turns: {unfinished}.")
        _, took_s = await demo.child.start()
        demo.show("", f"Restarted in {took_s:.1f} s: they resume. The client sends all {DAYS} notes again.")
        async with demo.home() as home:
            turns = [await send(home, day) for day in range(1, DAYS + 1)]
        claim(all(turns[day - 1] == turn for day, turn in accepted.items()), "an accepted note starts no second turn")
        with trio.move_on_after(WAIT_S):
            while not set(turns) <= set(ended(seen)):
                await trio.sleep(LOOK_EVERY_S)
        nursery.cancel_scope.cancel()
    async with demo.home() as home:
        await check_survival(demo, home, seen, turns)


async def send_until_killed(demo: Demo, accepted: dict[int, str], count: int) -> None:
    """Send notes until `count` are accepted, and kill the server; `accepted` gets the turn of each day."""

    async def attempt(home: Home, day: int) -> None:
        # Killed under it, it cannot know whether the message was accepted, and sends it again.
        with suppress(ServerUnreachable):
            accepted[day] = await send(home, day)

    async with demo.home() as home, trio.open_nursery() as nursery:
        for day in range(1, count + 1):
            if day not in accepted:
                await attempt(home, day)
        nursery.start_soon(attempt, home, count + 1)
        await trio.sleep(0.001)
        await demo.child.kill()


async def send(home: Home, day: int) -> str:
    """Send the note of a day, always with the same key; its turn."""
    headers = {"Prefer": "respond-async", "Idempotency-Key": f"demo-day-{day:02d}"}
    turn = await home.call("POST", *_MESSAGES, body={"content": note(day)}, headers=headers)
    return str(turn["turn_id"])


async def check_survival(demo: Demo, home: Home, seen: list[ServerEvent], turns: list[str]) -> None:
    """Check what was promised of the notes, their turns and the events of both.

    Raises:
        ClaimFailed: something of it does not hold.
    """
    notes = [note(day) for day in range(1, DAYS + 1)]
    history = await home.pages(*_MESSAGES)
    said = [one["content"] for one in reversed(history) if one["role"] == "user" and one["content"] in notes]
    demo.check(said == notes, f"the history holds all {DAYS} notes, each once, in order")
    content = (await home.get(*_MEMORY))["content"]
    counts = [content.count(f"row {100 + day} ") for day in range(1, DAYS + 1)]
    demo.check(counts == [1] * DAYS, "ada's memory holds each of them once: no tool ran twice")
    ends = [ended(seen).count(turn) for turn in turns]
    demo.check(len(set(turns)) == DAYS and ends == [1] * DAYS, f"{DAYS} turns, each with exactly one end")
    replayed: list[ServerEvent] = []
    async with home.events("events", after=0) as events:
        async for event in events:
            replayed.append(event)
            if event.seq >= seen[-1].seq:
                break
    numbers = lasting(seen)
    demo.check(lasting(replayed) == numbers, f"the event stream resumed: {len(numbers)} events, none missing or twice")


def lasting(events: Collection[ServerEvent]) -> list[int]:
    """Return the numbers of the events that stay; pieces of a message are dropped once the whole message is stored."""
    return [event.seq for event in events if not event.name.endswith(".delta")]


async def approve(demo: Demo) -> None:
    """A call that waits for a person, and runs once when that person agrees."""
    async with demo.home() as home:
        demo.show("$", "pattern rule add block_edit requires_consent --agent ada", "yellow")
        rules = [{"tool": "block_edit", "type": "requires_consent"}]
        await home.change("agents", "ada", by=lambda _: {"tool_rules": rules})
        content = f"Remember that {SECRET}"
        demo.show("you", content, "cyan")
        turn = await home.call("POST", *_MESSAGES, body={"content": content})
        claim(turn["status"] == "waiting", f"the turn waits for a person (it is {turn['status']})")
        claim(await _written(home) == 0, "what was not approved does not run")
        (question,) = (await home.get("approvals", status="pending"))["items"]
        text = question["request"]["arguments"]["content"].strip()
        demo.show("ada", f"(asks for approval to remember: {text})", "magenta")
        demo.show("$", f"pattern approvals approve {question['id']} --always", "yellow")
        await home.call("POST", "approvals", question["id"], body={"decision": "approve", "scope": "always"})
        turn = await once(lambda turn: turn["status"] == "completed", partial(home.get, "turns", turn["turn_id"]))
        claim(turn["status"] == "completed", f"the turn completes (it is {turn['status']})")
        demo.check(await _written(home) == 1, "the call ran after your approval, and only once")


async def _written(home: Home) -> int:
    return int((await home.get(*_MEMORY))["content"].lower().count(SECRET))


async def meet(demo: Demo) -> None:
    """Kill the server while a group works, and check that the round continues where it was."""
    async with demo.home() as home:
        for name in CREW:
            await home.call("POST", "agents", body={"name": name, "model_provider": "embedded"})
        members = [{"agent_id": name} for name in CREW]
        body = {"name": "crew", "pattern_type": "pipeline", "members": members}
        await home.call("POST", "groups", body=body)
    demo.show("$", f"pattern group create crew --pattern pipeline --members {','.join(CREW)}", "yellow")
    demo.show("you", f"{TASK} (each passes its answer to the next)", "cyan")
    before: Json = {}
    for _ in range(ROUNDS_MAX):  # a fast machine may end a round before the signal comes
        before = await begin_round(demo)
        await demo.child.start()
        if before["status"] not in ENDED and before["tree"]:
            break
    done = sum(one["status"] == "completed" for one in before["tree"])
    demo.show("", f"kill -9 after {done} of {len(CREW)} answers. Restarted:")
    async with demo.home() as home:
        ask = partial(home.get, "turns", before["turn_id"])
        turn = await once(lambda turn: turn["status"] in ENDED, ask)
    claim(turn["status"] == "completed", f"the round completes (it is {turn['status']})")
    asked = [one["name"] for one in turn["tree"]]
    demo.show("", f"The round continues: {', '.join(asked)}.")
    demo.check(asked == [*CREW], "every member was asked once, in order; none was skipped or asked again")


async def begin_round(demo: Demo) -> Json:
    """Send the group a message, and kill the server once its first member was asked; the turn as it was just before."""
    async with demo.home() as home:
        headers = {"Prefer": "respond-async"}
        sent = await home.call("POST", "groups", "crew", "messages", body={"content": TASK}, headers=headers)
        turn = await once(lambda turn: bool(turn["tree"]), partial(home.get, "turns", str(sent["turn_id"])))
        await demo.child.kill()
    return turn


async def copy(demo: Demo) -> None:
    """A backup of a busy constellation, and what was restored from it."""
    file = demo.folder.resolve() / "home.db"
    async with demo.home() as home:
        demo.show("$", "pattern backup -c home -o home.db", "yellow")
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(say, home, f"Remember that jar {number} holds plum jam.")
            made = await back_up(home.api, "home", file)
        demo.show("", f"{made['bytes'] // 1024} KiB, verified, copied while ada answered three messages.")
        demo.show("$", "pattern restore home.db --as copy", "yellow")
        await restore_file(home.api, file, "copy")
        demo.show("", "The restored ada remembers:")
        await exchange(demo, Home(home.api, "copy"), QUESTION, FACT)


CHAPTERS: tuple[tuple[str, Callable[[Demo], Awaitable[None]]], ...] = (
    ("Remember", remember),
    ("Merge two changes of one memory", merge),
    ("Search", search),
    ("Survive kill -9 in the middle of work", survive),
    ("Ask for approval", approve),
    ("Keep a group going through kill -9", meet),
    ("Back up and restore", copy),
)


@click.command(epilog="Example: pattern demo")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder to do it in, kept afterwards.  [default: a temporary one, removed]",
)
def demo(data_dir: Path | None) -> None:
    """Show in ten seconds what Pattern does: remember, merge, search, survive kill -9, ask for approval,
    work as a group, back up.

    All of it really happens, without a key and without a network. Exit code 1 if a claim does not hold.

    Example: pattern demo --data-dir ./demo
    """
    output = Output()
    click.get_current_context().exit(reported(output, lambda: trio.run(partial(_demo, data_dir, output))))


async def _demo(data_dir: Path | None, output: Output) -> ExitCode:
    data_dir = data_dir and data_dir.absolute()
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        raise InvalidInput(f"{data_dir} is not empty: name a new folder, or none for a temporary one")
    async with AsyncExitStack() as stack:
        folder = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pattern-demo-")))
        child = ServerProcess(folder.resolve() / "data")
        stack.push_async_callback(child.kill)
        began = trio.current_time()
        with trio.move_on_after(TIME_MAX_S) as limit:
            await _story(Demo(folder=folder, child=child, output=output))
        claim(not limit.cancelled_caught, f"the demo ends within {TIME_MAX_S:.0f} s")
        output.say()
        output.heading(f"Everything above was checked, in {trio.current_time() - began:.0f} s. Now try it yourself:")
        for command, purpose in NEXT:
            output.say(f"   {program()} {command:<6} {purpose}")
        if data_dir is not None:
            output.say(f"The files of this demo are in {data_dir}.")
    return DONE


async def _story(demo: Demo) -> None:
    demo.output.heading("Pattern demo: everything below really happens, on a server of its own")
    for number, (title, chapter) in enumerate(CHAPTERS, 1):
        demo.output.say()
        demo.output.heading(f"{number}. {title}")
        await chapter(demo)
    code = await demo.child.stop()
    claim(code == 0, f"the server stops cleanly after SIGTERM (it ended with code {code})")


def program() -> str:
    """Return what to type for this program: its path where it was called by one and no shell would find its name."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "pattern" and shutil.which("pattern") is None else "pattern"
