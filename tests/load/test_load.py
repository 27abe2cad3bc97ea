"""A little load of every kind: nothing fails. `python -m tests.load` has the whole one, and looks at the times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.load.phases import PHASES, run
from tests.load.world import Scale

LITTLE = Scale(
    readers=20,
    constellations=4,
    rate=20,
    seconds=2,
    messages=10,
    queued=40,
    registered=12,
    awake=8,
    rest_s=1,
    accounts=5,
)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="the system does not tell of memory there")
@pytest.mark.parametrize("name", PHASES)
async def test_nothing_fails_under_load(name: str) -> None:
    found = await run(name, LITTLE)
    assert not found.failures
    assert all(figure.values for figure in found.figures)
