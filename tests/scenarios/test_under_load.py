"""A short soak and a short flood: `python -m tests.scenarios.soak --minutes 30` and `python -m tests.scenarios.flood`
are the long ones, of which the flood looks at the times too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios import flood
from tests.scenarios.soak import soaked

MINUTES = 0.4


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="the system does not tell of descriptors there")
async def test_a_server_at_work_stays_as_small_as_it_is(tmp_path: Path) -> None:
    soak = await soaked(tmp_path, MINUTES, 1)
    assert not soak.misses(MINUTES), str(soak)
    assert min(soak.done[what] for what in ("wait", "stream", "cancel", "edit", "search", "events")) > 0


@pytest.mark.slow
async def test_clients_without_a_token_keep_none_with_one_out(tmp_path: Path) -> None:
    few = {"PATTERN_HTTP__CONNECTIONS_MAX": "200"}
    attacks = {"open and close": 100, "silent": 400, "a byte a second": 300}
    for phase in await flood.run(tmp_path, attacks, 20, environment=few):
        assert not phase.failures, phase.name
        assert "ended" not in phase.name
        assert flood.percentile(phase.kept_ms, 50) < 5_000
