"""A machine for examples: a home folder of its own, with our program and nothing else of this one's user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.sources import ROOT

READY_S = 30.0
SCRIPT_S = 300.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A home folder of its own, where programs find ours and no keys."""

    home: Path

    def __post_init__(self) -> None:
        for folder in ("bin", ".venv/bin"):
            (self.home / folder).mkdir(parents=True)
        (self.home / ".venv/bin/activate").touch()
        for name, module in {"pattern": " -m pattern_server", "python": ""}.items():
            program = self.home / "bin" / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable}{module} "$@"\n', encoding="utf-8")
            program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """All that programs find."""
        return {
            "HOME": str(self.home),
            "PATH": f"{self.home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "PATTERN_PORT": "0",
            "PATTERN_EMBEDDINGS__PROVIDER": "deterministic",
        }

    @property
    def file(self) -> Path:
        """What a running server writes of itself."""
        return self.home / ".local/share/pattern/server.json"

    @property
    def server(self) -> Mapping[str, Any]:
        """What the running server says of itself; empty if there is none."""
        found: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8")) if self.file.exists() else {}
        return found

    def run(self, script: str) -> tuple[str, str]:
        """Run a shell script; what it writes to descriptor 9, and all of its output."""
        with (self.home / "output").open("w+", encoding="utf-8") as output:
            done = subprocess.run(
                ["bash", "-c", f"exec 9>&2 2>&1\n{script}"],
                cwd=self.home, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE,
                text=True, timeout=SCRIPT_S, check=False,
            )  # fmt: skip
            output.seek(0)
            return done.stderr, output.read()

    def until(self, *, runs: bool) -> None:
        """Wait until a server runs, or none does."""
        deadline = time.monotonic() + READY_S
        while bool(self.server) != runs:
            assert time.monotonic() < deadline, f"the server {'did not start' if runs else 'did not stop'}"
            time.sleep(0.05)

    def start(self, port: int = 0) -> subprocess.Popen[bytes]:
        """Start a server and wait until it runs; port 0 is any free one."""
        self.file.unlink(missing_ok=True)  # one that was killed leaves it behind
        environment = {**self.environment, "PATTERN_PORT": str(port)}
        with (self.home / "server.log").open("a") as log:
            command = [str(self.home / "bin/pattern"), "serve"]
            process = subprocess.Popen(command, cwd=self.home, env=environment, stdout=log, stderr=log)
        self.until(runs=True)
        return process

    @contextmanager
    def serving(self) -> Iterator[str]:
        """A server with the constellation `home` and the agent `ada` within the block; its address."""
        with self.start() as process:
            try:
                url = str(self.server["url"])
                for path, name in {"": "home", "/home/agents": "ada"}.items():  # a command costs ten times a request
                    self._post(f"{url.rstrip('/')}/api/v1/constellations{path}", {"name": name})
                yield url
            finally:
                process.terminate()

    def _post(self, url: str, body: Mapping[str, str]) -> None:
        headers = {"Authorization": f"Bearer {self.server['token']}"}
        httpx2.post(url, json=body, headers=headers, trust_env=False, timeout=READY_S).raise_for_status()

    def stop(self) -> None:
        """Stop the server that still runs there, if any."""
        if self.server:
            os.kill(self.server["pid"], signal.SIGTERM)
            self.until(runs=False)
