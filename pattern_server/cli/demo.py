"""`pattern demo`: a guided tour in which everything really happens, and every claim is checked.

It starts the server that an operator would start, and speaks to it over HTTP as any client would.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import trio

from pattern_core.errors import InvalidInput
from pattern_server.cli.approvals import what_is_asked
from pattern_server.cli.backup import back_up, restore_file
from pattern_server.cli.child import ServerProcess
from pattern_server.cli.client import Json, path
from pattern_server.cli.command import ExitCode, Home, reported
from pattern_server.cli.demo_kill import claim, kill_in_mid_work
from pattern_server.cli.output import DONE, Output
from pattern_server.cli.turns import headline, part_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Tour:
    """What the stations of the tour share."""

    folder: Path
    child: ServerProcess
    output: Output

    def title(self, text: str) -> None:
        """Begin a station."""
        self.output.say()
        self.output.heading(text)

    def say(self, text: str) -> None:
        """Print a line of a station, indented."""
        self.output.say(f"   {text}")

    @asynccontextmanager
    async def home(self) -> AsyncIterator[Home]:
        """Yield the tour's constellation, through the API of the server that runs now."""
        async with self.child.api() as api:
            yield Home(api, "home")


async def say(home: Home, content: str) -> Json:
    """Send ada a message and wait for the turn to complete; the turn.

    Raises:
        ClaimFailed: the turn ended otherwise.
    """
    turn = await home.call("POST", "agents", "ada", "messages", body={"content": content})
    claim(turn["status"] == "completed", f"the turn of {content!r} completes (it ended as {turn['status']})")
    return turn


def answer_of(turn: Json) -> str:
    """Return the agent's words in a turn."""
    return "\n".join(said["content"] for said in turn["messages"] if said["role"] == "assistant" and said["content"])


async def exchange(tour: Tour, home: Home, text: str) -> str:
    """Say something to ada in view of the audience; its answer.

    Raises:
        ClaimFailed: there is none.
    """
    answer = answer_of(await say(home, text))
    tour.say(f"you> {text}")
    tour.say("ada> " + "\n        ".join(answer.splitlines()))
    claim(answer.strip(), f"there is an answer to {text!r}")
    return answer


VECTORS_WAIT_S = 20.0  # a model that is installed is loaded meanwhile, on a slow machine too
LOOK_EVERY_S = 0.1
SHOWN_CHARS = 74
HITS = 2

YOURS = "The spare key is under the third flower pot."
HERS = "Remember that the cat is called Fig."
KEPT = "Winter 2024: a frozen pipe burst in the cellar; the plumber Ines Duarte fixed it within an hour."
FILE = "boiler.md"
MANUAL = """# The boiler

The pressure should be between 1.0 and 1.5 bar. If it drops, open the blue valve slowly.

Once a year the burner is cleaned.
"""
# The first shares words with what it is to find, the second none.
BY_WORDS, BY_MEANING = "frozen pipe", "flooded basement"

_HUMAN = ("agents", "ada", "memory", "human")


async def explain(tour: Tour) -> None:
    """Two authors change one block, and one of them changes their mind."""
    tour.title("3. Every change has an author and a cause, and can be taken back alone")
    async with tour.home() as home:
        before = await home.get(*_HUMAN)
        written = {"content": f"{before['content']}{YOURS}\n", "base_version": before["version"]}
        await home.call("PUT", *_HUMAN, body=written)
        tour.say(f"you write into the block:  {YOURS}")
        await exchange(tour, home, HERS)
        undone = await home.call("POST", *_HUMAN, "undo", body={})
        tour.say("pattern memory undo human -c home -a ada: your line goes, what ada wrote after it stays")
        content = undone["block"]["content"]
        claim(YOURS not in content, "an undone line is gone")
        claim("Fig" in content, "undoing one author's change leaves the other's")
        versions = (await home.get(*_HUMAN, "history", limit=3))["items"]
        lines = (await home.get(*_HUMAN, "blame"))["lines"]
    for one in versions:
        author = str(one["author"]).partition(":")[0]
        tour.say(f"│ version {one['version']}  by {author:<5}  {str(one['summary'])[:50]}")
    claim([one["kind"] for one in versions] == ["undo", "edit", "edit"], "the undo is a new version; nothing is erased")
    (line,) = [one for one in lines if "Fig" in one["text"]]
    claim(line["author"].startswith("agent:") and line["cause"].get("turn"), "a line names its author and its turn")
    tour.say(f"the line about Fig is ada's, version {line['version']}, from the turn {line['cause']['turn']}")


