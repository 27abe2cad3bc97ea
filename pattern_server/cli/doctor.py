"""`pattern doctor`: what is wrong with this installation, and what to do about it. It changes nothing."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import click
import httpx2
import trio

from pattern_core.embeddings.embedder import EmbedderInfo, EmbedderUnavailable
from pattern_core.embeddings.providers import make_embedder
from pattern_core.mcp_servers.settings import Stdio
from pattern_core.models.errors import ModelNotConfigured
from pattern_core.models.providers import make_provider
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_core.shell.child import confinement
from pattern_core.views import Condition, condition
from pattern_db.connection import open_connection, open_in_memory
from pattern_db.errors import DatabaseError, translated
from pattern_db.migrate import migrations_of
from pattern_db.ownership import holder_of
from pattern_server.cli.agent_fields import trouble
from pattern_server.cli.client import RunningServer, ServerUnreachable, connection, running_server
from pattern_server.cli.command import ExitCode, local
from pattern_server.cli.db import Target, targets
from pattern_server.cli.output import DONE, FAILED, Output
from pattern_server.config import (
    Config,
    EmbeddingsConfig,
    configured_mcp,
    embedder_settings,
    shell_settings,
    unknown_variables,
)
from pattern_server.providers import catalogue_of

DISK_BYTES_MIN = 100 * 1024 * 1024
DISK_BYTES_EASY = 1024 * 1024 * 1024
DESCRIPTORS_EASY = 1024
ANSWER_TIMEOUT_S = 5.0
EMBEDDER_TIMEOUT_S = 20.0  # it may have to find and check its weights

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at. A `note` may be as it is wished; a `problem` wants doing, and the message says what."""

    check: str
    state: State
    message: str


@click.command()
@local
def doctor(config: Config, output: Output) -> ExitCode:
    """Look at everything that a server needs, and say what is wrong and what to do. Changes nothing."""
    findings = list(examine(config))
    rows = [asdict(finding) for finding in findings]
    output.table(("check", "state", "message"), rows, empty="")
    problems = sum(finding.state == "problem" for finding in findings)
    output.say()
    output.say(f"{problems} to mend." if problems else "Nothing is wrong here.")
    return FAILED if problems else DONE


def examine(config: Config) -> Iterator[Finding]:
    """Look at the program, the machine, the data directory, the server, the databases, the models, the web, the shell,
    the MCP servers, the embedder, and what the constellations say of their folders and vectors, in this order.
    """
    yield from _program()
    yield from _machine(config.data_dir)
    folder = _folder(config.data_dir)
    yield folder
    if folder.state != "problem":
        yield from _server(config.data_dir)
        yield from _databases(config.data_dir)
    yield from _models(config)
    yield from trio.run(_unreachable, config)
    yield from _web(config)
    yield from _shell(config)
    yield from _mcp(config)
    answer = trio.run(_embedder_info, config)
    yield _embedder(config, answer)
    if folder.state != "problem":
        for name, found in _conditions(config.data_dir):
            yield from _folders(name, found)
            if isinstance(answer, EmbedderInfo):
                yield from _vectors(name, found, answer)


def _program() -> Iterator[Finding]:
    version = platform.python_version()
    yield Finding(check="python", state="ok", message=f"{version}, {platform.system()} {platform.machine()}")
    try:
        with closing(open_in_memory()):
            versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("apsw", "sqlite-vec", "loro", "trio"))
        yield Finding(check="sqlite", state="ok", message=f"opens, with vectors ({versions})")
    except (DatabaseError, metadata.PackageNotFoundError) as error:
        advice = f"{error}; install again: {sys.executable} -m pip install --force-reinstall pattern-server"
        yield Finding(check="sqlite", state="problem", message=advice)
    try:
        newest = migrations_of("constellation").newest
        yield Finding(check="migrations", state="ok", message=f"present, newest is version {newest}")
    except FileNotFoundError as error:
        yield Finding(check="migrations", state="problem", message=str(error))


def _machine(data_dir: Path) -> Iterator[Finding]:
    nearest = next(folder for folder in (data_dir.absolute(), *data_dir.absolute().parents) if folder.exists())
    free = shutil.disk_usage(nearest).free
    text = f"{free / 1024**3:.1f} GiB free"
    if free < DISK_BYTES_MIN:
        yield Finding(check="disk", state="problem", message=f"{text}: make room, or writes will be refused soon")
    else:
        easy = free >= DISK_BYTES_EASY
        yield Finding(check="disk", state="ok" if easy else "note", message=text if easy else f"{text}: that is little")
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= DESCRIPTORS_EASY:
        yield Finding(check="open files", state="ok", message=f"up to {soft}")
    else:
        advice = f"only {soft}; for many constellations at once: ulimit -n 4096 before `pattern serve`"
        yield Finding(check="open files", state="note", message=advice)


