"""`pattern up`, `down` and `status`: a server in the background, with a model that was found and asked."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata

import click
import trio

from pattern_core.errors import InvalidInput, Unavailable
from pattern_core.models.errors import ModelError
from pattern_core.models.providers import PROVIDERS, not_configured
from pattern_core.models.trial import ModelTrial, try_model
from pattern_db.files import holder_of
from pattern_server.cli.child import FIRST_AGENT, HOME, LOG_FILE, ensure_server, first_agent
from pattern_server.cli.client import Api, Json, RunningServer, connection, running_server
from pattern_server.cli.command import ExitCode, local, unwrapped
from pattern_server.cli.models import ASKED_MAX, speed
from pattern_server.cli.output import DONE, FAILED, Output, cut, in_line
from pattern_server.config import Config, file_of, write_default
from pattern_server.models import open_models
from pattern_server.sections import ProviderConfig
from pattern_server.settings import default_model_of

LOCAL_SERVERS = {"ollama": 11434, "lmstudio": 1234, "llamacpp": 8080, "vllm": 8000}  # by their usual ports
RULES = "embedded"
POLL_S = 0.05
GRACE_S = 10.0  # for a server to stop after its turns had their time
ANSWER_CHARS = 300
NEXT = (
    "Next:",
    "  pattern chat      talk to {agent}",
    "  pattern status    the server and its model",
    "  pattern down      stop it",
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may be asked. `section` configures its provider, if nothing does yet."""

    provider: str
    model: str
    section: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        """The model with its provider, as commands name it."""
        return f"{self.provider}/{self.model}"

    def added_to(self, config: Config) -> Config:
        """Return the configuration with the model's provider."""
        if self.section is None or self.provider in config.providers:
            return config
        entry = ProviderConfig(**dict(self.section))
        return config.model_copy(update={"providers": {**config.providers, self.provider: entry}})


@click.command(epilog="Example: pattern up --yes")
@click.option("--model", "wanted", metavar="PROVIDER/MODEL", help="This model, without looking for others.")
@click.option("--base-url", metavar="URL", help="The provider's address, for any server of OpenAI's format.")
@click.option("--yes", is_flag=True, help="Do not ask: use the first model that is found.")
@local
def up(config: Config, output: Output, wanted: str | None, base_url: str | None, yes: bool) -> ExitCode:
    """Find a model, ask it a question, start the server in the background, and create a first agent.

    Keys in the environment and model servers on this machine are looked for: Ollama, LM Studio, llama.cpp, vLLM. The
    model becomes the default in pattern.toml. A server that runs already reads that file again.
    """
    if base_url is not None and wanted is None:
        raise click.UsageError("--base-url needs --model PROVIDER/MODEL, with any name for the provider.")

    async def run() -> ExitCode:
        with unwrapped():
            return await _up(config, output, wanted, base_url, yes=yes)

    return trio.run(run)


async def _up(config: Config, output: Output, wanted: str | None, base_url: str | None, *, yes: bool) -> ExitCode:
    found, is_new = await _choose(config, output, wanted, base_url, yes=yes)
    done: Json = {"model": None if found is None else found.name, "answer": None, "seconds": None, "file": None}
    if found is None:
        output.say("No model was found, so the embedded rules answer: they remember and search, nothing more.")
        output.say(
            "To connect one, set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, or start Ollama, LM Studio,"
        )
        output.say("llama.cpp or vLLM on this machine; then run `pattern up` again.")
    else:
        trial = await _ask(config, output, found, must_answer=is_new)
        if trial is not None:
            done |= {"answer": trial.answer, "seconds": trial.total_s}
        if is_new:
            file = await trio.to_thread.run_sync(
                partial(write_default, config, found.provider, found.model, found.section)
            )
            done["file"] = str(file)
            output.say(f"Wrote {file}: the default model is {found.name}.")
    with output.progress("Starting the server"):
        server, is_started = await ensure_server(config)
    done |= {"url": server.url, "pid": server.pid, "started": is_started}
    log = f", log in {config.data_dir / LOG_FILE}" if is_started else ""
    output.say(f"{'Started' if is_started else 'Found'} the server at {server.url} (process {server.pid}{log}).")
    async with connection(server) as http:
        api = Api(http, streams=True)
        code = DONE if is_started else await _reload(api, output, found)
        done["created"] = await first_agent(api)
        if done["created"]:
            output.say(f"Created the constellation {HOME} with the agent {FIRST_AGENT}.")
        done["moved"] = [] if found is None else await _move_from_rules(api, output, found)
    output.data(done)
    for line in NEXT:
        output.say(line.format(agent=FIRST_AGENT))
    return code