async def find(tour: Tour) -> None:
    """Archive, a file, and one search over everything, by meaning where there is a model for it."""
    tour.title("4. It finds what was said, kept and filed")
    async with tour.home() as home:
        await home.call("POST", "agents", "ada", "archival", body={"content": KEPT, "tags": ["house"]})
        await home.call("POST", "folders", body={"name": "manuals", "description": "How things in the house work."})
        await home.api.put_bytes(home.at("folders", "manuals", "files", FILE), MANUAL.encode())
        await home.call("POST", "folders", "manuals", "attachments", body={"agent": "ada"})
        tour.say(f"put into ada's archive: a note about a pipe; into a folder that she may read: {FILE}")
        answer = await exchange(tour, home, "What should the pressure of the boiler be?")
        claim("1.5 bar" in answer, "the agent answers from the file")
        hits = (await _search(tour, home, "walnuts"))["hits"]
        claim(any("allergic to walnuts" in hit["content"] for hit in hits), "the search finds the walnuts")
        hits = (await _search(tour, home, BY_WORDS))["hits"]
        claim("Ines Duarte" in hits[0]["content"], "the search finds what was archived")
        await _find_by_meaning(tour, home)


async def _find_by_meaning(tour: Tour, home: Home) -> None:
    state = await _once(_is_settled, home, "embeddings", wait_s=VECTORS_WAIT_S)
    if state["state"] == "unavailable":
        tour.say(f"by words alone, since there is no model for meaning here: {state['reason']}")
        return
    tour.say(f"and by meaning ({state['model']}), with no word in common:")
    answer = await _search(tour, home, BY_MEANING)
    if answer["notice"]:
        tour.say(answer["notice"])
        return
    claim("Ines Duarte" in answer["hits"][0]["content"], f"{BY_MEANING!r} finds the burst pipe")


async def _search(tour: Tour, home: Home, query: str) -> Json:
    answer = await home.call("POST", "search", body={"query": query, "limit": HITS})
    tour.say(f"pattern search -c home {query!r}")
    for hit in answer["hits"]:
        text = " ".join(str(hit["content"]).split())
        tour.say(f"{hit['score']:5.2f}  {hit['kind']:<9} {text[:SHOWN_CHARS]}")
    return answer


def _is_settled(embeddings: Json) -> bool:
    """Return whether all texts have become vectors, or it is known that they will not soon."""
    return bool(embeddings["state"] == "unavailable" or embeddings["done"] >= embeddings["total"])


async def _once(is_done: Callable[[Json], bool], home: Home, *place: str, wait_s: float) -> Json:
    """Return what is at a place of the API once it is done, or as it is after `wait_s` seconds."""
    found = await home.get(*place)
    with trio.move_on_after(wait_s):
        while not is_done(found):
            await trio.sleep(LOOK_EVERY_S)
            found = await home.get(*place)
    return found


CODE = "the code of the garden gate is 4711."
BUDGET_TOKENS = 500
WAIT_S = 20.0
PARTS_SHOWN = 5


