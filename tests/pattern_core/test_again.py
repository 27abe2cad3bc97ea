from __future__ import annotations

from pattern_core.again import Again


def test_what_would_come_out_the_same_is_made_once() -> None:
    made: list[object] = []

    def pair(*parts: str, end: str = "") -> list[str]:
        made.append(parts)
        return [*parts, end]

    def other(*parts: str) -> list[str]:
        return list(parts)

    again = Again()
    first = again(pair, "a", "b", end="!")
    assert first == ["a", "b", "!"]
    assert again(pair, "".join(["a"]), "b", end="!") is first
    assert again(other, "a", "b") == ["a", "b"]
    assert again(pair, "a", "b", end="?") == ["a", "b", "?"]
    assert again(pair, "a", "b", end="!") is not first  # only the last one is at hand
    assert len(made) == 3
    assert Again()(pair, "a", "b", end="!") is not first
