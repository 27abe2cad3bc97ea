"""Each coordination, killed after each of its commits: no member is asked twice, none is skipped, the answer is the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.pattern_core.groups.rig import lived

CASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "round_robin": ("round_robin", {}),
    "dynamic": ("dynamic", {"selector": "random", "selector_config": {"count": 2}}),
    "chosen by a member": ("dynamic", {"selector": "supervisor"}),
    "supervisor": ("supervisor", {}),
    "pipeline": ("pipeline", {"stages": [{"name": "bob"}, {"name": "all", "agents": ["ada", "cleo"], "mode": "all"}]}),
    "stages side by side": ("pipeline", {"parallel_stages": True, "context": "shared"}),
    "voting": ("voting", {"quorum": 3}),
    "parallel": ("parallel", {"aggregator": "cleo"}),
    "swarm": ("swarm", {}),
    "debate": ("debate", {"judge": "cleo", "rounds": 2}),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_group_that_is_killed_after_any_commit_ends_as_if_it_was_not(case: str) -> None:
    pattern, config = CASES[case]
    # A message that is accepted in the second life has another seed than in an undisturbed one.
    messages = ["Is it time?"] if config.get("selector") == "random" else ["Is it time?", "And now?"]
    whole, commits = await lived(messages, pattern, config)
    assert [status for status, _answer in whole.answers] == ["completed"] * len(messages)
    assert commits > 5
    for kill_at in range(1, commits + 1):
        found, _commits = await lived(messages, pattern, config, kill_at=kill_at)
        assert found == whole, f"killed after commit {kill_at}"
