from __future__ import annotations

from pattern_core.mcp_settings import is_server_name


def test_names_of_servers() -> None:
    assert all(is_server_name(name) for name in ("github", "a", "my_notes", "x-1", "a" * 24))
    assert not any(is_server_name(name) for name in ("", "1a", "A", "a__b", "a_", "_a", "a b", "a" * 25, "ä"))