async def _choose(
    config: Config, output: Output, wanted: str | None, base_url: str | None, *, yes: bool
) -> tuple[Candidate | None, bool]:
    """Return the model to use, None for none, and whether it is to become the default."""
    if wanted is not None:
        return _named(config, wanted, base_url), True
    default = Candidate(config.default_provider, config.default_model)
    is_language_model = PROVIDERS[config.providers[default.provider].kind].is_language_model
    if file_of(config) is not None and default.model and is_language_model:
        return default, False
    all_found, troubles = await find_models(config)
    for name, trouble in troubles.items():
        output.note(f"{name}: {trouble}")
    if not all_found:
        return None, False
    names = [one.name for one in all_found]
    output.say(f"Found {', '.join(names)}.")
    if len(names) == 1 or yes:
        return all_found[0], True
    if not sys.stdin.isatty():
        raise click.UsageError("Several models were found: choose one with --model, or the first one with --yes.")
    for number, name in enumerate(names, start=1):
        output.note(f"  {number}  {name}")
    chosen = click.prompt("Which one", type=click.IntRange(1, len(names)), default=1, err=True)
    return all_found[chosen - 1], True


def _named(config: Config, wanted: str, base_url: str | None) -> Candidate:
    provider, _slash, model = wanted.partition("/")
    if not provider or not model:
        raise InvalidInput(f"--model is written PROVIDER/MODEL, such as ollama/qwen3:8b; got {wanted!r}")
    entry = config.providers.get(provider)
    if base_url is not None:
        if entry is not None and entry.base_url != base_url:
            raise InvalidInput(
                f"the provider {provider!r} is configured already, at another address. Change base_url in"
                f" [providers.{provider}], or choose another name"
            )
        return Candidate(provider, model, _compatible(base_url))
    if entry is not None:
        return Candidate(provider, model, _section(provider))
    if provider not in LOCAL_SERVERS:
        raise InvalidInput(f"{not_configured(provider, sorted(config.providers)).message} Or name its --base-url.")
    return Candidate(provider, model, _compatible(_local_url(LOCAL_SERVERS[provider])))


def _section(provider: str) -> Mapping[str, str] | None:
    """Return what the file says of a vendor that is configured by its variables: without them it is still known."""
    variables = PROVIDERS[provider].variables if provider in PROVIDERS else None
    return None if variables is None else {"api_key_env": f"{variables}_API_KEY"}


def _compatible(base_url: str) -> Mapping[str, str]:
    return {"kind": "openai", "base_url": base_url}


def _local_url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


