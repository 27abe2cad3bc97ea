"""`pattern demo`: a guided tour in which everything really happens, and every claim is checked.

It starts the server that an operator would start, and speaks to it over HTTP as any client would.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import click
import trio

from pattern_core.errors import InvalidInput
from pattern_server.cli.backup import back_up, restore_file
from pattern_server.cli.child import Child
from pattern_server.cli.client import path
from pattern_server.cli.command import ExitCode, reported
from pattern_server.cli.demo_kill import kill_in_mid_work
from pattern_server.cli.demo_memory import consent, explain, find
from pattern_server.cli.demo_months import ask_for_consent, consent_at_last, keep_limits, outgrow_a_window
from pattern_server.cli.demo_tour import Tour, answer_of, claim, exchange, say
from pattern_server.cli.output import DONE, Output

TIME_MAX_S = 180.0  # far beyond the minute that it may take: better a failure than a tour that hangs

TOLD = (
    "Remember that my sister Ruth lives in Lisbon.",
    "Please remember that Ruth is allergic to walnuts.",
    "Note that the boiler was serviced in March by Mr. Okafor.",
)
ASKED = (
    ("What do you know about Ruth?", ("Lisbon", "walnuts")),
    ("What do you remember about the boiler?", ("Okafor",)),
)


@click.command()
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
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        raise InvalidInput(f"{data_dir} is not empty: name a new folder, or none for a temporary one")
    async with AsyncExitStack() as stack:
        folder = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pattern-demo-")))
        child = Child(folder.resolve() / "data")
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
        _meet, _remember, explain, consent, find, ask_for_consent, _survive, consent_at_last,
        keep_limits, outgrow_a_window, _copy, _stop,
    )  # fmt: skip
    for station in stations:
        await station(tour)


async def _meet(tour: Tour) -> None:
    tour.title("1. A server, a constellation, an agent")
    server, took_s = await tour.child.start()
    tour.output.say(f"   pattern serve: ready at {server.url} in {took_s:.1f} s, process {server.pid}")
    async with tour.child.api() as api:
        made = await api.call("POST", path("constellations"), body={"name": "home"})
        agent = {
            "name": "ada",
            "model_provider": "embedded",
            "system_prompt": "You keep notes for a household and answer from them.",
            "memory": [{"label": "human", "content": "", "description": "What I know about the people here."}],
        }
        ada = await api.call("POST", path("constellations", "home", "agents"), body=agent)
    tour.output.say(f"   a constellation: home ({made['id']}), in a database file of its own")
    tour.output.say(f"   an agent: ada, answered by {ada['model_provider']}/{ada['model_name']}, which is rules and no")
    tour.output.say("   language model; with a key it would be one, and everything below would be the same")


async def _remember(tour: Tour) -> None:
    tour.title("2. It remembers what it is told")
    async with tour.child.api() as api:
        for text in TOLD:
            await exchange(tour, api, text)
        for question, expected in ASKED:
            answer = await exchange(tour, api, question)
            for word in expected:
                claim(word in answer, f"the answer to {question!r} holds {word!r}")
        block = await api.get(path("constellations", "home", "agents", "ada", "memory", "human"))
    tour.output.say(f"   Its memory block “human”, which it edited itself, at version {block['version']}:")
    for line in block["content"].splitlines():
        tour.output.say(f"   │ {line}")
    claim("Lisbon" in block["content"], "what it was told stands in its memory")


async def _survive(tour: Tour) -> None:
    tour.title("7. kill -9, in the middle of work")
    await kill_in_mid_work(tour.child, tour.output, claim)


async def _copy(tour: Tour) -> None:
    tour.title("10. A backup while it works, and what it is worth")
    file = tour.folder.resolve() / "home.db"
    async with tour.child.api() as api:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(say, api, "ada", f"Remember that jar {number} holds plum jam.")
            report = await back_up(api, "home", file)
        size = f"{report['bytes'] // 1024} KiB"
        tour.output.say(f"   pattern backup -c home -o home.db: {size}, verified, while three more notes came in")
        restored = await restore_file(api, file, "copy")
        tour.output.say(f"   pattern restore home.db --as copy: {restored['name']} ({restored['id']})")
        question, expected = ASKED[0]
        answer = answer_of(await say(api, "ada", question, constellation="copy"))
        for word in expected:
            claim(word in answer, f"the restored agent still knows {word!r}")
    tour.output.say(f"   the restored ada, asked {question!r}: knows it all")


async def _stop(tour: Tour) -> None:
    code = await tour.child.stop()
    claim(code == 0, f"the server ends cleanly on SIGTERM (it ended with code {code})")
