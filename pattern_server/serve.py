"""Wiring: the only place where the parts of a server are put together, in order, in one nursery.

trio.run(serve)
└─ data directory's lock, database threads, global.db
   └─ supervisor ── one task per awake constellation
      └─ listener ── application
"""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import trio

from pattern_core.embeddings.questions import EmbedderShelf
from pattern_core.errors import Unavailable
from pattern_core.ids import new_secret, now_text
from pattern_core.models.client import ModelClient
from pattern_core.models.model import Provider
from pattern_core.runtime import Runtime
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import ToolSettings
from pattern_db.database import Database, DatabaseThreads
from pattern_db.errors import DatabaseError, DiskFull, RowNotFound
from pattern_db.files import DataDirLock
from pattern_db.tables import constellations, outbox
from pattern_server.accounts import Accounts, Unauthorized
from pattern_server.backups import Backups
from pattern_server.config import (
    Config,
    ConfigError,
    check_exposure,
    service_manager,
    unknown_variables,
    write_private,
)
from pattern_server.constellations import Constellations
from pattern_server.credentials import Passwords
from pattern_server.files import ConstellationFiles
from pattern_server.global_database import GlobalDatabase, open_global
from pattern_server.http.app import Application, build_app
from pattern_server.http.routing import ServerState
from pattern_server.identities import Identities
from pattern_server.listener import listen
from pattern_server.metrics import Metrics
from pattern_server.models import ModelSetup, open_models
from pattern_server.sections import raise_descriptor_limit
from pattern_server.settings import (
    configured_budgets,
    configured_mcp,
    embedder_shelf,
    shell_settings,
    source_settings,
    webhook_settings,
)
from pattern_server.sign_in import SignIns
from pattern_server.sources import SourceAccounts
from pattern_server.supervisor import WAKES_AT_ONCE, Supervisor, Wakeups

if TYPE_CHECKING:
    from pattern_core.constellation import Constellation
    from pattern_server.telemetry import Telemetry

SERVER_FILE = "server.json"
FIRST_TOKEN_FILE = "admin.token"
HALTS_LOG = "halts.log"
WAKE_RETRY_S = 5.0  # at least, until a constellation that is due and could not be woken is woken again
COLD_QUESTION_S = 30.0  # for the vector of a question while the model is loading
RESUMING = "unfinished turns are being resumed"
OURS = "pattern"  # the parent of our loggers
GRACE_S = 2.0  # for running answers, after all constellations have stopped
YOUNG_OBJECTS_MAX = 2_000  # until the next garbage collection of a running server

