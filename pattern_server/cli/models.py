"""`pattern model …`: the models of all providers, a trial of one, and the choice of an agent's or the default one."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pattern_core.budgets.budget import dollars
from pattern_core.errors import InvalidInput
from pattern_server.cli.agents import note_warnings, trouble
from pattern_server.cli.client import Api, Json
from pattern_server.cli.command import ExitCode, Home, PlainGroup, connected
from pattern_server.cli.names import AGENT, Named
from pattern_server.cli.output import DONE, FAILED, Output, cut, in_line

WINDOW_EASY = 8_192  # tokens, of which all tools and an answer use half
WORDS_SHOWN = 120
RATED_S = 0.1  # an answer that comes faster than that says nothing of a rate
ASKED_MAX = 20  # constellations, of which the agents are asked for their models: each has to be opened
NOT_KNOWN: Json = {"window": None, "price": None, "answers": None, "used_by": []}
FORMS = {
    "native": ("ok", "it calls tools in its server's format"),
    "auto": ("ok", "it calls tools in its text, where the calls are found"),
    "text": ("note", 'it calls tools only with instructions: set tool_calls = "text" for it in pattern.toml'),
    "refused": ("note", "its server refuses tools: its agents can only talk"),
    "none": ("note", "it called no tool when asked to, and said: {said}"),
}  # what a trial's `tool_calls` means

model = PlainGroup("model", help="Models: list them, test one, choose an agent's or the default one.")


@model.add("list", runs=connected)
async def list_all(api: Api, output: Output) -> None:
    """List the models of all providers, with window and price, whether they answer, and which agents use them.

    Every provider is asked which models it has, for at most 3 s.
    """
    said = await api.get("models")
    users = await _users(api)
    rows, default = [], f"{said['default_provider']}/{said['default_model']}"
    for provider in said["items"]:
        answers = "no" if provider["trouble"] else "yes"
        for facts in provider["models"]:
            name = f"{provider['name']}/{facts['model']}"
            used_by = [*(["default"] if name == default else []), *users.get(name, [])]
            shown = {"window": f"{facts['window']:,}", "price": _price(facts), "answers": answers, "used_by": used_by}
            rows.append({"model": name, **shown})
        if not provider["models"]:
            rows.append({"model": f"{provider['name']}/-", **NOT_KNOWN, "answers": answers})
    unlisted = users.keys() - {row["model"] for row in rows}
    rows += [{"model": name, **NOT_KNOWN, "used_by": users[name]} for name in sorted(unlisted)]
    output.table(("model", "window", "price", "answers", "used_by"), rows, empty="", data={**said, "used_by": users})
    for provider in said["items"]:
        if provider["trouble"]:
            output.note(f"{provider['name']}: {provider['trouble']}")


async def _users(api: Api) -> dict[str, list[str]]:
    """Return the agents by the name of their model."""
    found: dict[str, list[str]] = {}
    for constellation in await api.pages("constellations", most=ASKED_MAX):
        for agent in await api.pages("constellations", constellation["id"], "agents"):
            name = f"{agent['model_provider']}/{agent['model_name']}"
            found.setdefault(name, []).append(f"{constellation['name']}/{agent['name']}")
    return found


def _price(facts: Json) -> str | None:
    if facts["input_price"] is None or facts["output_price"] is None:
        return None
    return f"{dollars(facts['input_price'])} in, {dollars(facts['output_price'])} out"


@model.add("test", "ollama/qwen3:8b", runs=connected)
@click.argument("name", metavar="PROVIDER/MODEL")
async def test(api: Api, output: Output, name: str) -> ExitCode:
    """Ask a model a question: its answer in words, a tool call, its speed."""
    trial = await api.call("POST", "models", "test", body={"model": name})
    rows = [{"check": check, "state": state, "message": message} for check, state, message in findings(trial)]
    output.table(("check", "state", "message*"), rows, empty="", data=trial)
    return FAILED if any(row["state"] == "problem" for row in rows) else DONE


def findings(trial: Json) -> Iterator[tuple[str, str, str]]:
    """Yield what a trial of a model found: what was checked, `ok`, `note` or `problem`, and a sentence."""
    facts, said, count = trial["facts"], cut(in_line(trial["answer"]), WORDS_SHOWN), trial["output_tokens"]
    yield (
        "window",
        "ok",
        f"{facts['window']:,} tokens ({facts['window_source']}), answers up to {facts['output_max']:,}",
    )
    for sentence in notes({**facts, "is_configured": True}):
        yield "window", "note", sentence
    if said:
        yield "answer", "ok", said
    else:
        yield "answer", "problem", f"it answers nothing in words (finish reason: {trial['finish_reason']})"
    yield "speed", "ok", speed(count, trial["first_word_s"], trial["total_s"])
    if said and trial["finish_reason"] == "length":
        yield "answer", "note", f"it does not end: it was cut (tokens: {count})"
    if thought := trial["thought_chars"]:
        yield "thoughts", "note", f"it thinks first, here {thought} characters, which are output"
    if trial["tool_calls"] in FORMS:
        state, sentence = FORMS[trial["tool_calls"]]
        answer = cut(in_line(trial["tool_answer"]), WORDS_SHOWN) or "nothing"
        yield "tools", state, sentence.format(said=answer)


def speed(count: int, first_s: float, total_s: float) -> str:
    """Return how fast a model answered with `count` tokens."""
    rate = f", {count / (total_s - first_s):.0f} a second" if total_s - first_s > RATED_S else ""
    return f"first word after {first_s:.1f} s, all after {total_s:.1f} s (tokens: {count}{rate})"


def notes(facts: Json) -> Iterator[str]:
    """Yield what a person should know of a model, each a sentence with advice."""
    yield from trouble(facts)
    if facts["window"] < WINDOW_EASY:
        yield (
            f"A window of {facts['window']:,} tokens is small: few tools and a short conversation fit. Give its server"
            " more (OLLAMA_CONTEXT_LENGTH of Ollama, -c of llama.cpp); see data/docs/models.md."
        )


@model.add("set", "ollama/qwen3:8b -a ada", runs=connected)
@click.argument("name", metavar="PROVIDER/MODEL")
@click.option(
    "-c",
    "--constellation",
    metavar="NAME",
    envvar="PATTERN_CONSTELLATION",
    type=Named("constellations", is_only=True, for_="agent"),
    help="The constellation of the agent.",
)
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="The agent.  [default: the default model is set]")
async def set_model(api: Api, output: Output, name: str, constellation: str, agent: str | None) -> None:
    """Set the model of an agent, or without one the default model, in pattern.toml. No restart is needed."""
    if agent is not None:
        provider, _slash, wanted = name.partition("/")
        if not wanted:
            raise InvalidInput(f"a model is written PROVIDER/MODEL, such as ollama/qwen3:8b; got {name!r}")
        home = Home(api, constellation)
        changed = await home.call("PATCH", "agents", agent, body={"model_provider": provider, "model_name": wanted})
        output.result(changed, f"{changed['name']} uses {name} from its next turn on.")
        note_warnings(output, changed)
        return
    changed = await api.call("PUT", "models", "default", body={"model": name})
    output.result(changed, f"The default model is {name}. Agents that exist keep theirs; change one with -c and -a.")
    if why := changed["unusable"].get(changed["default_provider"]):
        output.note(why)
