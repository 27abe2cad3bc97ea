"""The coordinations: one file each. A new one is a file with its class, and a line in the table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pattern_core.groups.coordination import Coordination
from pattern_core.groups.coordinations.blackboard import Blackboard
from pattern_core.groups.coordinations.debate import Debate
from pattern_core.groups.coordinations.dynamic import Dynamic
from pattern_core.groups.coordinations.parallel import Parallel
from pattern_core.groups.coordinations.pipeline import Pipeline
from pattern_core.groups.coordinations.round_robin import RoundRobin
from pattern_core.groups.coordinations.sleeptime import Sleeptime
from pattern_core.groups.coordinations.supervisor import Delegation
from pattern_core.groups.coordinations.swarm import Swarm
from pattern_core.groups.coordinations.voting import Voting

COORDINATIONS: Mapping[str, type[Coordination]] = MappingProxyType(  # by `pattern_type`
    {
        "round_robin": RoundRobin,
        "dynamic": Dynamic,
        "supervisor": Delegation,
        "pipeline": Pipeline,
        "voting": Voting,
        "parallel": Parallel,
        "debate": Debate,
        "swarm": Swarm,
        "blackboard": Blackboard,
        "sleeptime": Sleeptime,
    }
)
