"""`pattern doctor`: what is wrong with this installation, and what to do about it. It changes nothing."""

from __future__ import annotations

import math
import os
import platform
import resource
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click
import httpx2
import trio

from pattern_core.embeddings.embedder import EmbedderInfo, EmbedderUnavailable
from pattern_core.embeddings.providers import make_embedder
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.ids import system_randomness
from pattern_core.messages import Reasoning, Text, ToolCall, user
from pattern_core.models.client import ModelClient
from pattern_core.models.errors import ModelError, ModelNotConfigured
from pattern_core.models.model import Delta, ModelFacts, ModelReply, ModelRequest, Provider, ToolCalls, ToolSpec
from pattern_core.models.providers import PROVIDERS, make_provider
from pattern_core.models.routing import ModelChain
from pattern_core.models.throttle import RetryPolicy
from pattern_core.shell.child import confinement
from pattern_core.views import Condition, condition
from pattern_db.connection import open_connection, open_in_memory
from pattern_db.errors import DatabaseError, translated
from pattern_db.files import holder_of
from pattern_db.migrate import migrations_of
from pattern_server.cli.agents import trouble
from pattern_server.cli.client import RunningServer, ServerUnreachable, connection, running_server
from pattern_server.cli.command import ExitCode, local
from pattern_server.cli.db import targets
from pattern_server.cli.output import DONE, FAILED, Output, cut, in_line
from pattern_server.config import Config, file_of, require_data, unknown_variables
from pattern_server.sections import EmbeddingsConfig
from pattern_server.settings import catalogue_of, configured_mcp, embedder_settings, provider_settings, shell_settings

DISK_BYTES_MIN = 100 * 1024 * 1024
DISK_BYTES_EASY = 1024 * 1024 * 1024
DESCRIPTORS_EASY = 1024
ANSWER_TIMEOUT_S = 5.0
ANSWER_TOKENS_MAX = 1_024  # of a model that is tried; some think before they answer
WORDS_SHOWN = 120
WINDOW_EASY = 8_192  # tokens, of which all tools and an answer take half
EMBEDDER_TIMEOUT_S = 20.0  # it may have to find and check its weights

