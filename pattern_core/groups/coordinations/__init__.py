"""The coordinations: one file each. A new one is a file with a `COORDINATION`, and a line in the table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pattern_core.groups.coordination import Coordination
from pattern_core.groups.coordinations import (
    debate,
    dynamic,
    parallel,
    pipeline,
    round_robin,
    sleeptime,
    supervisor,
    swarm,
    voting,
)

COORDINATIONS: Mapping[str, Coordination[Any]] = MappingProxyType(  # by `pattern_type`
    {
        "round_robin": round_robin.COORDINATION,
        "dynamic": dynamic.COORDINATION,
        "supervisor": supervisor.COORDINATION,
        "pipeline": pipeline.COORDINATION,
        "voting": voting.COORDINATION,
        "parallel": parallel.COORDINATION,
        "debate": debate.COORDINATION,
        "swarm": swarm.COORDINATION,
        "sleeptime": sleeptime.COORDINATION,
    }
)
