"""A real server in a process of its own, for stories that kill it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import trio

TOKEN = "scenario-token-0123456789abcdef-0123456789"
START_TIMEOUT_S = 60.0
API = "/api/v1"
PROGRAM = ("-m", "pattern_server")


class Server:
    """`pattern serve` on a folder, which may be killed and started again on the same files and the same port."""

    def __init__(
        self, folder: Path, *, environment: Mapping[str, str] | None = None, program: Sequence[str] = PROGRAM
    ) -> None:
        self.folder = folder
        self._program = program
        self.url = ""
        self._port = 0
        no_model = {"PATTERN_EMBEDDINGS__PROVIDER": "deterministic"}
        given = {"PATTERN_BOOTSTRAP_TOKEN": TOKEN, **(environment or {})}
        self._environment = {**os.environ, **no_model, **given}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            AssertionError: it stopped by itself, or is not ready in time; the message holds the end of its log.
        """
        self._process = process = self._spawn()
        log = self.folder / "server.log"
        with trio.move_on_after(START_TIMEOUT_S):
            while not await self._is_ready():
                assert process.poll() is None, f"the server stopped:\n{_tail(log)}"
                await trio.sleep(0.03)
            return
        raise AssertionError(f"the server is not ready after {START_TIMEOUT_S} s:\n{_tail(log)}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, *self._program, "serve", "--data-dir", str(self.folder)]
        with (self.folder / "server.log").open("ab") as output:
            return subprocess.Popen(
                [*command, "--port", str(self._port)], stdout=output, stderr=output, env=self._environment
            )

    async def _is_ready(self) -> bool:
        try:
            state = json.loads(await trio.Path(self.folder / "server.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        if state["pid"] != self.pid:
            return False
        self.url = state["url"].rstrip("/")
        self._port = int(self.url.rsplit(":", 1)[1])
        try:
            async with httpx2.AsyncClient(verify=False, timeout=60) as client:
                return (await client.get(f"{self.url}/readyz")).status_code == 200
        except httpx2.TransportError:
            return False

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, and wait for the drain; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """Leave no process behind, whatever happened."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @asynccontextmanager
    async def client(self, token: str = TOKEN) -> AsyncIterator[httpx2.AsyncClient]:
        """A client with the bootstrap token and the API's prefix."""
        headers = {"Authorization": f"Bearer {token}"}
        # Plain HTTP on this machine: loading certificates would take longer than most requests.
        async with httpx2.AsyncClient(base_url=self.url + API, headers=headers, timeout=30.0, verify=False) as client:
            yield client


@asynccontextmanager
async def serving(
    folder: Path, *, environment: Mapping[str, str] | None = None, program: Sequence[str] = PROGRAM
) -> AsyncIterator[Server]:
    """A started server, stopped at the end of the block."""
    server = Server(folder, environment=environment, program=program)
    try:
        await server.start()
        yield server
    finally:
        server.stop()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3_000:]
