"""`pattern embeddings`: how far texts have become vectors, and going over to another model."""

from __future__ import annotations

from typing import Any

import click
import trio

from pattern_core.errors import InvalidInput
from pattern_server.cli.client import Api, Json, ServerFailed, path
from pattern_server.cli.command import ExitCode, Home, connected
from pattern_server.cli.output import FAILED, Output

LOOK_EVERY_S = 1.0

_one_or_all = click.option("-c", "--constellation", metavar="NAME", help="The constellation, by name or id.")
_all = click.option("--all", "is_all", is_flag=True, help="Every constellation.")
_wait = click.option("--wait", is_flag=True, help="Wait until it is done, with a bar.")


@click.group()
def embeddings() -> None:
    """Search by meaning: how far texts have become vectors, and going over to another model."""


@embeddings.command()
@_one_or_all
@_wait
@connected
async def status(api: Api, output: Output, constellation: str | None, wait: bool) -> None:
    """How many texts have vectors, of which model, and what holds it up.

    A text's vector stands for its meaning; search compares it with the question's. Texts get theirs in the background.
    """
    rows = []
    for name in await _chosen(api, constellation, is_all=constellation is None):
        state = await (_until_done(api, output, name) if wait else Home(api, name).get("embeddings"))
        rows.append({"constellation": name, **state})
    if output.is_json:
        output.data(rows if constellation is None else rows[0])
        return
    columns = ("constellation", "state", "texts", "model", "next_model")
    output.table(columns, rows, empty="There is no constellation.", shown=_row)
    for row in rows:
        _explain(output, row)


@embeddings.command()
@_one_or_all
@_all
@click.option("--cancel", is_flag=True, help="Give up a switch that is under way; the old vectors stay.")
@_wait
@connected
async def switch(
    api: Api, output: Output, constellation: str | None, is_all: bool, cancel: bool, wait: bool
) -> ExitCode:
    """Go over to the model that is configured under [embeddings]. Search continues with the old vectors meanwhile."""
    method, done = ("DELETE", "given up") if cancel else ("POST", "begun")
    return await _act(api, output, constellation, is_all=is_all, act=(method, "switch", done), wait=wait and not cancel)


@embeddings.command()
@_one_or_all
@_all
@_wait
@connected
async def rebuild(api: Api, output: Output, constellation: str | None, is_all: bool, wait: bool) -> ExitCode:
    """Look at every text again, and embed those whose vectors are not up to date."""
    return await _act(api, output, constellation, is_all=is_all, act=("POST", "rebuild", "begun"), wait=wait)


def _row(row: Json) -> Json:
    states = {
        "idle": "up to date" if row["total"] else "no text yet",
        "working": "embedding",
        "waiting": "waiting for the model",
        "unavailable": "stopped",
    }
    return {
        "constellation": row["constellation"],
        "state": states[row["state"]],
        "texts": f"{row['done']} of {row['total']}",
        "model": _model(row["active"]),
        "next_model": _model(row["building"]),
    }


def _model(state: Json | None) -> str:
    return "-" if state is None else f"{state['model']} ({state['dimension']})"


def _explain(output: Output, row: Json) -> None:
    """Print what the table cannot say: what holds it up, what to do, and what is left out."""
    name, active, building = row["constellation"], row["active"], row["building"]
    if row["reason"]:
        output.note(f"{name}: {row['reason']}")
    elif row["switch_needed"]:
        output.note(
            f"{name}: {_model(row['configured'])} is configured now, and search still answers from"
            f" {_model(active)}; `pattern embeddings switch -c {name}` goes over to the new one"
        )
    elif building is not None:
        output.note(f"{name}: search answers from {_model(active)} until {_model(building)} has every text")
    if row["skipped"]:
        output.note(
            f"{name}: the model refused {row['skipped']} of the texts, which only words find;"
            f" `pattern embeddings rebuild -c {name}` tries them again"
        )
        for refusal in row["refusals"]:
            output.note(f"  {refusal['kind']} {refusal['ref']}: {refusal['reason']}")


async def _act(
    api: Api, output: Output, constellation: str | None, *, is_all: bool, act: tuple[str, str, str], wait: bool
) -> ExitCode:
    """Ask each chosen constellation for it; with --all, one that refuses does not keep it from the others."""
    method, what, done = act
    results: list[Json] = []
    for name in await _chosen(api, constellation, is_all=is_all):
        try:
            state = await Home(api, name).call(method, "embeddings", what)
            if wait:
                state = await _until_done(api, output, name)
            results.append({"constellation": name, **state})
            if what == "switch" and state["building"] is None:  # given up, or complete already
                done = f"search answers from {_model(state['active'])}"
            output.say(f"{name}: {state['done']} of {state['total']} texts" if wait else f"{name}: {done}")
        except ServerFailed as error:
            if not is_all:
                raise
            results.append({"constellation": name, "error": error.message})
            output.note(f"{name}: {error.message}")
    output.data(results if is_all else results[0])
    return FAILED if any("error" in result for result in results) else None


async def _until_done(api: Api, output: Output, name: str) -> Any:
    """Return the state once nothing is left to do, or nothing can be done; the bar shows how far it is."""
    state = await Home(api, name).get("embeddings")
    with output.progress(f"Embedding {name}", state["total"]) as advance:
        shown = 0
        while True:
            for _text in range(shown, state["done"]):
                advance()
            shown = max(shown, state["done"])
            if state["state"] == "unavailable":
                raise InvalidInput(state["reason"])
            # With a reason, what was being built is not continued.
            is_built = state["building"] is None or state["reason"]
            if is_built and state["state"] == "idle" and state["done"] >= state["total"]:
                return state
            await trio.sleep(LOOK_EVERY_S)
            state = await Home(api, name).get("embeddings")


async def _chosen(api: Api, constellation: str | None, *, is_all: bool) -> list[str]:
    if constellation is not None and not is_all:
        return [constellation]
    if constellation is not None or not is_all:
        raise click.UsageError("Say which: either -c NAME or --all.")
    return [row["name"] for row in await api.pages(path("constellations"))]
