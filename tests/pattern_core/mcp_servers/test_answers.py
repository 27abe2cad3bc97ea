"""What a server answers, as the model reads it."""

from __future__ import annotations

import pytest

from pattern_core.mcp_servers.answers import ERROR_CHARS_MAX, Answer, answer_of


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    ("parts", "structured", "shown"),
    [
        ([text("one"), text("two")], None, "one\n\ntwo"),
        ([], None, "done, without a word"),
        ([], {"a": 1}, '{"a": 1}'),
        ([text('{"a":1}')], {"a": 1}, '{"a":1}'),
        ([text("3")], {"result": 3}, "3"),
        ([text("three")], {"result": "three"}, "three"),
        ([text("found 1")], {"a": 1}, 'found 1\n\n{"a": 1}'),
        ([text("{broken")], [1], "{broken\n\n[1]"),
        (
            [{"type": "image", "mimeType": "image/png", "data": "A" * 4000}],
            None,
            "[image, image/png, 3,000 bytes: not shown]",
        ),
        ([{"type": "audio", "data": ""}], None, "[audio, of unknown type, 0 bytes: not shown]"),
        (
            [{"type": "resource_link", "uri": "file:///a", "name": "a", "description": "the first"}],
            None,
            "[a: file:///a] the first",
        ),
        ([{"type": "resource", "resource": {"uri": "u:1", "text": "inside"}}], None, "[u:1]\ninside"),
        ([{"type": "resource", "resource": {"uri": "u:2", "blob": "AAAA"}}], None, "[u:2, binary, 3 bytes: not shown]"),
        ([{"type": "resource"}], None, "[resource: not shown]"),
        ([{"type": "hologram"}], None, "[hologram: not shown]"),
    ],
)
def test_shown(parts: list[dict[str, object]], structured: object, shown: str) -> None:
    assert answer_of(parts, structured, is_error=False) == Answer(text=shown)


def test_an_error_is_short_and_has_words() -> None:
    long = answer_of([text("x" * 10_000)], None, is_error=True)
    assert (long.is_error, len(long.text)) == (True, ERROR_CHARS_MAX + 2)
    assert answer_of([], None, is_error=True).text == "no reason was given"
