"""What all tests share: hypothesis without deadlines, certificates read once, the order and the number of processes of
a run, and the folder of real conversations.
"""

from __future__ import annotations

import gc
import os
import signal
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
# A shell that runs the tests in the background has them ignore Ctrl-C; programs that they start are to hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many workers more than processors: tests wait for disks, programs and clocks a third of their time."""
    return (os.cpu_count() or 1) * 3 // 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not look at it each time."""
    gc.freeze()


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
