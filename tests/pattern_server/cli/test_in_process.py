"""The API without a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx2

from pattern_server.cli.in_process import open_in_process
from pattern_server.config import load


async def test_the_application_answers_without_a_socket(tmp_path: Path) -> None:
    async with open_in_process(load(data_dir=tmp_path)) as (transport, token):
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://t", headers=headers) as http:
            assert (await http.get("/api/v1/me")).json()["username"] == "admin"
    assert not (tmp_path / "server.json").exists(), "nobody else can call it"


def test_a_command_that_finds_a_server_does_not_import_one() -> None:
    code = (
        "import sys; from pattern_server.cli import chat, memory, search, constellations, agents;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'fastapi', 'starlette', 'loro'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
