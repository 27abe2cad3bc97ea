"""A short soak; `python -m tests.scenarios.soak --minutes 30` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.soak import soaked

MINUTES = 0.4


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="the system does not tell of descriptors there")
async def test_a_server_at_work_stays_as_small_as_it_is(tmp_path: Path) -> None:
    soak = await soaked(tmp_path, MINUTES, 1)
    assert not soak.misses(MINUTES), str(soak)
    assert min(soak.done[what] for what in ("wait", "stream", "cancel", "edit", "search", "events")) > 0
