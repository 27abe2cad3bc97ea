from __future__ import annotations

from pattern_core.memory.authors import agent_author, is_agent, short_name


def test_agents_are_told_from_people_and_the_system() -> None:
    assert agent_author("agt_1") == "agent:agt_1"
    assert [is_agent(author) for author in ("agent:agt_1", "user:usr_1", "system")] == [True, False, False]
    assert [short_name(author) for author in ("agent:agt_1", "user:usr_1", "system")] == [
        "agt_1",
        "user:usr_1",
        "system",
    ]
