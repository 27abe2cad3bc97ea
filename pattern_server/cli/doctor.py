"""`pattern doctor`: problems of this installation, and what to do about them. It changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeAlias

import click
import httpx2
import trio

from pattern_core.embeddings.embedder import EmbedderInfo, EmbedderUnavailable
from pattern_core.embeddings.providers import make_embedder
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.ids import SystemClock, now_text
from pattern_core.models.providers import PROVIDERS
from pattern_core.shell.child import confinement
from pattern_core.sources.kinds import SOURCES, kind_of
from pattern_core.untrusted import plain
from pattern_core.views import Condition, condition
from pattern_core.web.policy import read_secret
from pattern_db import maintenance
from pattern_db.connection import open_in_memory, opened_at
from pattern_db.errors import DatabaseError
from pattern_db.files import free_bytes, holder_of
from pattern_db.migrate import migrations_of
from pattern_server.backups import AGE, complaints, folder_of, last_rounds
from pattern_server.cli.client import Json, RunningServer, ServerUnreachable, connection, running_server
from pattern_server.cli.command import ExitCode, local
from pattern_server.cli.db import tampered, targets
from pattern_server.cli.models import notes
from pattern_server.cli.output import DONE, FAILED, Output
from pattern_server.config import (
    Config,
    ConfigError,
    check_exposure,
    file_of,
    is_loopback,
    require_data,
    unknown_variables,
)
from pattern_server.models import open_models
from pattern_server.sections import DISK_BYTES_EASY, EmbeddingsConfig, descriptors_max
from pattern_server.settings import configured_mcp, embedder_settings, shell_settings, source_settings

DISK_BYTES_MIN = 100 * 1024 * 1024
DESCRIPTORS_EASY = 1024
ANSWER_TIMEOUT_S = 5.0
EMBEDDER_TIMEOUT_S = 20.0  # it may have to find and check its weights

State = Literal["ok", "note", "problem"]
Looked: TypeAlias = Iterator[tuple[State, str]]  # what was found, a sentence each


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check. A `note` may be intended; a `problem` needs work, and the message says what."""

    check: str
    state: State
    message: str


@click.command(epilog="Example: pattern doctor")
@local
def doctor(config: Config, output: Output) -> ExitCode:
    """Check everything that a server needs: what is wrong, and what to do about it. Changes nothing."""
    findings = list(examine(config))
    rows = [asdict(finding) for finding in findings]
    output.table(("check", "state", "message*"), rows, empty="")
    problems = sum(finding.state == "problem" for finding in findings)
    output.say()
    output.say(f"Problems found: {problems}." if problems else "No problems found.")
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
    free = free_bytes(config.data_dir)
    text = f"{free / 1024**3:.1f} GiB free"
    if free < DISK_BYTES_MIN:
        yield "problem", f"{text}: make room, or writes will be refused soon"
    elif free < DISK_BYTES_EASY:
        yield "note", f"Low disk space: {text}"
    else:
        yield "ok", text


def _open_files(_config: Config) -> Looked:
    most = descriptors_max()  # the server raises its own limit
    words = "" if most >= DESCRIPTORS_EASY else "; for many constellations at once, raise the hard limit (ulimit -Hn)"
    yield "note" if words else "ok", f"up to {most}{words}"


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
    yield "ok", f"{data_dir}, set by {config.data_dir_source}"
    if data_dir.stat().st_mode & 0o007:
        yield "note", f"{data_dir} can be read by every user of this machine: chmod 700 {data_dir}"


def _server(config: Config) -> Looked:
    holder = holder_of(config.data_dir)
    try:
        server = running_server(config.data_dir)
    except ServerUnreachable as error:
        yield "problem", error.message
        return
    if server is None and holder is None:
        yield "note", "no server is running (pattern up starts one); commands access the data directory directly"
    elif server is None:
        yield (
            "note",
            f"process {holder and holder.pid} holds the data directory and is not a server: wait for it, or stop it",
        )
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


