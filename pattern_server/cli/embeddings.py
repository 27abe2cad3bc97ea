"""`pattern embeddings`: progress of the vectors for search by meaning, and switching the model."""

from __future__ import annotations

from typing import Any

import click
import trio

from pattern_core.errors import Unavailable
from pattern_server.cli.client import Api, Json, ServerFailed
from pattern_server.cli.command import ExitCode, Home, PlainGroup, connected
from pattern_server.cli.names import CONSTELLATION
from pattern_server.cli.output import FAILED, Output

LOOK_EVERY_S = 1.0

_one_or_all = click.option(
    "-c", "--constellation", metavar="NAME", type=CONSTELLATION, help="The constellation, by name or id."
)
_all = click.option("--all", "is_all", is_flag=True, help="Every constellation.")
_wait = click.option("--wait", is_flag=True, help="Wait until it is done, and show the progress.")


embeddings = PlainGroup(
    "embeddings", help="Vectors for search by meaning: their progress, and switching the embedding model."
)


@embeddings.add("status", "--wait", runs=connected)
@_one_or_all
@_wait
async def status(api: Api, output: Output, constellation: str | None, wait: bool) -> None:
    """Show how many texts have vectors, of which model, and problems.

    A vector represents the meaning of a text; search compares it with that of the query. Vectors are computed in the
    background.
    """
    rows = []
    for name in await _chosen(api, constellation, is_all=constellation is None):
        state = await (_until_done(api, output, name) if wait else Home(api, name).get("embeddings"))
        rows.append({"constellation": name, **state})
    if output.is_json:
        output.data(rows if constellation is None else rows[0])
        return
    columns = ("constellation", "state", "texts", "model?", "next_model?")
    output.table(columns, rows, empty="There are no constellations.", shown=_row)
    for row in rows:
        _explain(output, row)


@embeddings.add("switch", "-c home --wait", runs=connected)
@_one_or_all
@_all
@click.option("--cancel", is_flag=True, help="Cancel a running switch; the old vectors are kept.")
@_wait
async def switch(
    api: Api, output: Output, constellation: str | None, is_all: bool, cancel: bool, wait: bool
) -> ExitCode:
    """Switch to the model configured under [embeddings]. Until it is done, search uses the old vectors."""
    method, done = ("DELETE", "cancelled") if cancel else ("POST", "started")
    return await _act(api, output, constellation, method, "switch", done, is_all=is_all, wait=wait and not cancel)


@embeddings.add("rebuild", "-c home", runs=connected)
@_one_or_all
@_all
@_wait
async def rebuild(api: Api, output: Output, constellation: str | None, is_all: bool, wait: bool) -> ExitCode:
    """Check every text, and compute vectors that are missing or out of date."""
    return await _act(api, output, constellation, "POST", "rebuild", "started", is_all=is_all, wait=wait)


def _row(row: Json) -> Json:
    states = {
        "idle": "up to date" if row["total"] else "no texts yet",
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
    """Print notes: what prevents progress, what to do, and which texts were skipped."""
    name, active, building = row["constellation"], row["active"], row["building"]
    if row["reason"]:
        output.note(f"{name}: {row['reason']}")
    elif row["switch_needed"]:
        output.note(
            f"{name}: {_model(row['configured'])} is configured, but search still uses {_model(active)}."
            f" Switch with: pattern embeddings switch -c {name}"
        )
    elif building is not None:
        output.note(f"{name}: search uses {_model(active)} until {_model(building)} has every text")
    if row["skipped"]:
        output.note(
            f"{name}: texts that the model refused, which are only found by words: {row['skipped']}."
            f" Retry with: pattern embeddings rebuild -c {name}"
        )
        for refusal in row["refusals"]:
            output.note(f"  {refusal['kind']} {refusal['ref']}: {refusal['reason']}")


async def _act(
    api: Api, output: Output, constellation: str | None, method: str, what: str, done: str, *, is_all: bool, wait: bool
) -> ExitCode:
    """Request it for each chosen constellation; with --all, continue after one that refuses."""
    results: list[Json] = []
    for name in await _chosen(api, constellation, is_all=is_all):
        try:
            state = await Home(api, name).call(method, "embeddings", what)
            if wait:
                state = await _until_done(api, output, name)
            results.append({"constellation": name, **state})
            is_over = what == "switch" and state["building"] is None  # cancelled, or complete already
            told = f"search uses {_model(state['active'])}" if is_over else done
            output.say(f"{name}: texts embedded: {state['done']} of {state['total']}" if wait else f"{name}: {told}")
        except ServerFailed as error:
            if not is_all:
                raise
            results.append({"constellation": name, "error": error.message})
            output.note(f"{name}: {error.message}")
    output.data(results if is_all else results[0])
    return FAILED if any("error" in result for result in results) else None


async def _until_done(api: Api, output: Output, name: str) -> Any:
    """Return the state when everything is done; the bar shows the progress."""
    state = await Home(api, name).get("embeddings")
    with output.progress(f"Embedding {name}", state["total"]) as advance:
        shown = 0
        while True:
            for _text in range(shown, state["done"]):
                advance()
            shown = max(shown, state["done"])
            if state["state"] == "unavailable":
                raise Unavailable(state["reason"])
            # With a reason, the new vectors are not continued.
            is_built = state["building"] is None or state["reason"]
            if is_built and state["state"] == "idle" and state["done"] >= state["total"]:
                return state
            await trio.sleep(LOOK_EVERY_S)
            state = await Home(api, name).get("embeddings")


async def _chosen(api: Api, constellation: str | None, *, is_all: bool) -> list[str]:
    if constellation is not None and not is_all:
        return [constellation]
    if constellation is not None or not is_all:
        raise click.UsageError("No constellation was named. Use -c NAME or --all, not both.")
    return [row["name"] for row in await api.pages("constellations")]