_log = logging.getLogger("pattern.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A listening server. `token` is the admin's first API token, if this start created it."""

    url: str
    data_dir: Path
    token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A server without a listener; `local_token` is valid for this run and has all rights."""

    state: ServerState
    files: ConstellationFiles
    lock: DataDirLock
    local_token: str
    wakeups: Wakeups


async def serve(
    config: Config,
    *,
    on_ready: Callable[[Ready], None] = lambda _ready: None,
    shutdown: trio.Event | None = None,
    providers: Mapping[str, Provider] | None = None,
    task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a server until SIGTERM or SIGINT; a second one stops it at once.

    With a `shutdown` event no signals are handled, which only the main thread could do: setting it drains the server.
    `providers` are added to the configured ones, by name.

    Raises:
        OwnedElsewhere: another server works on the data directory; the message names its process. SchemaOutdated:
        global.db needs `pattern db migrate`.
        ListenFailed: the address cannot be listened on.
        DatabaseError: the files cannot be opened.
        InvalidInput: a signing key is too short.
        ConfigError: it would serve other machines without TLS, or without a token.
    """
    check_exposure(config)
    began = trio.current_time()
    configure_logs(config.log_level, config.log_format)
    raise_descriptor_limit()
    async with assembled(config, providers or {}) as parts, trio.open_nursery() as beside:
        token = await _bootstrapped(parts, config)
        shutdown = _shutdown_by_signals(beside) if shutdown is None else shutdown
        stop = trio.Event()
        app = build_app(parts.state)
        listening = partial(
            listen,
            app,
            host=config.host,
            port=config.port,
            stop=stop,
            grace_s=GRACE_S,
            connections_max=config.http.connections_max,
            connections_per_address_max=config.http.connections_per_address_max,
        )
        async with trio.open_nursery() as nursery:
            url = await nursery.start(listening)
            ready = Ready(url=url, data_dir=config.data_dir, token=token)
            with _announced(parts, ready):
                seconds = round(trio.current_time() - began, 3)
                _log.info("ready", {"url": url, "data_dir": str(config.data_dir), "seconds": seconds})
                on_ready(ready)
                task_status.started(ready)
                go_on = partial(_go_on, parts, partial(beside.start_soon, partial(trio.to_thread.run_sync, _load, app)))
                wake_due, state = partial(_wake_due, parts), parts.state
                for task in (_report_life, go_on, wake_due, state.backups.run, state.sources.run):
                    beside.start_soon(task)
                await shutdown.wait()
                _log.info("stopping")
                notify("STOPPING=1")
                parts.state.draining.set()
                await parts.state.supervisor.drain()
            stop.set()
        beside.cancel_scope.cancel()
    _log.info("stopped")


@asynccontextmanager
async def open_app(config: Config) -> AsyncIterator[tuple[Application, str]]:
    """Yield the application without a listener, and a token with all rights for it; for commands while no server runs.

    The exit waits for started turns, for as long as a server's drain. No schedule fires: a command must not start
    turns by itself.

    Raises:
        OwnedElsewhere: a server works on the data directory; the message names its process.
        DatabaseError: the files cannot be opened.
    """
    configure_logs("error", config.log_format)
    # A command loads the model again, and a person waits for its one search: it may last as long as that.
    limits = replace(config.limits, question_timeout_s=max(config.limits.question_timeout_s, COLD_QUESTION_S))
    async with assembled(config.model_copy(update={"limits": limits}), {}, has_timers=False) as parts:
        await parts.state.accounts.bootstrap(with_token=False)
        yield build_app(parts.state), parts.local_token
        await parts.state.supervisor.drain()


@asynccontextmanager
async def assembled(
    config: Config, providers: Mapping[str, Provider], *, has_timers: bool = True
) -> AsyncIterator[Assembled]:
    """Yield everything except the listener; stop everything in the opposite order.

    Raises:
        OwnedElsewhere: another server works on the data directory; the message names its process.
        DatabaseError: the files cannot be opened.
    """
    embedders, metrics = embedder_shelf(config), Metrics()
    runtime = _runtime(config, embedders, metrics, has_timers=has_timers)
    threads = DatabaseThreads(on_commit=metrics.commit_seconds.observe)
    with _private_files(), DataDirLock.acquire(config.data_dir) as lock, threads:
        # The file of a killed server names a process that no longer exists or is another program.
        (config.data_dir / SERVER_FILE).unlink(missing_ok=True)
        async with (
            open_global(config.data_dir / "global.db", threads, now=now_text(runtime.clock)) as database,
            open_models(config, runtime.randomness, providers) as models,
            _telemetry(config) as telemetry,
            _closing(embedders),
            trio.open_nursery() as nursery,
        ):
            files, wakeups = ConstellationFiles(config.data_dir, runtime), Wakeups(runtime.clock)
            run = partial(_run_constellation, registry=database, models=models.client, runtime=runtime, wakeups=wakeups)
            sources = SourceAccounts(database, runtime.clock, runtime.randomness)
            run = partial(run, on_wake=metrics.activation_seconds.observe, telemetry=telemetry, sources=sources)
            supervisor = Supervisor(partial(run, open_database=partial(files.open, threads=threads)), config.supervisor)
            await nursery.start(supervisor.run)
            local_token = new_secret()
            accounts = Accounts(database, runtime, local_token=local_token)
            sign_ins = SignIns(accounts, runtime, Passwords(config.passwords))
            identities = Identities(accounts, sign_ins, runtime, config.sign_in)
            copies = config.data_dir / "backups"
            constellations = Constellations(
                accounts=accounts, supervisor=supervisor, files=files, backups=copies, runtime=runtime
            )
            await constellations.clear()
            backups = Backups(config.backup, accounts, supervisor, files, runtime.clock)
            state = ServerState(
                config=config,
                accounts=accounts,
                sign_ins=sign_ins,
                identities=identities,
                constellations=constellations,
                backups=backups,
                supervisor=supervisor,
                runtime=runtime,
                draining=trio.Event(),
                pending=set(),
                started_at=now_text(runtime.clock),
                metrics=metrics,
                models=models,
                telemetry=telemetry,
                sources=sources,
                background=nursery,
            )
            _wire(metrics, models, supervisor, wakeups, backups, sources)
            nursery.start_soon(metrics.sample_lag, name="loop lag")
            yield Assembled(state=state, files=files, lock=lock, local_token=local_token, wakeups=wakeups)
            nursery.cancel_scope.cancel()


def _runtime(config: Config, embedders: EmbedderShelf, metrics: Metrics, *, has_timers: bool) -> Runtime:
    return Runtime(
        embedders=embedders,
        limits=config.limits,
        budgets=configured_budgets(config.budgets),
        meters=metrics,
        tools=ToolSettings(shell=shell_settings(config), web=config.web, halts_log=config.data_dir / HALTS_LOG),
        mcp=configured_mcp(config),
        webhooks=webhook_settings(config),
        sources=source_settings(config),
        has_timers=has_timers,
    )


@contextmanager
def _private_files() -> Iterator[None]:
    """Make files private to this user within the block: they hold conversations and hashes of tokens."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@asynccontextmanager
async def _closing(embedders: EmbedderShelf) -> AsyncIterator[None]:
    """Close them at the end of the block, also when it is cancelled."""
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await embedders.aclose()


@asynccontextmanager
async def _telemetry(config: Config) -> AsyncIterator[Telemetry | None]:
    """Yield what exports traces; None if they are not configured.

    Raises:
        ConfigError: the library is not installed.
    """
    if config.telemetry.endpoint is None:
        yield None
        return
    try:
        module = await trio.to_thread.run_sync(import_module, "pattern_server.telemetry")
    except ImportError as error:
        words = f"telemetry.endpoint needs the extra `otel` ({error}); run: pip install 'pattern-server[otel]'"
        raise ConfigError(words, file=str(config.place)) from None
    telemetry: Telemetry = module.Telemetry(config.telemetry.endpoint)
    try:
        yield telemetry
    finally:
        await telemetry.aclose()


async def _run_constellation(
    constellation_id: str,
    started: Callable[[Constellation], None],
    *,
    registry: GlobalDatabase,
    open_database: Callable[[str], AbstractAsyncContextManager[Database]],
    models: ModelClient,
    runtime: Runtime,
    wakeups: Wakeups,
    on_wake: Callable[[float], None],
    telemetry: Telemetry | None,
    sources: SourceAccounts,
) -> None:
    """Open the constellation, call `started` once it is recovered, and run it until it is cancelled. The supervisor
    runs this. `on_wake` is called with how long that lasted, in seconds.

    Raises:
        DatabaseError: its file cannot be opened.
    """
    began = trio.current_time()
    # Half of all code, needed by the first constellation: imported in a thread, so that no request waits.
    core = await trio.to_thread.run_sync(import_module, "pattern_core.constellation")
    builtin = await trio.to_thread.run_sync(import_module, "pattern_core.tools.builtin")
    async with open_database(constellation_id) as database:
        constellation: Constellation = core.Constellation(
            id=constellation_id,
            database=database,
            models=models,
            tools=ToolRegistry(builtin.BUILTIN, runtime.tools),
            runtime=runtime,
        )
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(constellation.run)
                constellation.sources.on_change = partial(sources.changed, constellation_id)
                with suppress(DatabaseError):  # a full disk: the next start tries again
                    await sources.changed(constellation_id, await constellation.sources.accounts())
                if telemetry is not None:
                    nursery.start_soon(telemetry.follow, constellation)
                started(constellation)
                on_wake(trio.current_time() - began)
                # Later than that, because no request waits for it, and a full disk here is not a reason to stop.
                with suppress(DatabaseError):
                    await registry.write(constellations.touch, constellation_id, now_text(runtime.clock))
        finally:
            # A process that is killed leaves a log behind the file, and the next start opens that.
            with trio.CancelScope(shield=True), suppress(DatabaseError):
                due_at = await database.read(outbox.first_due)
                await registry.write(constellations.set_next_due, constellation_id, due_at)
                wakeups.set(constellation_id, due_at)


def _wire(
    metrics: Metrics,
    models: ModelSetup,
    supervisor: Supervisor[Constellation],
    wakeups: Wakeups,
    backups: Backups,
    sources: SourceAccounts,
) -> None:
    """Let the metrics show what others count, and log which models cannot be used."""
    metrics.sources, sources.use = sources, supervisor.use
    models.log_unusable()
    metrics.gates = models.client.gate_figures
    metrics.next_due = partial(_next_due, supervisor, wakeups)
    metrics.backups = lambda: backups.rounds
    metrics.states, metrics.failures = supervisor.states, lambda: supervisor.failures
    metrics.pending_approvals = supervisor.pending_approvals


def _next_due(supervisor: Supervisor[Constellation], wakeups: Wakeups) -> int | None:
    """Return when the first timer of all constellations is due, unix ms."""
    dues = [*wakeups.dues, *(one.timers.next_ms for one in supervisor.handles())]
    return min((due for due in dues if due is not None), default=None)


async def _bootstrapped(parts: Assembled, config: Config) -> str | None:
    for name in unknown_variables():
        _log.warning("unknown environment variable; check its spelling", {"variable": name})
    if config.open_loopback:
        _log.warning("every program on this machine may use chat sessions without a token, as open_loopback says")
    parts.state.pending.add(RESUMING)
    await parts.state.sign_ins.check_keys()
    accounts = parts.state.accounts
    given = None if config.bootstrap_token is None else config.bootstrap_token.get_secret_value()
    made = await accounts.bootstrap(given)
    if made is not None:
        write_private(config.data_dir / FIRST_TOKEN_FILE, f"{made}\n")
    if given is not None:
        try:
            await accounts.authenticate(given)
        except Unauthorized:
            _log.warning("PATTERN_BOOTSTRAP_TOKEN is not a valid token: it is used at the first start only")
    return made


@contextmanager
def _announced(parts: Assembled, ready: Ready) -> Iterator[None]:
    """Publish the server's address in `server.json` within the block, for users who may read the data directory."""
    path = ready.data_dir / SERVER_FILE
    content = {
        "pid": os.getpid(),
        "url": ready.url,
        "started_at": parts.state.started_at,
        "token": parts.local_token,
    }
    try:
        write_private(path, json.dumps(content))
    except DiskFull as error:
        _log.error("commands cannot find this server", {"reason": error.message})
    parts.lock.announce(ready.url)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def notify(message: str) -> None:
    """Send a message about this service to systemd, if that started it and listens."""
    address, _ = service_manager()
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            sender.send(message.encode())


async def _report_life() -> None:
    """Say to systemd that the server is ready, and at intervals that tasks still run: one that hangs is restarted."""
    notify("READY=1")
    _, silence_s = service_manager()
    while silence_s < math.inf:
        notify("WATCHDOG=1")
        await trio.sleep(silence_s / 2)


def _load(app: Application) -> None:
    """Import the whole API. Modules are frozen, so that garbage collections skip them: 60 ms each. From now on each is
    to be short, since the loop waits for it: 70 ms for the 50,000 new objects that are allowed at the start.
    """
    app.load()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)


