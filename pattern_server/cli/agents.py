"""`pattern agent …`: the agents of a constellation; their options, their config as KEY=VALUE, and their models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click

from pattern_core.budgets.budget import dollars
from pattern_server.cli.client import Json, json_or_words
from pattern_server.cli.command import Home, in_constellation, json_of, yes_option
from pattern_server.cli.output import Output
from pattern_server.cli.tools import PROFILES, in_profile

F = TypeVar("F", bound=Callable[..., Any])

COLUMNS = ("name", "status", "model_provider", "model_name", "description", "id")
CONFIG_HELP = (
    "A setting, such as limits.steps=20, context_window=32000 or compaction.type=truncate: KEY with dots for what is"
    " within, VALUE as JSON or plain words; KEY= takes it away. Repeatable. REFERENCE.md lists them."
)
RULES_HELP = "Its tool rules: a JSON list, or a file with one; '[]' for none. See also `pattern rule add`."


@click.group()
def agent() -> None:
    """Agents: instructions, a model, tools and memory."""


def fields(function: F) -> F:
    """Return the options that describe an agent, as `create` and `edit` accept them."""
    for option in (
        click.option("--force", is_flag=True, help="Accept a provider that is not configured yet."),
        click.option("--rules", metavar="FILE|JSON", help=RULES_HELP),
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help=CONFIG_HELP),
        click.option(
            "--tool", "tools", multiple=True, metavar="NAME", help="A tool that it may use, and no others; repeatable."
        ),
        click.option("--drop-tool", "dropped", multiple=True, metavar="NAME", help="One tool less; repeatable."),
        click.option("--add-tool", "added", multiple=True, metavar="NAME", help="One tool more; repeatable."),
        click.option(
            "--instructions-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A file with its instructions.",
        ),
        click.option("--instructions", metavar="TEXT", help="Its instructions (the system prompt)."),
        click.option("--model", metavar="NAME", help="The model's name at its provider."),
        click.option(
            "--provider", metavar="NAME", help="anthropic, openai, google, embedded, or one of pattern.toml's."
        ),
        click.option("--description", metavar="TEXT", help="What it is for, in a sentence."),
    ):
        function = option(function)
    return function


def block_of(text: str) -> Json:
    """Return the block in `LABEL=TEXT`.

    Raises:
        click.UsageError: there is no `=`, or no label before it.
    """
    label, sign, content = text.partition("=")
    if not sign or not label.strip():
        raise click.UsageError(f"--memory takes LABEL=TEXT, such as human='Likes tea.'; got {text!r}.")
    return {"label": label.strip(), "content": content}


@agent.command("create")
@click.argument("name")
@fields
@click.option("--memory", multiple=True, metavar="LABEL=TEXT", help="A memory block to begin with; repeatable.")
@in_constellation
async def create(home: Home, output: Output, name: str, memory: tuple[str, ...], **given: Any) -> None:
    """Make an agent called NAME."""
    usual = {"config": {}, "enabled_tools": ["auto"]}
    body = {"name": name, **body_of(**given), **changes_of(usual, await _tools(home, given), **given)}
    if memory:
        body["memory"] = [block_of(text) for text in memory]
    made = await home.call("POST", "agents", body=body)
    output.result(
        made,
        f"Created the agent {made['name']} ({made['model_provider']}/{made['model_name']}).",
        f"Next: pattern chat -c {home.name} --agent {made['name']}",
    )
    await _warn(home, output, made)


async def _tools(home: Home, given: Json) -> Sequence[Json]:
    """Return the tools that an agent may have, if what was given changes those of a profile."""
    return (await home.get("tools"))["items"] if given["dropped"] else ()


async def _warn(home: Home, output: Output, agent: Json) -> None:
    """Say what in an agent's rules contradicts itself or its tools, and what is wrong with its model."""
    note_warnings(output, agent)
    for sentence in trouble(await home.get("agents", agent["id"], "model")):
        output.note(f"Note: {sentence}")


def note_warnings(output: Output, agent: Json) -> None:
    """Say what in an agent's rules contradicts itself or its tools."""
    for warning in agent["rule_warnings"]:
        output.note(f"Note: {warning}.")


@agent.command("list")
@in_constellation
async def list_all(home: Home, output: Output) -> None:
    """List the agents of a constellation."""
    rows = await home.pages("agents")
    output.table(COLUMNS, rows, empty=f"There is no agent yet: pattern agent create NAME -c {home.name}")


