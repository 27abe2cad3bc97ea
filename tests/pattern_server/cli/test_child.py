"""A real server in a process of its own: started, found, killed, started again, stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pattern_core.errors import Unavailable
from pattern_server.cli.child import ServerProcess
from pattern_server.cli.client import ServerUnreachable, path, running_server


@pytest.mark.slow
async def test_a_childs_life(tmp_path: Path) -> None:
    child = ServerProcess(tmp_path / "data")
    try:
        server, took_s = await child.start()
        assert 0 < took_s < 30
        async with child.api() as api:
            await api.call("POST", path("constellations"), body={"name": "home"})
        await child.kill()
        assert running_server(tmp_path / "data") is None
        with pytest.raises(ServerUnreachable):
            async with child.api():
                pass
        again, _ = await child.start()
        assert again.url == server.url
        assert again.pid != server.pid
        async with child.api() as api:
            assert [row["name"] for row in await api.pages(path("constellations"))] == ["home"]
        assert await child.stop() == 0
        assert not (tmp_path / "data" / "server.json").exists()
        assert await child.stop() == 0
    finally:
        await child.kill()


@pytest.mark.slow
async def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    child, other = ServerProcess(tmp_path / "data"), ServerProcess(tmp_path / "data")
    try:
        server, _ = await child.start()
        with pytest.raises(Unavailable, match=str(server.pid)):
            await other.start()
        os.kill(server.pid, signal.SIGSTOP)  # it hangs, and does not hear that it should end
        os.kill(server.pid, signal.SIGCONT)
    finally:
        await other.kill()
        await child.kill()
