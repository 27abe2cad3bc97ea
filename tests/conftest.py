"""What all tests share: hypothesis without deadlines, certificates read once, and the folder of real conversations."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import httpcore2
import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# No deadline: on a loaded machine the default of 200 ms fails correct code. Derandomized: the same examples in each
# run, so that a failure is the change's and not the day's. PATTERN_TEST_EXAMPLES=2000 looks harder.
settings.register_profile(
    "pattern",
    deadline=None,
    derandomize=True,
    max_examples=int(os.environ.get("PATTERN_TEST_EXAMPLES", "40")),
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("pattern")

# Reading the system's certificates takes 20 ms of each HTTP client, and there are thousands.
httpcore2.default_ssl_context = cache(httpcore2.default_ssl_context)
# Tests start hundreds of servers and commands: modules are compiled once and not at every start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of conversations for tests (`locomo/dev.json` …); the test is skipped where there is none.

    It may not be redistributed, so it is never part of a checkout: it is looked for in PATTERN_TEST_DATA, then beside
    the checkout as `../shared/data`.
    """
    named = os.environ.get("PATTERN_TEST_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the test data is not at {folder}; set PATTERN_TEST_DATA to its folder to run this test")
    return folder