@agent.command("show")
@click.argument("name")
@in_constellation
async def show(home: Home, output: Output, name: str) -> None:
    """Show one agent, by name or id: what it is, its settings, and what is known of its model."""
    found, facts = await home.get("agents", name), await home.get("agents", name, "model")
    if output.is_json:
        output.data({**found, "model": facts})
        return
    rules, config = found["tool_rules"], "\n".join(settings_in(found["config"]))
    shown = {
        "config": config or "the defaults; pattern agent edit --set changes them",
        "tool_rules": f"{len(rules)}; pattern rule list shows them" if rules else None,
        "model": "\n".join(model_lines(facts)),
    }
    output.record({**{name: value for name, value in found.items() if name != "rule_warnings"}, **shown})
    note_warnings(output, found)


@agent.command("edit")
@click.argument("name")
@click.option("--name", "new_name", metavar="NAME", help="A new name.")
@fields
@in_constellation
async def edit(home: Home, output: Output, name: str, new_name: str | None, **given: Any) -> None:
    """Change an agent; what is not given stays as it is."""
    body = body_of(**given)
    if new_name is not None:
        body["name"] = new_name
    if not (body.keys() - {"force"} or given["settings"] or given["added"] or given["dropped"]):
        raise click.UsageError("Nothing to change was given; see --help for what can be.")

    there = await _tools(home, given)

    def changes(found: Json) -> Json:
        body.update(changes_of(found, there, **given))
        return body

    changed = await home.api.change(home.at("agents", name), changes)
    output.result(
        changed, f"Changed {changed['name']}: {', '.join(name.replace('_', ' ') for name in body if name != 'force')}."
    )
    await _warn(home, output, changed)


@agent.command("archive")
@click.argument("name")
@in_constellation
async def archive(home: Home, output: Output, name: str) -> None:
    """Let an agent rest: it keeps everything and no longer answers."""
    changed = await home.call("PATCH", "agents", name, body={"status": "archived"})
    output.result(changed, f"Archived {changed['name']}.")


@agent.command("compact")
@click.argument("name")
@in_constellation
async def compact(home: Home, output: Output, name: str) -> None:
    """Take the older part of an agent's conversation out of its prompt, leaving a summary. Nothing is deleted."""
    made = await home.call("POST", "agents", name, "compact")
    if made["messages"]:
        said = (
            f"Archived {made['messages']} messages of {name}: {made['tokens_before']} tokens became"
            f" {made['tokens_after']}. pattern history summaries -c {home.name} -a {name} shows what is kept."
        )
    else:
        said = f"There is nothing in the conversation of {name} that could leave."
    output.result(made, said)
    if made["trouble"]:
        output.note(f"There is no summary: {made['trouble']}.")


@agent.command("delete")
@click.argument("name")
@yes_option
@in_constellation
async def delete(home: Home, output: Output, name: str, yes: bool) -> None:
    """Delete an agent with its messages and its memory."""
    found = await home.get("agents", name)
    output.confirm(f"Delete {found['name']} with everything that it remembers?", yes=yes)
    await home.call("DELETE", "agents", found["id"])
    output.result({"deleted": found["id"]}, f"Deleted {found['name']}.")