def _folder(data_dir: Path) -> Finding:
    if not data_dir.exists():
        return Finding(check="data", state="note", message=f"{data_dir} is not there yet; `pattern serve` makes it")
    if not data_dir.is_dir() or not os.access(data_dir, os.R_OK | os.W_OK | os.X_OK):
        advice = f"{data_dir} cannot be written by this user: chown it, or name another --data-dir"
        return Finding(check="data", state="problem", message=advice)
    if data_dir.stat().st_mode & 0o007:
        advice = f"{data_dir} is open to every user of this machine: chmod 700 {data_dir}"
        return Finding(check="data", state="note", message=advice)
    return Finding(check="data", state="ok", message=str(data_dir))


def _server(data_dir: Path) -> Iterator[Finding]:
    holder = holder_of(data_dir)
    try:
        server = running_server(data_dir)
    except ServerUnreachable as error:
        yield Finding(check="server", state="problem", message=error.message)
        return
    if server is None and holder is None:
        yield Finding(check="server", state="note", message="none runs here; commands open the files themselves")
    elif server is None:
        advice = f"process {holder.pid if holder else None} holds the folder and serves nothing: wait, or end it"
        yield Finding(check="server", state="note", message=advice)
    elif (fault := trio.run(_fault, server)) is None:
        yield Finding(check="server", state="ok", message=f"answers at {server.url} (process {server.pid})")
    else:
        advice = f"process {server.pid} at {server.url}: {fault}. See its log; stop it with: kill {server.pid}"
        yield Finding(check="server", state="problem", message=advice)


async def _fault(server: RunningServer) -> str | None:
    with trio.move_on_after(ANSWER_TIMEOUT_S):
        async with connection(server) as http:
            try:
                answer = await http.get("/readyz")
            except httpx2.TransportError as error:
                return f"cannot be reached ({type(error).__name__})"
        return None if answer.status_code == 200 else f"is not ready: {answer.text.strip()[:200]}"
    return f"does not answer within {ANSWER_TIMEOUT_S:.0f} s"


def _databases(data_dir: Path) -> Iterator[Finding]:
    if not (data_dir / "global.db").exists():
        yield Finding(check="databases", state="note", message="none yet")
        return
    try:
        found = targets(data_dir)
    except DatabaseError as error:
        yield Finding(check="databases", state="problem", message=error.message)
        return
    sound = 0
    for target in found:
        try:
            with closing(open_connection(target.path, readonly=True)) as opened:
                target.migrations.check(opened)
            sound += 1
        except DatabaseError as error:
            yield Finding(check=f"database {target.name}", state="problem", message=error.message)
    message = f"{sound} of {len(found)} can be opened at this version; `pattern db check` reads them whole"
    yield Finding(check="databases", state="ok", message=message)
    known = {target.directory.name for target in found}
    for folder in sorted((data_dir / "constellations").glob("*/pattern.db")):
        if folder.parent.name not in known:
            advice = f"{folder} belongs to no constellation; if you want it: pattern restore {folder} --as NAME"
            yield Finding(check="databases", state="note", message=advice)


def _models(config: Config) -> Iterator[Finding]:
    names = sorted(name for name in config.providers if name != "embedded")
    if names:
        default = f"{config.default_provider}/{config.default_model}"
        yield Finding(check="models", state="ok", message=f"{', '.join(names)}; new agents use {default}")
        facts = catalogue_of(config).facts(config.default_provider, config.default_model)
        for sentence in trouble({**asdict(facts), "is_configured": config.default_provider in config.providers}):
            yield Finding(check="models", state="note", message=sentence)
    else:
        advice = "only the embedded rules; for a language model set ANTHROPIC_API_KEY or OPENAI_API_KEY, or see README"
        yield Finding(check="models", state="note", message=advice)
    for name, entry in sorted(config.providers.items()):
        key = None if entry.api_key is None else Secret(entry.api_key.get_secret_value())
        settings = ProviderSettings(
            kind=entry.kind, base_url=entry.base_url, api_key=key, omit=entry.omit, api=entry.api
        )
        try:
            make_provider(name, settings)
        except ModelNotConfigured as error:
            yield Finding(check="models", state="problem", message=error.message)
    for name in unknown_variables():
        advice = f"the environment variable {name} is no setting of Pattern's: a typing error?"
        yield Finding(check="settings", state="note", message=advice)


async def _unreachable(config: Config) -> list[Finding]:
    """The servers of models that were given by their address and take no connection; nothing is asked of them."""
    findings: list[Finding] = []

    async def knock(name: str, url: httpx2.URL) -> None:
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            try:
                stream = await trio.open_tcp_stream(url.host, url.port or (443 if url.scheme == "https" else 80))
            except OSError:
                pass
            else:
                await stream.aclose()
                return
        state: State = "problem" if name == config.default_provider else "note"
        advice = f"{name} takes no connection at {url}: start it, or mend base_url below [providers.{name}]"
        findings.append(Finding(check="models", state=state, message=advice))

    async with trio.open_nursery() as nursery:
        for name, provider in config.providers.items():
            if provider.base_url:
                nursery.start_soon(knock, name, httpx2.URL(provider.base_url))
    return sorted(findings, key=lambda finding: finding.message)


