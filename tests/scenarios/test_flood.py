"""A short flood of connections without a token, beside a client with one. `python -m tests.scenarios.flood` is the
long one, which looks at the times too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios import flood


@pytest.mark.slow
async def test_clients_without_a_token_keep_none_with_one_out(tmp_path: Path) -> None:
    few = {"PATTERN_HTTP__CONNECTIONS_MAX": "200"}
    attacks = {"open and close": 100, "silent": 400, "a byte a second": 300}
    for phase in await flood.run(tmp_path, attacks, 20, environment=few):
        assert not phase.failures, phase.name
        assert "ended" not in phase.name
        assert flood.percentile(phase.kept_ms, 50) < 5_000