def body_of(
    *,
    description: str | None,
    provider: str | None,
    model: str | None,
    instructions: str | None,
    instructions_file: Path | None,
    tools: tuple[str, ...],
    rules: str | None,
    force: bool,
    **changes: Any,
) -> Json:
    """Return the fields that were given as a whole, under the API's names; `changes_of` has the others.

    Raises:
        click.UsageError: the instructions or the tools were given twice, the instructions' file is empty, or the rules
            cannot be read.
    """
    if tools and (changes["added"] or changes["dropped"]):
        raise click.UsageError("--tool names all tools; --add-tool and --drop-tool change some: give one or the other.")
    if instructions is not None and instructions_file is not None:
        raise click.UsageError("Give --instructions or --instructions-file, not both.")
    if instructions_file is not None:
        instructions = instructions_file.read_text(encoding="utf-8")
        if not instructions.strip():
            raise click.UsageError(f"{instructions_file} is empty; for no instructions use --instructions ''.")
    given = {
        "description": description,
        "model_provider": provider,
        "model_name": model,
        "system_prompt": instructions,
        "enabled_tools": list(tools) or None,
        "tool_rules": None if rules is None else json_of("--rules", rules),
        "force": force or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def changes_of(
    found: Json,
    there: Sequence[Json],
    *,
    settings: tuple[str, ...],
    added: Sequence[str],
    dropped: Sequence[str],
    **_whole: Any,
) -> Json:
    """Return the fields that --set, --add-tool and --drop-tool change, made of an agent as it was `found`; `there` are
    the tools that it might have.

    Raises:
        click.UsageError: as `changed_config` and `changed_tools`.
    """
    changed: Json = {}
    if settings:
        changed["config"] = changed_config(found["config"], settings)
    if added or dropped:
        changed["enabled_tools"] = changed_tools(found["enabled_tools"], added, dropped, there)
    return changed


def changed_config(config: Mapping[str, Any], settings: tuple[str, ...]) -> Json:
    """Return the config with what was written as KEY=VALUE: `limits.steps=20` sets `{"limits": {"steps": 20}}` and
    leaves the other limits; `limits.steps=` removes the key, and the object with its last key.

    Raises:
        click.UsageError: one has no `=`, or goes into what is no object; or no agent knows its key.
    """
    changed: Json = json.loads(json.dumps(config))
    # Imported now and not above: the rooms whose settings they are come with it, and few commands need them.
    keys = import_module("pattern_core.agent_settings").KEYS
    for setting in settings:
        key, sign, text = setting.partition("=")
        steps = key.strip().split(".")
        if not sign or not all(steps):
            raise click.UsageError(f"--set takes KEY=VALUE, such as limits.steps=20; got {setting!r}.")
        if steps[0] not in keys:
            raise click.UsageError(f"--set: there is no setting {steps[0]!r}; there are {', '.join(keys)}.")
        _put(changed, steps, text)
    return changed


def changed_tools(
    enabled: Sequence[str], added: Sequence[str], dropped: Sequence[str], tools: Sequence[Json] = ()
) -> list[str]:
    """Return the tools that an agent has, with some more and without others; a profile without one of its tools becomes
    the names of the others.

    Raises:
        click.UsageError: it does not have one that is to be removed.
    """
    if dropped:
        of = {profile: [tool["name"] for tool in tools if in_profile(tool, profile)] for profile in PROFILES}
        enabled = [name for one in enabled for name in (of.get(one, [one]) if one not in dropped else [one])]
    absent = [name for name in dropped if name not in enabled]
    if absent:
        raise click.UsageError(f"--drop-tool: it has no {', '.join(absent)}; it has {', '.join(enabled) or 'none'}.")
    return [name for name in dict.fromkeys((*enabled, *added)) if name not in dropped]


def _put(place: Json, steps: list[str], text: str) -> None:
    name, *rest = steps
    if not rest:
        if text:
            place[name] = json_or_words(text)
        else:
            place.pop(name, None)
        return
    inner = place.setdefault(name, {})
    if not isinstance(inner, dict):
        raise click.UsageError(f"--set: {name} is {json.dumps(inner)} and has no keys; set all of it as JSON.")
    _put(inner, rest, text)
    if not inner:
        del place[name]


def settings_in(config: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the settings of a config, each as it would be written for `--set`."""
    for name, value in config.items():
        if isinstance(value, dict) and value and name != "response_schema":
            yield from settings_in(value, f"{before}{name}.")
        else:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{before}{name}={shown}"


def model_lines(facts: Json) -> Iterator[str]:
    """Yield what is known of an agent's model, in lines: its window, its prices, and what is missing."""
    window = f"{facts['window']:,} tokens ({facts['window_source']})"
    if facts["prompt_window"] < facts["window"]:
        window += f", of which this agent uses {facts['prompt_window']:,}"
    yield f"window {window}; answers up to {facts['output_max']:,}"
    if facts["tool_profile"] is not None:
        names = ", ".join(facts["offered_tools"])
        yield f"tool profile {facts['tool_profile']}, since {facts['tool_profile_reason']}: {names}"
    yield f"price {_price(facts)}"
    able = [name for name in ("tools", "images", "reasoning") if facts[name]]
    yield f"can {', '.join(able)}" if able else "can only answer in words"
    yield from trouble(facts)


def trouble(facts: Json) -> Iterator[str]:
    """Yield what a person should know before talking to an agent with this model, each a sentence with advice."""
    provider, model = facts["provider"], facts["model"]
    section = f'[providers.{provider}.models."{model}"]'
    if not facts["is_configured"]:
        yield (
            f"The provider {provider} is not configured: set its key in the environment and restart the server, or"
            f" write a section [providers.{provider}] in pattern.toml and run `pattern up`."
        )
    if not facts["is_known"]:
        yield (
            f"Nothing is known of the model {model}: {facts['window']:,} tokens are assumed. If it has more, write"
            f" window = … below {section} in pattern.toml."
        )
    elif facts["window_source"] in ("assumed", "unasked") and (facts["trained_window"] or 0) > facts["window"]:
        yield (
            f"The model was made for {facts['trained_window']:,} tokens; its server decides how many there are, and"
            f" {facts['window']:,} are assumed. If there are more, write window = … below {section} in pattern.toml."
        )

    if problem := facts.get("window_trouble"):
        yield f"It cannot answer any message: {problem}."


def _price(facts: Json) -> str:
    if facts["input_price"] is None or facts["output_price"] is None:
        return "not known; calls are counted in tokens only"
    cached = "" if facts["cache_read_price"] is None else f" ({dollars(facts['cache_read_price'])} cached)"
    prices = f"{dollars(facts['input_price'])} in{cached}, {dollars(facts['output_price'])} out per million tokens"
    return prices + (f", as of {facts['as_of']}" if facts["as_of"] else "")