def _web(config: Config) -> Iterator[Finding]:
    """What agents may reach, where the configuration lets them reach anything."""
    if config.web is None:
        return
    hosts = f"only {', '.join(config.web.allow_hosts)}" if config.web.allow_hosts else "the public internet"
    private = ", and private networks" if config.web.allow_private else ""
    kind = config.web.search.kind
    search = "no search engine is configured" if kind == "none" else f"they search by {kind}"
    yield Finding(check="web", state="ok", message=f"agents may reach {hosts}{private}; {search}")


def _shell(config: Config) -> Iterator[Finding]:
    """What holds the commands of agents, where the configuration lets them run any."""
    settings = shell_settings(config)
    if settings is None:
        return
    missing = [str(root) for root in settings.roots if not root.is_dir()]
    if missing:
        advice = f"{', '.join(missing)} in [shell] roots is no directory here: make it, or take it out"
        yield Finding(check="shell", state="problem", message=advice)
    confined = trio.run(confinement)
    lacking = [
        name for name in ("files", "network") if name not in confined and (name, settings.network) != ("network", True)
    ]
    if not lacking:
        yield Finding(check="shell", state="ok", message=f"commands run in a sandbox of {', '.join(sorted(confined))}")
    elif settings.require_sandbox:
        advice = f"this system cannot confine {' and '.join(lacking)}, so no command runs; see require_sandbox"
        yield Finding(check="shell", state="problem", message=advice)
    else:
        advice = f"commands run without a sandbox for {' and '.join(lacking)}, as require_sandbox = false says"
        yield Finding(check="shell", state="note", message=advice)


def _unstartable(program: Stdio) -> list[str]:
    """What keeps a program from being started."""
    if not program.cwd.is_dir():
        return [f"{program.cwd}, where it should start, is no directory"]
    folders = program.environment.get("PATH")
    name = str(program.cwd / program.command) if "/" in program.command else program.command
    if shutil.which(name, path=folders.reveal() if folders else os.defpath) is None:
        return [f"there is no program {program.command}"]
    return []


def _mcp(config: Config) -> Iterator[Finding]:
    """What keeps configured MCP servers from being started; none is started here."""
    sound = []
    for name, server in configured_mcp(config).items():
        wrong = [f"the variable {variable} is not set" for variable in server.missing]
        if isinstance(server.reach, Stdio):
            wrong += _unstartable(server.reach)
        if wrong:
            advice = f"{name}: {'; '.join(wrong)}. Mend that, or [mcp.{name}] in pattern.toml"
            yield Finding(check="mcp", state="problem", message=advice)
        else:
            sound.append(name)
    if sound:
        message = f"{', '.join(sound)} can be started; pattern mcp test NAME -c CONSTELLATION does"
        yield Finding(check="mcp", state="ok", message=message)


async def _embedder_info(config: Config) -> EmbedderInfo | EmbedderUnavailable:
    """What the configured embedder says it is, or why it says nothing."""
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


def _embedder(config: Config, answer: EmbedderInfo | EmbedderUnavailable) -> Finding:
    """What is not there though it was asked for is a problem; search by words alone is a way to live."""
    if isinstance(answer, EmbedderInfo):
        message = f"{answer.provider}/{answer.model} can work, {answer.dimension} numbers a vector"
        return Finding(check="embeddings", state="ok", message=message)
    is_wished = config.embeddings.provider == "none" or config.embeddings == EmbeddingsConfig()
    message = f"search goes by words alone: {answer.message}"
    return Finding(check="embeddings", state="note" if is_wished else "problem", message=message)


def _conditions(data_dir: Path) -> Iterator[tuple[str, Condition]]:
    """The constellations whose files can be opened, by name; about the others `_databases` has spoken."""
    with suppress(DatabaseError):
        for target in targets(data_dir):
            if target.kind == "constellation":
                with (
                    suppress(DatabaseError),
                    closing(open_connection(target.path, readonly=True)) as opened,
                    translated(),
                ):
                    target.migrations.check(opened)
                    yield target.name, condition(opened)


def _condition(target: Target) -> Condition:
    with closing(open_connection(target.path, readonly=True)) as opened:
        target.migrations.check(opened)
        return condition(opened)


def _folders(name: str, found: Condition) -> Iterator[Finding]:
    for folder in found.unavailable:
        advice = f"bring it back, then: pattern folder index {folder.name} -c {name}"
        message = f"{folder.name} of {name} could not be read: {folder.status_reason}; {advice}"
        yield Finding(check="folders", state="problem", message=message)


def _vectors(name: str, found: Condition, configured: EmbedderInfo) -> Iterator[Finding]:
    if found.index is not None and not found.index.matches(configured):
        message = (
            f"{name} has vectors of {found.index.provider}/{found.index.model}, and another model or form of it is "
            f"configured now; to go over to it: pattern embeddings switch -c {name}"
        )
        yield Finding(check="embeddings", state="note", message=message)
    elif found.done < found.total:
        message = f"{name} has {found.done} of {found.total} texts embedded; the others follow when it is next in use"
        yield Finding(check="embeddings", state="note", message=message)