async def ask_for_consent(tour: Tour) -> None:
    """Show a call that waits for a person; it is not answered yet."""
    tour.title("5. A call that waits for your consent")
    rule = {"tool": "block_edit", "type": "requires_consent"}
    agent = {"name": "cleo", "model_provider": "embedded", "memory": [{"label": "human", "content": ""}]}
    async with tour.home() as home:
        await home.call("POST", "agents", body={**agent, "tool_rules": [rule]})
        body = {"content": f"Remember that {CODE}"}
        turn = await home.call("POST", "agents", "cleo", "messages", body=body)
    claim(turn["status"] == "waiting", f"the turn waits for a person (it is {turn['status']})")
    tour.say(f"you> {body['content']}")
    tour.say("cleo wants to call block_edit, for which a rule wants your consent. Her turn waits, as rows on the disk")


async def consent_at_last(tour: Tour) -> None:
    """Show that what was asked before the server died is agreed to now, and done once."""
    async with tour.home() as home:
        (question,) = (await home.get("approvals", status="pending"))["items"]
        tour.say(f"✓ what cleo asked is still open: {what_is_asked(question['request'])}")
        await home.call("POST", "approvals", question["id"], body={"decision": "approve"})
        place = ("turns", question["request"]["turn_id"])
        turn = await _once(lambda turn: turn["status"] == "completed", home, *place, wait_s=WAIT_S)
        claim(turn["status"] == "completed", f"the turn completes (it is {turn['status']})")
        content = (await home.get("agents", "cleo", "memory", "human"))["content"]
    claim(content.lower().count(CODE) == 1, f"what was agreed to after the kill is done once (memory: {content!r})")
    tour.say("pattern approvals approve …: the call ran, once, and her turn completed")


async def keep_limits(tour: Tour) -> None:
    """Show that a budget is kept before anything is spent, and every prompt can be explained."""
    tour.title("7. A budget that is checked before each call, and a prompt that explains itself")
    async with tour.home() as home:
        budget = {"scope": "agent", "agent": "cleo", "period": "day", "unit": "tokens"}
        spent = await _input_tokens(home)
        made = await home.call("PUT", "budgets", body={**budget, "amount": spent + BUDGET_TOKENS})
        tour.say(f"pattern budget set -c home --agent cleo --per day --tokens {made['amount']}")
        turn = await home.call("POST", "agents", "cleo", "messages", body={"content": "What is the code of the gate?"})
        claim(turn["status"] == "limit", f"a call that might pass a budget is not made (it ended as {turn['status']})")
        claim(await _input_tokens(home) == spent, "a call that was not made costs nothing")
        tour.say(f"cleo's next turn ends as {turn['status']}: {turn['error']['message']}")
        await home.call("DELETE", "budgets", made["id"])
        turn = await home.call("POST", "agents", "cleo", "messages", body={"content": "What is the code of the gate?"})
        claim(turn["status"] == "completed", "without the budget the turn completes")
        (step, *_) = (await home.get("turns", turn["turn_id"], "prompt"))["steps"]
    tour.say(f"without it she answers, and pattern why {turn['turn_id']} -c home shows what she was shown:")
    tour.say(headline(step))
    for part in map(part_row, step["parts"][:PARTS_SHOWN]):
        tour.say(f"│ {part['part']:<22} {part['tokens'] or 0:>5} tokens  {part['why']}")
    claim(any(part["name"] == "human" for part in step["parts"]), "a prompt's explanation names the blocks in it")


async def _input_tokens(home: Home) -> int:
    return int((await home.get("usage", agent="cleo"))["total"]["input_tokens"])


TIME_MAX_S = 180.0  # far beyond the minute that it may take: better a failure than a tour that hangs

NOTES = (
    "Remember that my sister Ruth lives in Lisbon.",
    "Please remember that Ruth is allergic to walnuts.",
    "Note that the boiler was serviced in March by Mr. Okafor.",
)
ASKED = (
    ("What do you know about Ruth?", ("Lisbon", "walnuts")),
    ("What do you remember about the boiler?", ("Okafor",)),
)