async def _go_on(parts: Assembled, load: Callable[[], None]) -> None:
    """Wake the constellations that had turns open when the last server ended, a few at once. `load` is called when they
    are found, and has the API loaded before the first request, if it can: both at once would take longer.
    """
    registered = [row.id for row in await parts.state.accounts.database.read(constellations.list_all)]
    limiter = trio.CapacityLimiter(WAKES_AT_ONCE)

    async def wake(constellation_id: str) -> None:
        async with limiter:
            try:
                async with parts.state.supervisor.use(constellation_id):
                    _log.info("resuming unfinished turns", {"constellation": constellation_id})
            except Unavailable as error:
                _log.warning(
                    "cannot resume unfinished turns", {"constellation": constellation_id, "reason": error.message}
                )

    unfinished = await parts.files.unfinished(registered)
    load()
    async with trio.open_nursery() as nursery:
        for constellation_id in unfinished:
            nursery.start_soon(wake, constellation_id)
    parts.state.pending.discard(RESUMING)


async def _wake_due(parts: Assembled) -> None:
    """Wake parked constellations when they have something to do."""
    registry = parts.state.accounts.database

    async def wake(constellation_id: str) -> float | None:
        try:
            await registry.read(constellations.find, constellation_id)
            async with parts.state.supervisor.use(constellation_id):
                return None
        except RowNotFound:  # deleted since it was due
            return None
        except (Unavailable, DatabaseError) as error:
            _log.warning("cannot wake", {"constellation": constellation_id, "reason": error.message})
            wait_s = error.details.get("retry_after_s") if isinstance(error, Unavailable) else None
            return max(float(wait_s), WAKE_RETRY_S) if isinstance(wait_s, int | float) else WAKE_RETRY_S

    for constellation_id, due_at in (await registry.read(constellations.dues)).items():
        parts.wakeups.set(constellation_id, due_at)
    await parts.wakeups.run(wake)