async def find_models(
    config: Config, ports: Mapping[str, int] = LOCAL_SERVERS
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the models that can be asked, of each configured provider, then of servers on this machine at `ports`; and
    why configured ones do not answer, by name. All are asked at once, for a few seconds.
    """
    taken = {entry.base_url for entry in config.providers.values()} | config.providers.keys()
    local = {name: _compatible(_local_url(port)) for name, port in ports.items()}
    local = {name: section for name, section in local.items() if not {name, section["base_url"]} & taken}
    asked = config
    for name, section in local.items():
        asked = Candidate(name, "", section).added_to(asked)
    async with open_models(asked) as models:
        found = {one.name: one for one in await models.providers() if PROVIDERS[one.kind].is_language_model}
    candidates = [
        Candidate(name, facts.model, local.get(name) or _section(name))
        for name in asked.providers
        if name in found and found[name].trouble is None
        for facts in found[name].models[: 1 if default_model_of(asked, name) else None]
    ]
    return candidates, {name: one.trouble for name, one in found.items() if one.trouble and name not in local}


async def _ask(config: Config, output: Output, found: Candidate, *, must_answer: bool) -> ModelTrial | None:
    """Ask the model a question and show its answer; None if it does not answer, unless it must.

    Raises:
        ModelError: it must answer, and does not.
    """
    output.note(f"Asking {found.name} a question; loading a local model can take a minute …")
    try:
        async with open_models(found.added_to(config)) as models:
            with output.progress("Waiting for its answer"):
                trial = await try_model(models.client, found.provider, found.model, tools=False)
        if not trial.answer:
            raise ModelError(f"{found.name} answered nothing in words.", provider=found.provider)
    except ModelError as error:
        if must_answer:
            output.note("It does not answer, so nothing was changed.")
            raise
        output.note(f"It does not answer: {error.message}")
        return None
    output.say(f"  {trial.question}")
    output.say(f"  > {cut(in_line(trial.answer), ANSWER_CHARS)}")
    output.say(f"  {speed(trial.output_tokens, trial.first_word_s, trial.total_s)}")
    return trial


async def _reload(api: Api, output: Output, found: Candidate | None) -> int:
    """Have a running server read its models again; return the exit code."""
    said = await api.call("POST", "models", "reload")
    if found is None:
        return DONE
    default = f"{said['default_provider']}/{said['default_model']}"
    if default != found.name:
        output.error(f"The running server has another default model, {default}: it reads another file or environment.")
    elif why := said["unusable"].get(found.provider):
        output.error(f"The running server cannot ask {found.provider}: {why}")
    else:
        return DONE
    output.note("To start it with this environment: pattern down, then pattern up.")
    return FAILED


async def _move_from_rules(api: Api, output: Output, found: Candidate) -> list[str]:
    """Give the model to the agents that the embedded rules answered for so far; return their names."""
    moved = []
    for home in await api.pages("constellations", most=ASKED_MAX):
        for agent in await api.pages("constellations", home["id"], "agents"):
            if agent["model_provider"] == RULES and found.provider != RULES:
                body = {"model_provider": found.provider, "model_name": found.model}
                await api.call("PATCH", "constellations", home["id"], "agents", agent["id"], body=body)
                moved.append(f"{home['name']}/{agent['name']}")
    if moved:
        output.say(f"Switched {', '.join(moved)} from the embedded rules to {found.name}.")
    return moved


@click.command(epilog="Example: pattern down")
@local
def down(config: Config, output: Output) -> ExitCode:
    """Stop the server. Running turns have some seconds to end; what is left continues at the next start.

    A second `pattern down` in that time stops it at once.
    """
    server = running_server(config.data_dir)
    if server is None:
        output.result({"stopped": None}, f"No server runs on {config.data_dir}.")
        return DONE
    patience_s = config.supervisor.drain_s + GRACE_S
    output.note(f"Stopping the server (process {server.pid}) …")
    began = trio.run(partial(_stop, config, server, patience_s))
    output.result({"stopped": server.pid, "seconds": began}, f"Stopped after {began:.1f} s.")
    return DONE


async def _stop(config: Config, server: RunningServer, patience_s: float) -> float:
    """Stop a server; return after how many seconds it let the data directory go.

    Raises:
        Unavailable: it did not in time.
    """
    began = trio.current_time()
    os.kill(server.pid, signal.SIGTERM)
    while (holder := holder_of(config.data_dir)) is not None and holder.pid == server.pid:
        if trio.current_time() - began > patience_s:
            raise Unavailable(
                f"the server (process {server.pid}) still runs after {patience_s:.0f} s. `pattern down` again stops"
                f" it at once; if that does not help: kill -9 {server.pid}"
            )
        await trio.sleep(POLL_S)
    return round(trio.current_time() - began, 3)


@click.command(epilog="Example: pattern status")
@local
def status(config: Config, output: Output) -> ExitCode:
    """Show whether the server runs, where, its model, and where its log is. The exit code is 1 if none runs."""
    server = running_server(config.data_dir)
    file, log = file_of(config), config.data_dir / LOG_FILE
    shown: Json = {
        "running": server is not None,
        **({} if server is None else trio.run(_status, server)),
        "data_directory": str(config.data_dir),
        "configuration": None if file is None else str(file),
        "log": str(log) if log.exists() else None,
        "version": metadata.version("pattern-server"),
    }
    output.record(shown)
    if server is None:
        output.note("To start the server: pattern up")
    elif shown["default_model"].startswith(f"{RULES}/"):
        output.note("No language model is configured. To connect one: pattern up")
    return FAILED if server is None else DONE


async def _status(server: RunningServer) -> Json:
    """Return what a running server says of itself."""
    with unwrapped():
        async with connection(server) as http:
            api = Api(http, streams=True)
            models, homes = await api.get("models"), await api.pages("constellations")
    trouble = next((one["trouble"] for one in models["items"] if one["is_default"]), None)
    return {
        "url": server.url,
        "pid": server.pid,
        "started_at": server.started_at,
        "default_model": f"{models['default_provider']}/{models['default_model']}",
        "model_answers": trouble is None,
        **({"model_trouble": trouble} if trouble else {}),
        "constellations": [one["name"] for one in homes],
    }