@click.command(epilog="Example: pattern demo")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder to do it in, kept afterwards.  [default: a temporary one, removed]",
)
def demo(data_dir: Path | None) -> None:
    """A guided tour that really runs: a server, an agent, memory, consent, search, kill -9, budgets, backup.

    Under a minute, without a key, without a network. Exit code 1 if anything does not hold.
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
            await _tour(Tour(folder=folder, child=child, output=output))
        claim(not limit.cancelled_caught, f"the tour takes less than {TIME_MAX_S:.0f} s")
        output.say()
        output.heading(f"All of it held, in {trio.current_time() - began:.0f} s.")
        output.say("Your own server:  pattern serve     Its pages:  http://127.0.0.1:8470/docs")
        if data_dir is not None:
            output.say(f"The files of this tour are in {data_dir}.")
    return DONE


async def _tour(tour: Tour) -> None:
    tour.output.heading("Pattern: a guided tour. All of this really happens, in " + str(tour.folder))
    stations: tuple[Callable[[Tour], Awaitable[None]], ...] = (
        _meet, _remember, explain, find, ask_for_consent, _survive, consent_at_last,
        keep_limits, _copy, _stop,
    )  # fmt: skip
    for station in stations:
        await station(tour)


async def _meet(tour: Tour) -> None:
    tour.title("1. A server, a constellation, an agent")
    server, took_s = await tour.child.start()
    tour.say(f"pattern serve: ready at {server.url} in {took_s:.1f} s, process {server.pid}")
    async with tour.home() as home:
        made = await home.api.call("POST", path("constellations"), body={"name": "home"})
        agent = {
            "name": "ada",
            "model_provider": "embedded",
            "system_prompt": "You keep notes for a household and answer from them.",
            "memory": [{"label": "human", "content": "", "description": "What I know about the people here."}],
        }
        ada = await home.call("POST", "agents", body=agent)
    tour.say(f"a constellation: home ({made['id']}), in a database file of its own")
    tour.say(f"an agent: ada, answered by {ada['model_provider']}/{ada['model_name']}, which is rules and no")
    tour.say("language model; with a key it would be one, and everything below would be the same")


async def _remember(tour: Tour) -> None:
    tour.title("2. It remembers what you say")
    async with tour.home() as home:
        for text in NOTES:
            await exchange(tour, home, text)
        for question, expected in ASKED:
            answer = await exchange(tour, home, question)
            for word in expected:
                claim(word in answer, f"the answer to {question!r} holds {word!r}")
        block = await home.get(*_HUMAN)
    tour.say(f"Its memory block “human”, which it edited itself, at version {block['version']}:")
    for line in block["content"].splitlines():
        tour.say(f"│ {line}")
    claim("Lisbon" in block["content"], "what was said stands in its memory")


async def _survive(tour: Tour) -> None:
    tour.title("6. kill -9, in the middle of work")
    await kill_in_mid_work(tour.child, tour.output)


async def _copy(tour: Tour) -> None:
    tour.title("8. A backup while it works, and what it is worth")
    file = tour.folder.resolve() / "home.db"
    async with tour.home() as home:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(say, home, f"Remember that jar {number} holds plum jam.")
            report = await back_up(home.api, "home", file)
        size = f"{report['bytes'] // 1024} KiB"
        tour.say(f"pattern backup -c home -o home.db: {size}, verified, while three more notes came in")
        restored = await restore_file(home.api, file, "copy")
        tour.say(f"pattern restore home.db --as copy: {restored['name']} ({restored['id']})")
        question, expected = ASKED[0]
        answer = answer_of(await say(Home(home.api, "copy"), question))
        for word in expected:
            claim(word in answer, f"the restored agent still knows {word!r}")
    tour.say(f"the restored ada, asked {question!r}: knows it all")


async def _stop(tour: Tour) -> None:
    code = await tour.child.stop()
    claim(code == 0, f"the server ends cleanly on SIGTERM (it ended with code {code})")