def _shutdown_by_signals(nursery: trio.Nursery) -> trio.Event:
    """Return an event that the first SIGTERM or SIGINT sets; the second cancels the nursery."""
    shutdown = trio.Event()

    async def obey() -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                if shutdown.is_set():
                    _log.warning("stopping immediately", {"signal": signal.Signals(number).name})
                    nursery.cancel_scope.cancel()
                shutdown.set()

    nursery.start_soon(obey)
    return shutdown


def configure_logs(level: str, form: Literal["auto", "json", "text"]) -> None:
    """Log one structured line per event, ours and our libraries' alike: an event with fields is
    `log.info("ready", {"url": url})`, a mapping as the only argument.

    Everything from `level` (such as "info") on goes to standard error, as lines of JSON or text for people; of
    libraries at least warnings. Tracebacks never show the values of variables: those may be secrets. A standard error
    that cannot be written to, because of a full disk or a reader that left, does not end the server.
    """
    is_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    logging.raiseExceptions = False  # a line that cannot be written is dropped silently
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(is_text=is_text))
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().handlers = [handler]
    logging.getLogger().setLevel(max(logging.WARNING, number))
    logging.getLogger(OURS).setLevel(number)


class _Lines(logging.Formatter):
    """One line per event, as JSON or as words."""

    def __init__(self, *, is_text: bool) -> None:
        super().__init__()
        self._is_text = is_text

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. Called by the handler."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        fields: dict[str, Any] = dict(record.args) if isinstance(record.args, Mapping) else {}
        if not record.name.startswith(f"{OURS}."):
            fields["logger"] = record.name
        traceback = self.formatException(record.exc_info) if record.exc_info else None
        level = record.levelname.lower()
        if self._is_text:
            words = " ".join(f"{name}={value!r}" for name, value in fields.items())
            line = f"{time} [{level:8}] {record.getMessage()} {words}".rstrip()
            return line if traceback is None else f"{line}\n{traceback}"
        fields |= {"event": record.getMessage(), "level": level, "time": time}
        if traceback is not None:
            fields["exception"] = traceback
        return json.dumps(fields, ensure_ascii=False, default=str)
