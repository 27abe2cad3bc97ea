"""A real server as a child process: started, found, killed and stopped, as an operator would."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import trio

from pattern_core.errors import Unavailable
from pattern_server.cli.client import Api, RunningServer, ServerUnreachable, connection, running_server

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.02
LOG_LINES_SHOWN = 12


class ServerProcess:
    """A server on `data_dir` in a process of its own; its log is the file `server.log` there."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._log = data_dir / "server.log"
        self._process: trio.Process | None = None
        self._port = 0

    async def start(self) -> tuple[RunningServer, float]:
        """Start it and wait until it is ready; its address, and how long that took in seconds. Once more: same port.

        Raises:
            Unavailable: it ended, or was not ready in time; the message holds the end of its log.
        """
        began = trio.current_time()
        self._data_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pattern_server", "serve", "--data-dir", str(self._data_dir)]
        command += ["--host", "127.0.0.1", "--port", str(self._port)]
        with self._log.open("ab") as log:
            # In the data directory, so that no pattern.toml of the place where the user stands is read.
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


async def _is_ready(server: RunningServer) -> bool:
    async with connection(server) as http:
        try:
            return (await http.get("/readyz")).status_code == 200
        except httpx2.TransportError:
            return False