def _exposure(config: Config) -> Looked:
    try:
        check_exposure(config)
    except ConfigError as error:
        yield "problem", error.message
        return
    if config.open_loopback:
        yield (
            "note",
            "programs on this machine may use chat sessions without a token, as open_loopback = true says",
        )
    proxies = ", ".join(map(str, config.http.trusted_proxies))
    if is_loopback(config.host):
        yield "ok", f"only this machine reaches {config.host}" + (f"; proxies with TLS: {proxies}" if proxies else "")
    elif config.exposed:
        yield "note", f"other machines reach {config.host} without TLS, as exposed = true says"
    else:
        yield "note", f"other machines reach {config.host}: a firewall must let through only the proxies {proxies}"


def _backups(config: Config) -> Looked:
    """Yield how old the newest complete round of scheduled backups is."""
    folder, rounds = folder_of(config.backup, config.data_dir), last_rounds(folder_of(config.backup, config.data_dir))
    if config.backup.age_recipient and shutil.which(AGE) is None:
        yield "problem", f"copies cannot be encrypted: install {AGE}, or remove age_recipient in [backup]"
    if not config.backup.enabled:
        yield "note", "no backups are scheduled, as enabled = false in [backup] says"
    elif rounds.began_at is None:
        yield "note", f"none yet; a running server makes them in {folder}"
    elif found := list(complaints(config.backup, rounds, SystemClock().now_ms())):
        yield from (("problem", sentence) for sentence in found)
    else:
        yield "ok", f"complete and verified {rounds.complete_at}, in {folder}; restored on trial {rounds.drilled_at}"


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
            with opened_at(target.path, readonly=True) as opened:
                target.migrations.check(opened)
                if target.kind == "global":
                    yield from (("problem", f"{target.name}: {problem}") for problem in tampered(opened))
                if free := maintenance.much_free(opened):
                    which = f" -c {target.name}" if target.kind == "constellation" else ""
                    yield (
                        "note",
                        f"{target.name}: {free / 1024**2:.0f} MiB of the file are free: pattern db vacuum{which}",
                    )
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
        advice = "pattern up finds a language model and connects it"
        yield "note", f"only the embedded rules; {advice}"
    yield from trio.run(_unreachable, config)


def _default_model(config: Config, configured: str) -> Looked:
    provider, model = config.default_provider, config.default_model
    if not model:
        advice = "set it with `pattern model set`, or name each agent's with --model"
        yield "note", f"{configured}; new agents use {provider}, which has no default model: {advice}"
        return
    yield "ok", f"{configured}; new agents use {provider}/{model}"
    facts = trio.run(_facts, config, provider, model)
    for sentence in notes(facts):
        yield "note", sentence


async def _facts(config: Config, provider: str, model: str) -> Json:
    """Return what is known of a model, also to its server."""
    async with open_models(config) as models:
        facts = await models.client.learn(provider, model)
    return {**asdict(facts), "is_configured": provider in config.providers}


def _settings(config: Config) -> Looked:
    file = file_of(config)
    nowhere = f"there is no pattern.toml in {Path.cwd()} or {config.data_dir}"
    source = nowhere if file is None else f"read from {file}"
    yield "ok", f"{source}; `pattern up` has a running server read its models again, all else needs a restart"
    for name in unknown_variables():
        yield "note", f"the environment variable {name} is not a setting of Pattern's: a typing error?"


def _sign_in(config: Config) -> Looked:
    """Yield the providers that users can sign in with. None is asked."""
    for name, section in config.sign_in.items():
        if section.client_secret is None and section.atproto_url is None:
            yield "note", f"{name} has no client_secret here; if it needs one, set what client_secret_env names"
        else:
            yield "ok", f"users can link and use identities at {name} ({section.where})"


