from __future__ import annotations

import pytest

from pattern_core.testing.clock import StoppedClock
from pattern_core.web import cache as module
from pattern_core.web.cache import AGE_MS_MAX, PageCache
from pattern_core.web.page import Format, Page


def page(text: str = "tea", wanted: Format = "markdown") -> Page:
    return Page(url="u", status=200, content_type="text/html", format=wanted, title="", text=text)


def test_pages_are_kept_by_address_and_form_for_five_minutes() -> None:
    clock = StoppedClock()
    cache = PageCache(clock)
    cache.put("a", page())
    assert cache.get("a", "markdown") == page()
    assert cache.get("a", "html") is None
    assert cache.get("b", "markdown") is None
    clock.advance(AGE_MS_MAX - 1)
    assert cache.get("a", "markdown") == page()
    clock.advance(1)
    assert cache.get("a", "markdown") is None


def test_the_least_used_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHARS_MAX", 10)
    monkeypatch.setattr(module, "PAGE_CHARS", 0)
    cache = PageCache(StoppedClock())
    cache.put("a", page("1234"))
    cache.put("b", page("1234"))
    assert cache.get("a", "markdown")
    cache.put("c", page("1234"))
    assert [url for url in "abc" if cache.get(url, "markdown")] == ["a", "c"]
    cache.put("a", page("123456"))  # in the place of itself
    assert [url for url in "abc" if cache.get(url, "markdown")] == ["a", "c"]
    cache.put("d", page("x" * 11))
    assert [url for url in "abcd" if cache.get(url, "markdown")] == []
    cache.put("e", page("x" * 10))
    assert cache.get("e", "markdown")


def test_pages_without_a_word_have_an_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHARS_MAX", 3 * module.PAGE_CHARS)
    cache = PageCache(StoppedClock())
    for url in "abcde":
        cache.put(url, page(""))
    assert [url for url in "abcde" if cache.get(url, "markdown")] == ["c", "d", "e"]
