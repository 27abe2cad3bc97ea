"""A server in a process of its own, which outlives the command that starts it; and what an empty one begins with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import trio

from pattern_core.errors import Unavailable
from pattern_db.files import holder_of
from pattern_server.cli.client import (
    LOCK_PATIENCE_S,
    Api,
    RunningServer,
    ServerUnreachable,
    connection,
    running_server,
)
from pattern_server.cli.output import Output
from pattern_server.config import Config, file_of, require_data

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.02
LOG_LINES_SHOWN = 12
LOG_FILE = "server.log"
HOME, FIRST_AGENT = "home", "ada"


class ServerProcess:
    """A server on `data_dir` in a process of its own; its log is the file `server.log` there.

    It listens at a free port if `port` is 0. `file` is its configuration, if not the one in the data directory.
    """

    def __init__(self, data_dir: Path, *, host: str = "127.0.0.1", port: int = 0, file: Path | None = None) -> None:
        self._data_dir = data_dir
        self._log = data_dir / LOG_FILE
        self._process: trio.Process | None = None
        self._host, self._port, self._file = host, port, file

    async def start(self) -> tuple[RunningServer, float]:
        """Start it and wait until it is ready; return its address and the seconds needed. A restart keeps the port.

        Raises:
            Unavailable: it ended, or was not ready in time; the message holds the end of its log.
        """
        began = trio.current_time()
        self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pattern_server", "serve", "--data-dir", str(self._data_dir)]
        command += ["--host", self._host, "--port", str(self._port)]
        command += [] if self._file is None else ["--config", str(self._file)]
        with os.fdopen(os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
            # In the data directory, so that no pattern.toml in the user's current directory is read.
            process = await trio.lowlevel.open_process(
                command, cwd=self._data_dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._process = process
        while trio.current_time() - began < START_TIMEOUT_S:
            if process.poll() is not None:
                raise Unavailable(f"the server ended with code {process.returncode}:\n{self._end_of_log()}")
            server = running_server(self._data_dir)
            if server is not None and server.pid == process.pid and await _is_ready(server):
                self._port = httpx2.URL(server.url).port or 0
                return server, trio.current_time() - began
            await trio.sleep(POLL_S)
        raise Unavailable(f"the server was not ready within {START_TIMEOUT_S:.0f} s:\n{self._end_of_log()}")

    async def kill(self) -> None:
        """End it at once, as a power cut would: SIGKILL, without a word of warning. Nothing happens if it has ended."""
        if self._process is not None:
            self._process.kill()
            with trio.CancelScope(shield=True):  # a killed process is gone at once; unreaped it would look alive
                await self._process.wait()
            self._process = None

    async def stop(self) -> int:
        """End it as an operator does: SIGTERM, it drains; its exit code. A server that does not end is killed.

        Raises:
            Unavailable: it did not end in time.
        """
        process = self._process
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_TIMEOUT_S):
            await process.wait()
        code = process.poll()
        await self.kill()
        if code is None:
            raise Unavailable(f"the server did not stop within {STOP_TIMEOUT_S:.0f} s:\n{self._end_of_log()}")
        return code

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Api]:
        """Yield its API.

        Raises:
            ServerUnreachable: it does not run.
        """
        server = running_server(self._data_dir)
        if server is None:
            raise ServerUnreachable("the server does not run")
        async with connection(server) as http:
            yield Api(http, streams=True)

    def _end_of_log(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES_SHOWN:])


async def ensure_server(config: Config) -> tuple[RunningServer, bool]:
    """Return the server that runs on the data directory, and whether it was started by this: in the background, where
    it stays until it is stopped. Where no port is configured and the usual one is in use, it listens at a free one.

    Raises:
        NotFound: as `require_data`.
        Unavailable: it did not start; the message holds the end of its log.
    """
    found = running_server(config.data_dir)
    if found is not None:
        return found, False
    require_data(config, creates=True)
    is_free = "port" in config.model_fields_set or not await _is_in_use(config.host, config.port)
    port = config.port if is_free else 0
    process = ServerProcess(config.data_dir, host=config.host, port=port, file=file_of(config))
    try:
        return (await process.start())[0], True
    except Unavailable:
        with trio.move_on_after(LOCK_PATIENCE_S):  # another command may be about to start one
            while holder_of(config.data_dir) is not None:
                if (found := running_server(config.data_dir)) is not None:
                    return found, False
                await trio.sleep(POLL_S)
        raise


async def ensure_hosted(config: Config, output: Output, *, is_needed: bool = False) -> bool:
    """Start a server in the background if none runs, on an empty data directory, for a person at a terminal, or where
    `is_needed`, since a script should leave nothing behind; return whether the directory is empty.

    Raises:
        NotFound, Unavailable: as `ensure_server`.
    """
    is_empty = next((config.data_dir / "constellations").glob("*"), None) is None
    if is_needed or is_empty or (sys.stdin.isatty() and sys.stdout.isatty()):
        with output.progress("Starting the server"):
            server, is_new = await ensure_server(config)
        if is_new:
            output.note(f"Started the server at {server.url}. To stop it: pattern down")
    return is_empty


async def _is_in_use(host: str, port: int) -> bool:
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError:
        return True
    for listener in listeners:
        await listener.aclose()
    return False


async def first_agent(api: Api) -> bool:
    """Create `home` with the agent `ada` where there is no constellation; return whether there was none."""
    if await api.pages("constellations", most=1):
        return False
    await api.call("POST", "constellations", body={"name": HOME})
    await api.call("POST", "constellations", HOME, "agents", body={"name": FIRST_AGENT})
    return True


async def _is_ready(server: RunningServer) -> bool:
    async with connection(server) as http:
        try:
            return (await http.get("/readyz")).status_code == 200
        except httpx2.TransportError:
            return False