State = Literal["ok", "note", "problem"]
Looked: TypeAlias = Iterator[tuple[State, str]]  # what was found, a sentence each


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing looked at. A `note` may be intended; a `problem` needs work, and the message says what."""

    check: str
    state: State
    message: str


@click.command(epilog="Example: pattern doctor")
@click.option("--model", metavar="PROVIDER/MODEL", help="Ask this model instead: words, a tool call, its speed.")
@local
def doctor(config: Config, output: Output, model: str | None) -> ExitCode:
    """Look at everything that a server needs, and say what is wrong and what to do. Changes nothing."""
    findings = list(examine(config)) if model is None else trio.run(try_model, config, model)
    rows = [asdict(finding) for finding in findings]
    output.table(("check", "state", "message"), rows, empty="")
    problems = sum(finding.state == "problem" for finding in findings)
    output.say()
    output.say(f"{problems} to fix." if problems else "Nothing is wrong here.")
    return FAILED if problems else DONE


def examine(config: Config) -> Iterator[DoctorFinding]:
    """Look at everything, in the order of `CHECKS`."""
    is_usable = _is_usable(config.data_dir)
    for check, look in CHECKS:
        if is_usable or look not in (_server, _databases):
            yield from (DoctorFinding(check, state, message) for state, message in look(config))


def _python(_config: Config) -> Looked:
    yield "ok", f"{platform.python_version()}, {platform.system()} {platform.machine()}"


def _sqlite(_config: Config) -> Looked:
    try:
        with closing(open_in_memory()):
            versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("apsw", "sqlite-vec", "loro", "trio"))
        yield "ok", f"opens, with vectors ({versions})"
    except (DatabaseError, metadata.PackageNotFoundError) as error:
        yield "problem", f"{error}; install again: {sys.executable} -m pip install --force-reinstall pattern-server"


def _migrations(_config: Config) -> Looked:
    try:
        yield "ok", f"present, newest is version {migrations_of('constellation').newest}"
    except FileNotFoundError as error:
        yield "problem", str(error)


def _disk(config: Config) -> Looked:
    folder = config.data_dir.absolute()
    free = shutil.disk_usage(next(one for one in (folder, *folder.parents) if one.exists())).free
    text = f"{free / 1024**3:.1f} GiB free"
    if free < DISK_BYTES_MIN:
        yield "problem", f"{text}: make room, or writes will be refused soon"
    elif free < DISK_BYTES_EASY:
        yield "note", f"{text}: that is little"
    else:
        yield "ok", text


def _open_files(_config: Config) -> Looked:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= DESCRIPTORS_EASY:
        yield "ok", f"up to {soft}"
    else:
        yield "note", f"only {soft}; for many constellations at once: ulimit -n 4096 before `pattern serve`"


def _is_usable(data_dir: Path) -> bool:
    return not data_dir.exists() or (data_dir.is_dir() and os.access(data_dir, os.R_OK | os.W_OK | os.X_OK))


def _data(config: Config) -> Looked:
    data_dir = config.data_dir
    if not _is_usable(data_dir):
        yield "problem", f"{data_dir} cannot be written by this user: chown it, or name another --data-dir"
        return
    try:
        require_data(config)
    except NotFound as error:
        yield "note", error.message
        return
    yield "ok", f"{data_dir}, decided by {config.data_dir_source}"
    if data_dir.stat().st_mode & 0o007:
        yield "note", f"{data_dir} is open to every user of this machine: chmod 700 {data_dir}"


def _server(config: Config) -> Looked:
    holder = holder_of(config.data_dir)
    try:
        server = running_server(config.data_dir)
    except ServerUnreachable as error:
        yield "problem", error.message
        return
    if server is None and holder is None:
        yield "note", "none runs here; commands open the files themselves"
    elif server is None:
        yield "note", f"process {holder and holder.pid} holds the folder and serves nothing: wait, or end it"
    elif (fault := trio.run(_fault, server)) is None:
        yield "ok", f"answers at {server.url} (process {server.pid})"
    else:
        advice = f"See its log; stop it with: kill {server.pid}"
        yield "problem", f"process {server.pid} at {server.url}: {fault}. {advice}"


async def _fault(server: RunningServer) -> str | None:
    with trio.move_on_after(ANSWER_TIMEOUT_S):
        async with connection(server) as http:
            try:
                answer = await http.get("/readyz")
            except httpx2.TransportError as error:
                return f"cannot be reached ({type(error).__name__})"
        return None if answer.status_code == 200 else f"is not ready: {answer.text.strip()[:200]}"
    return f"does not answer within {ANSWER_TIMEOUT_S:.0f} s"


def _databases(config: Config) -> Looked:
    try:
        found = targets(config)
    except NotFound:
        yield "note", "none yet"
        return
    except DatabaseError as error:
        yield "problem", error.message
        return
    sound = 0
    for target in found:
        try:
            with closing(open_connection(target.path, readonly=True)) as opened:
                target.migrations.check(opened)
            sound += 1
        except DatabaseError as error:
            yield "problem", f"{target.name}: {error.message}"
    yield "ok", f"{sound} of {len(found)} can be opened at this version; `pattern db check` reads them whole"
    known = {target.path.parent.name for target in found}
    for file in sorted((config.data_dir / "constellations").glob("*/pattern.db")):
        if file.parent.name not in known:
            yield "note", f"{file} belongs to no constellation; if you want it: pattern restore {file} --as NAME"


def _models(config: Config) -> Looked:
    names = sorted(name for name, entry in config.providers.items() if PROVIDERS[entry.kind].is_language_model)
    if names:
        yield from _default_model(config, ", ".join(names))
    else:
        advice = "for a language model set ANTHROPIC_API_KEY or OPENAI_API_KEY, or see README"
        yield "note", f"only the embedded rules; {advice}"
    for name, entry in sorted(config.providers.items()):
        try:
            make_provider(name, provider_settings(entry))
        except ModelNotConfigured as error:
            yield "problem", error.message
    yield from trio.run(_unreachable, config)


def _default_model(config: Config, configured: str) -> Looked:
    provider, model = config.default_provider, config.default_model
    if not model:
        advice = "set default_model in pattern.toml, or name each agent's with --model"
        yield "note", f"{configured}; new agents use {provider}, which has no default model: {advice}"
        return
    yield "ok", f"{configured}; new agents use {provider}/{model}"
    facts = trio.run(_facts, config, provider, model)
    for sentence in _notes(config, facts):
        yield "note", sentence


def _notes(config: Config, facts: ModelFacts) -> Iterator[str]:
    yield from trouble({**asdict(facts), "is_configured": facts.provider in config.providers})
    if facts.window < WINDOW_EASY:
        yield (
            f"{facts.window:,} tokens of window are little: few tools and a short conversation fit. Let its server have"
            " more (OLLAMA_CONTEXT_LENGTH of Ollama, -c of llama.cpp); see data/docs/models.md"
        )


async def _facts(config: Config, provider: str, model: str) -> ModelFacts:
    """Return what is known of a model, also to its server."""
    async with _client(config, provider) as client:
        return await client.learn(provider, model)


@asynccontextmanager
async def _client(config: Config, provider: str) -> AsyncIterator[ModelClient]:
    made: dict[str, Provider] = {}
    with suppress(KeyError, ModelNotConfigured):
        made[provider] = make_provider(provider, provider_settings(config.providers[provider]))
    try:
        yield ModelClient(made, RetryPolicy(), config.limits.turn, system_randomness(), catalogue=catalogue_of(config))
    finally:
        with trio.CancelScope(shield=True):
            for one in made.values():
                await one.aclose()


async def try_model(config: Config, name: str) -> list[DoctorFinding]:
    """Ask a model, named `provider/model`, for an answer in words and for a call of a tool.

    Raises:
        InvalidInput: the name has no slash.
    """
    provider, slash, model = name.partition("/")
    if not slash or not model:
        raise InvalidInput(f"--model takes PROVIDER/MODEL, such as ollama/qwen3:8b; got {name!r}")
    async with _client(config, provider) as client:
        facts = await client.learn(provider, model)
        window = f"{facts.window:,} tokens ({facts.window_source}), answers up to {facts.output_max:,}"
        found = [DoctorFinding("window", "ok", window)]
        found += [DoctorFinding("window", "note", sentence) for sentence in _notes(config, facts)]
        try:
            found += [*await _in_words(client, facts), await _by_call(client, facts)]
        except ModelError as error:
            found.append(DoctorFinding("answer", "problem", error.message))
    return found


async def _asked(client: ModelClient, facts: ModelFacts, words: str, **more: Any) -> tuple[ModelReply, float, float]:
    """Return what a model answers to some words, and after how many seconds it began and was done."""
    began, first_s = trio.current_time(), math.inf

    async def on_delta(_delta: Delta) -> None:
        nonlocal first_s
        first_s = min(first_s, trio.current_time() - began)

    request = ModelRequest(
        model=facts.model,
        system=["You are a helpful assistant."],
        messages=[user(words)],
        max_output_tokens=min(facts.output_max, ANSWER_TOKENS_MAX),
        **more,
    )
    reply = await client.ask(request, ModelChain.of(facts.provider, facts.model), on_delta)
    took_s = trio.current_time() - began
    return reply, min(first_s, took_s), took_s


def _said(reply: ModelReply) -> str:
    return cut(in_line("".join(part.text for part in reply.parts if isinstance(part, Text))).strip(), WORDS_SHOWN)


async def _in_words(client: ModelClient, facts: ModelFacts) -> list[DoctorFinding]:
    reply, first_s, took_s = await _asked(client, facts, "What is a lighthouse? Answer in three sentences.")
    count, said = reply.usage.output_tokens, _said(reply)
    rate = f", then {count / (took_s - first_s):.0f} tokens/s" if took_s > first_s else ""
    speed = f"the first words of {count} tokens came after {first_s:.1f} s{rate}"
    nothing = f"it answers nothing in words (finish reason: {reply.finish_reason})"
    found = [DoctorFinding("answer", "ok", said) if said else DoctorFinding("answer", "problem", nothing)]
    found.append(DoctorFinding("speed", "ok", speed))
    if said and reply.finish_reason == "length":
        found.append(DoctorFinding("answer", "note", f"it does not end: it was cut after {count} tokens"))
    if thought := sum(len(part.text) for part in reply.parts if isinstance(part, Reasoning)):
        found.append(DoctorFinding("thoughts", "note", f"it thinks first, here {thought} characters, which are output"))
    return found


async def _by_call(client: ModelClient, facts: ModelFacts) -> DoctorFinding:
    where = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = ToolSpec(name="get_weather", description="Return the weather in a city now.", parameters=where)
    forms: tuple[tuple[ToolCalls, State, str], ...] = (
        ("native", "ok", "it calls tools in its server's format"),
        ("auto", "ok", "it calls tools in its text, where the calls are found"),
        ("text", "note", 'it calls tools only where told how: write tool_calls = "text" for it in pattern.toml'),
    )
    said = ""
    for form, state, words in forms:
        if facts.tool_calls not in ("auto", form):
            continue  # pattern.toml says how
        question = "What is the weather in Lisbon now? Use the tool get_weather."
        reply, _first_s, _took_s = await _asked(client, facts, question, tools=[tool], tool_calls=form)
        if any(isinstance(part, ToolCall) and part.tool == tool.name for part in reply.parts):
            return DoctorFinding("tools", state, words)
        if client.facts(facts.provider, facts.model).tool_calls == "none":
            return DoctorFinding("tools", "note", "its server refuses tools: its agents can only talk")
        said = _said(reply)
    return DoctorFinding("tools", "note", f"it called no tool when told to, and said: {said or 'nothing'}")


def _settings(config: Config) -> Looked:
    file = file_of(config)
    nowhere = f"there is no pattern.toml in {Path.cwd()} or {config.data_dir}"
    source = nowhere if file is None else f"read from {file}"
    yield "ok", f"{source}; a server that runs has those that it read when it started"
    for name in unknown_variables():
        yield "note", f"the environment variable {name} is no setting of Pattern's: a typing error?"


async def _unreachable(config: Config) -> list[tuple[State, str]]:
    """Return the servers of models that were given by their address and take no connection; nothing is asked of
    them.
    """
    findings: list[tuple[State, str]] = []

    async def knock(name: str, url: httpx2.URL) -> None:
        with trio.move_on_after(ANSWER_TIMEOUT_S), suppress(OSError):
            stream = await trio.open_tcp_stream(url.host, url.port or (443 if url.scheme == "https" else 80))
            await stream.aclose()
            return
        state: State = "problem" if name == config.default_provider else "note"
        advice = f"start it, or correct base_url below [providers.{name}]"
        findings.append((state, f"{name} takes no connection at {url}: {advice}"))

    async with trio.open_nursery() as nursery:
        for name, provider in config.providers.items():
            if provider.base_url:
                nursery.start_soon(knock, name, httpx2.URL(provider.base_url))
    return sorted(findings, key=lambda finding: finding[1])


def _web(config: Config) -> Looked:
    """Yield what agents may reach, where the configuration lets them reach anything."""
    if config.web is None:
        return
    hosts = f"only {', '.join(config.web.allow_hosts)}" if config.web.allow_hosts else "the public internet"
    private = ", and private networks" if config.web.allow_private else ""
    kind = config.web.search.kind
    search = "no search engine is configured" if kind == "none" else f"they search by {kind}"
    yield "ok", f"agents may reach {hosts}{private}; {search}"


def _shell(config: Config) -> Looked:
    """Yield what holds the commands of agents, where the configuration lets them run any."""
    settings = shell_settings(config)
    if settings is None:
        return
    missing = [str(root) for root in settings.roots if not root.is_dir()]
    if missing:
        yield "problem", f"{', '.join(missing)} in [shell] roots is no directory here: make it, or take it out"
    confined = trio.run(confinement)
    needed = ("files",) if settings.network else ("files", "network")
    lacking = " and ".join(name for name in needed if name not in confined)
    if not lacking:
        yield "ok", f"commands run in a sandbox of {', '.join(sorted(confined))}"
    elif settings.require_sandbox:
        yield "problem", f"this system cannot confine {lacking}, so no command runs; see require_sandbox"
    else:
        yield "note", f"commands run without a sandbox for {lacking}, as require_sandbox = false says"


def _mcp(config: Config) -> Looked:
    """Yield what keeps configured MCP servers from being started; none is started here."""
    sound = []
    for name, server in configured_mcp(config).items():
        if server.faults:
            yield "problem", f"{name}: {'; '.join(server.faults)}. Correct that, or [mcp.{name}] in pattern.toml"
        else:
            sound.append(name)
    if sound:
        yield "ok", f"{', '.join(sound)} can be started; pattern mcp test NAME -c CONSTELLATION does"


async def _embedder_info(config: Config) -> EmbedderInfo | EmbedderUnavailable:
    """Return what the configured embedder says it is, or why it says nothing."""
    embedder = make_embedder(embedder_settings(config))
    try:
        with trio.move_on_after(EMBEDDER_TIMEOUT_S):
            return await embedder.info()
        return EmbedderUnavailable(f"it does not answer within {EMBEDDER_TIMEOUT_S:.0f} s")
    except EmbedderUnavailable as error:
        return error
    finally:
        with trio.CancelScope(shield=True):
            await embedder.aclose()


def _embeddings(config: Config) -> Looked:
    """Yield how the configured embedder is, and which constellations have vectors of another, or not all.

    An embedder that is missing is a problem only where it was asked for.
    """
    answer = trio.run(_embedder_info, config)
    if isinstance(answer, EmbedderUnavailable):
        is_intended = config.embeddings.provider == "none" or config.embeddings == EmbeddingsConfig()
        yield "note" if is_intended else "problem", f"search goes by words alone: {answer.message}"
        return
    yield "ok", f"{answer.provider}/{answer.model} can work, {answer.dimension} numbers a vector"
    for name, found in _conditions(config):
        if found.index is not None and not found.index.matches(answer):
            yield (
                "note",
                f"{name} has vectors of {found.index.provider}/{found.index.model}, and another model or form of it is "
                f"configured now; to go over to it: pattern embeddings switch -c {name}",
            )
        elif found.done < found.total:
            words = f"{name} has {found.done} of {found.total} texts embedded"
            yield "note", f"{words}; the others follow when it is next in use"


def _folders(config: Config) -> Looked:
    for name, found in _conditions(config):
        for folder in found.unavailable:
            advice = f"bring it back, then: pattern folder index {folder.name} -c {name}"
            yield "problem", f"{folder.name} of {name} could not be read: {folder.status_reason}; {advice}"


def _conditions(config: Config) -> Iterator[tuple[str, Condition]]:
    """Yield the constellations whose files can be opened, by name; `_databases` reports the others."""
    with suppress(DatabaseError, NotFound):
        for target in targets(config) if _is_usable(config.data_dir) else ():
            if target.kind == "constellation":
                with (
                    suppress(DatabaseError),
                    closing(open_connection(target.path, readonly=True)) as opened,
                    translated(),
                ):
                    target.migrations.check(opened)
                    yield target.name, condition(opened)


CHECKS: tuple[tuple[str, Callable[[Config], Looked]], ...] = (
    ("python", _python), ("sqlite", _sqlite), ("migrations", _migrations), ("disk", _disk), ("open files", _open_files),
    ("data", _data), ("server", _server), ("databases", _databases), ("models", _models), ("settings", _settings),
    ("web", _web), ("shell", _shell), ("mcp", _mcp), ("embeddings", _embeddings), ("folders", _folders),
)  # fmt: skip
