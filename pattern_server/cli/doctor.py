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
from pattern_server.cli.output import DONE, FAILED, Output
from pattern_server.config import Config, unknown_variables
from pattern_server.sections import EmbeddingsConfig
from pattern_server.settings import (
    catalogue_of,
    configured_mcp,
    embedder_settings,
    provider_settings,
    shell_settings,
)

DISK_BYTES_MIN = 100 * 1024 * 1024
DISK_BYTES_EASY = 1024 * 1024 * 1024
DESCRIPTORS_EASY = 1024
ANSWER_TIMEOUT_S = 5.0
EMBEDDER_TIMEOUT_S = 20.0  # it may have to find and check its weights

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing looked at. A `note` may be intended; a `problem` needs work, and the message says what."""

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


def examine(config: Config) -> Iterator[DoctorFinding]:
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


def _program() -> Iterator[DoctorFinding]:
    version = platform.python_version()
    yield DoctorFinding("python", "ok", f"{version}, {platform.system()} {platform.machine()}")
    try:
        with closing(open_in_memory()):
            versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("apsw", "sqlite-vec", "loro", "trio"))
        yield DoctorFinding("sqlite", "ok", f"opens, with vectors ({versions})")
    except (DatabaseError, metadata.PackageNotFoundError) as error:
        advice = f"{error}; install again: {sys.executable} -m pip install --force-reinstall pattern-server"
        yield DoctorFinding("sqlite", "problem", advice)
    try:
        newest = migrations_of("constellation").newest
        yield DoctorFinding("migrations", "ok", f"present, newest is version {newest}")
    except FileNotFoundError as error:
        yield DoctorFinding("migrations", "problem", str(error))


def _machine(data_dir: Path) -> Iterator[DoctorFinding]:
    nearest = next(folder for folder in (data_dir.absolute(), *data_dir.absolute().parents) if folder.exists())
    free = shutil.disk_usage(nearest).free
    text = f"{free / 1024**3:.1f} GiB free"
    if free < DISK_BYTES_MIN:
        yield DoctorFinding("disk", "problem", f"{text}: make room, or writes will be refused soon")
    else:
        easy = free >= DISK_BYTES_EASY
        yield DoctorFinding("disk", "ok" if easy else "note", text if easy else f"{text}: that is little")
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= DESCRIPTORS_EASY:
        yield DoctorFinding("open files", "ok", f"up to {soft}")
    else:
        advice = f"only {soft}; for many constellations at once: ulimit -n 4096 before `pattern serve`"
        yield DoctorFinding("open files", "note", advice)


def _folder(data_dir: Path) -> DoctorFinding:
    if not data_dir.exists():
        return DoctorFinding("data", "note", f"{data_dir} is not there yet; `pattern serve` makes it")
    if not data_dir.is_dir() or not os.access(data_dir, os.R_OK | os.W_OK | os.X_OK):
        advice = f"{data_dir} cannot be written by this user: chown it, or name another --data-dir"
        return DoctorFinding("data", "problem", advice)
    if data_dir.stat().st_mode & 0o007:
        return DoctorFinding("data", "note", f"{data_dir} is open to every user of this machine: chmod 700 {data_dir}")
    return DoctorFinding("data", "ok", str(data_dir))


def _server(data_dir: Path) -> Iterator[DoctorFinding]:
    holder = holder_of(data_dir)
    try:
        server = running_server(data_dir)
    except ServerUnreachable as error:
        yield DoctorFinding("server", "problem", error.message)
        return
    if server is None and holder is None:
        yield DoctorFinding("server", "note", "none runs here; commands open the files themselves")
    elif server is None:
        advice = f"process {holder.pid if holder else None} holds the folder and serves nothing: wait, or end it"
        yield DoctorFinding("server", "note", advice)
    elif (fault := trio.run(_fault, server)) is None:
        yield DoctorFinding("server", "ok", f"answers at {server.url} (process {server.pid})")
    else:
        advice = f"process {server.pid} at {server.url}: {fault}. See its log; stop it with: kill {server.pid}"
        yield DoctorFinding("server", "problem", advice)


async def _fault(server: RunningServer) -> str | None:
    with trio.move_on_after(ANSWER_TIMEOUT_S):
        async with connection(server) as http:
            try:
                answer = await http.get("/readyz")
            except httpx2.TransportError as error:
                return f"cannot be reached ({type(error).__name__})"
        return None if answer.status_code == 200 else f"is not ready: {answer.text.strip()[:200]}"
    return f"does not answer within {ANSWER_TIMEOUT_S:.0f} s"


def _databases(data_dir: Path) -> Iterator[DoctorFinding]:
    if not (data_dir / "global.db").exists():
        yield DoctorFinding("databases", "note", "none yet")
        return
    try:
        found = targets(data_dir)
    except DatabaseError as error:
        yield DoctorFinding("databases", "problem", error.message)
        return
    sound = 0
    for target in found:
        try:
            with closing(open_connection(target.path, readonly=True)) as opened:
                target.migrations.check(opened)
            sound += 1
        except DatabaseError as error:
            yield DoctorFinding(f"database {target.name}", "problem", error.message)
    message = f"{sound} of {len(found)} can be opened at this version; `pattern db check` reads them whole"
    yield DoctorFinding("databases", "ok", message)
    known = {target.directory.name for target in found}
    for folder in sorted((data_dir / "constellations").glob("*/pattern.db")):
        if folder.parent.name not in known:
            advice = f"{folder} belongs to no constellation; if you want it: pattern restore {folder} --as NAME"
            yield DoctorFinding("databases", "note", advice)


def _models(config: Config) -> Iterator[DoctorFinding]:
    names = sorted(name for name in config.providers if name != "embedded")
    if names:
        default = f"{config.default_provider}/{config.default_model}"
        yield DoctorFinding("models", "ok", f"{', '.join(names)}; new agents use {default}")
        facts = catalogue_of(config).facts(config.default_provider, config.default_model)
        for sentence in trouble({**asdict(facts), "is_configured": config.default_provider in config.providers}):
            yield DoctorFinding("models", "note", sentence)
    else:
        advice = "only the embedded rules; for a language model set ANTHROPIC_API_KEY or OPENAI_API_KEY, or see README"
        yield DoctorFinding("models", "note", advice)
    for name, entry in sorted(config.providers.items()):
        try:
            make_provider(name, provider_settings(entry))
        except ModelNotConfigured as error:
            yield DoctorFinding("models", "problem", error.message)
    for name in unknown_variables():
        advice = f"the environment variable {name} is no setting of Pattern's: a typing error?"
        yield DoctorFinding("settings", "note", advice)


async def _unreachable(config: Config) -> list[DoctorFinding]:
    """Return the servers of models that were given by their address and take no connection; nothing is asked of
    them.
    """
    findings: list[DoctorFinding] = []

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
        findings.append(DoctorFinding("models", state, advice))

    async with trio.open_nursery() as nursery:
        for name, provider in config.providers.items():
            if provider.base_url:
                nursery.start_soon(knock, name, httpx2.URL(provider.base_url))
    return sorted(findings, key=lambda finding: finding.message)


def _web(config: Config) -> Iterator[DoctorFinding]:
    """Yield what agents may reach, where the configuration lets them reach anything."""
    if config.web is None:
        return
    hosts = f"only {', '.join(config.web.allow_hosts)}" if config.web.allow_hosts else "the public internet"
    private = ", and private networks" if config.web.allow_private else ""
    kind = config.web.search.kind
    search = "no search engine is configured" if kind == "none" else f"they search by {kind}"
    yield DoctorFinding("web", "ok", f"agents may reach {hosts}{private}; {search}")


def _shell(config: Config) -> Iterator[DoctorFinding]:
    """Yield what holds the commands of agents, where the configuration lets them run any."""
    settings = shell_settings(config)
    if settings is None:
        return
    missing = [str(root) for root in settings.roots if not root.is_dir()]
    if missing:
        advice = f"{', '.join(missing)} in [shell] roots is no directory here: make it, or take it out"
        yield DoctorFinding("shell", "problem", advice)
    confined = trio.run(confinement)
    lacking = [
        name for name in ("files", "network") if name not in confined and (name, settings.network) != ("network", True)
    ]
    if not lacking:
        yield DoctorFinding("shell", "ok", f"commands run in a sandbox of {', '.join(sorted(confined))}")
    elif settings.require_sandbox:
        advice = f"this system cannot confine {' and '.join(lacking)}, so no command runs; see require_sandbox"
        yield DoctorFinding("shell", "problem", advice)
    else:
        advice = f"commands run without a sandbox for {' and '.join(lacking)}, as require_sandbox = false says"
        yield DoctorFinding("shell", "note", advice)


def _unstartable(program: Stdio) -> list[str]:
    """Return what keeps a program from being started."""
    if not program.cwd.is_dir():
        return [f"{program.cwd}, where it should start, is no directory"]
    folders = program.environment.get("PATH")
    name = str(program.cwd / program.command) if "/" in program.command else program.command
    if shutil.which(name, path=folders.get_secret_value() if folders else os.defpath) is None:
        return [f"there is no program {program.command}"]
    return []


def _mcp(config: Config) -> Iterator[DoctorFinding]:
    """Yield what keeps configured MCP servers from being started; none is started here."""
    sound = []
    for name, server in configured_mcp(config).items():
        wrong = [f"the variable {variable} is not set" for variable in server.missing]
        if isinstance(server.reach, Stdio):
            wrong += _unstartable(server.reach)
        if wrong:
            yield DoctorFinding(
                "mcp", "problem", f"{name}: {'; '.join(wrong)}. Mend that, or [mcp.{name}] in pattern.toml"
            )
        else:
            sound.append(name)
    if sound:
        yield DoctorFinding(
            "mcp", "ok", f"{', '.join(sound)} can be started; pattern mcp test NAME -c CONSTELLATION does"
        )


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


def _embedder(config: Config, answer: EmbedderInfo | EmbedderUnavailable) -> DoctorFinding:
    """Return how the configured embedder is. One that is missing is a problem only where it was asked for."""
    if isinstance(answer, EmbedderInfo):
        message = f"{answer.provider}/{answer.model} can work, {answer.dimension} numbers a vector"
        return DoctorFinding("embeddings", "ok", message)
    is_intended = config.embeddings.provider == "none" or config.embeddings == EmbeddingsConfig()
    return DoctorFinding(
        "embeddings", "note" if is_intended else "problem", f"search goes by words alone: {answer.message}"
    )


def _conditions(data_dir: Path) -> Iterator[tuple[str, Condition]]:
    """Yield the constellations whose files can be opened, by name; `_databases` reports the others."""
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


def _folders(name: str, found: Condition) -> Iterator[DoctorFinding]:
    for folder in found.unavailable:
        advice = f"bring it back, then: pattern folder index {folder.name} -c {name}"
        message = f"{folder.name} of {name} could not be read: {folder.status_reason}; {advice}"
        yield DoctorFinding("folders", "problem", message)


def _vectors(name: str, found: Condition, configured: EmbedderInfo) -> Iterator[DoctorFinding]:
    if found.index is not None and not found.index.matches(configured):
        message = (
            f"{name} has vectors of {found.index.provider}/{found.index.model}, and another model or form of it is "
            f"configured now; to go over to it: pattern embeddings switch -c {name}"
        )
        yield DoctorFinding("embeddings", "note", message)
    elif found.done < found.total:
        message = f"{name} has {found.done} of {found.total} texts embedded; the others follow when it is next in use"
        yield DoctorFinding("embeddings", "note", message)