async def _unreachable(config: Config) -> list[tuple[State, str]]:
    """Return the servers of models that were given by their address and accept no connection; they get no
    request.
    """
    findings: list[tuple[State, str]] = []

    async def knock(name: str, url: httpx2.URL) -> None:
        with trio.move_on_after(ANSWER_TIMEOUT_S), suppress(OSError):
            stream = await trio.open_tcp_stream(url.host, url.port or (443 if url.scheme == "https" else 80))
            await stream.aclose()
            return
        state: State = "problem" if name == config.default_provider else "note"
        advice = f"Start it or correct base_url in [providers.{name}]."
        findings.append((state, f"Cannot connect to {url} (provider {name}). {advice}"))

    async with open_models(config) as models, trio.open_nursery() as nursery:
        findings += [("problem", reason) for reason in models.unusable.values()]
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
        yield "problem", f"{', '.join(missing)} in [shell] roots is not a directory: create it, or remove it there"
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
    yield "ok", f"{answer.provider}/{answer.model} is available ({answer.dimension} dimensions)"
    for name, found in _conditions(config):
        if found.index is not None and not found.index.matches(answer):
            yield (
                "note",
                f"{name} has vectors of {found.index.provider}/{found.index.model}, and another model or form of it is "
                f"configured now; to go over to it: pattern embeddings switch -c {name}",
            )
        elif found.done < found.total:
            words = f"{name}: texts embedded: {found.done} of {found.total}"
            yield "note", f"{words}; the others follow when it is next in use"


def _folders(config: Config) -> Looked:
    for name, found in _conditions(config):
        for folder in found.unavailable:
            advice = f"correct that, then: pattern folder index {folder.name} -c {name}"
            yield "problem", f"{folder.name} of {name} could not be read: {folder.status_reason}; {advice}"


def _sources(config: Config) -> Looked:
    """Yield what is wrong with the accounts of sources and channels, as far as their rows and the configuration say."""
    settings, now = source_settings(config), now_text(SystemClock())
    for home, found in _conditions(config):
        for row, in_doubt, people in found.sources:
            name, where = f"{row.name} of {home}", f"{row.name} -c {home}"
            if row.source_type not in SOURCES:
                yield "problem", f"{name} is a {row.source_type}, which this version does not know: update Pattern"
                continue
            kind = kind_of(row.source_type)
            state: State = "problem" if row.enabled else "note"
            for field in kind.secret_fields:
                try:
                    trio.run(read_secret, settings.secrets, str(row.config.get(field)), "sources")
                except InvalidInput as error:
                    yield state, f"{name}: {error.message}"
            if not row.enabled:
                yield "note", f"{name} is paused; to continue: pattern source resume {where}"
            elif row.error is not None:
                advice = f"correct that, then: pattern source test {where}"
                yield "problem", f"{name} fails since {row.failing_since}: {row.error}; {advice}"
            elif kind.is_called and row.last_event_at is None:
                yield "note", f"{name} was never called; have its service post to /hooks/{row.id}"
            if in_doubt:
                advice = f"pattern source deliveries {where} lists them, --retry ID sends one again"
                yield "problem", f"{name}: perhaps sent, perhaps not: {in_doubt} answers; {advice}"
            if waiting := [plain(one.name) for one in people if (one.expires_at or "") > now]:
                advice = f"to let one in: pattern channel approve {row.name} CODE -c {home}"
                yield "note", f"{name}: {', '.join(waiting)} may not talk yet; {advice}"


def _conditions(config: Config) -> Iterator[tuple[str, Condition]]:
    """Yield the constellations with files that can be opened, by name; `_databases` reports the others."""
    with suppress(DatabaseError, NotFound):
        for target in targets(config) if _is_usable(config.data_dir) else ():
            if target.kind == "constellation":
                with (
                    suppress(DatabaseError),
                    opened_at(target.path, readonly=True) as opened,
                ):
                    target.migrations.check(opened)
                    yield target.name, condition(opened)


CHECKS: tuple[tuple[str, Callable[[Config], Looked]], ...] = (
    ("python", _python), ("sqlite", _sqlite), ("migrations", _migrations), ("disk", _disk), ("open files", _open_files),
    ("data", _data), ("server", _server), ("databases", _databases),
    ("backups", _backups), ("models", _models), ("settings", _settings),
    ("exposure", _exposure), ("sign in", _sign_in), ("web", _web), ("shell", _shell), ("mcp", _mcp),
    ("embeddings", _embeddings), ("folders", _folders), ("sources", _sources),
)  # fmt: skip
