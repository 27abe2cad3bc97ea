from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.web import page as module
from pattern_core.web.download import Download
from pattern_core.web.page import read_page


def download(body: bytes, content_type: str | None = None, *, is_cut: bool = False) -> Download:
    headers = {} if content_type is None else {"content-type": content_type}
    return Download(url="https://example.org/a", status=200, headers=headers, body=body, is_cut=is_cut)


async def test_html_is_read_in_a_child() -> None:
    got = await read_page(
        download("<title>T</title><h1>Grüße</h1>".encode("cp1252"), "text/html; charset=cp1252"), "markdown"
    )
    assert (got.title, got.text, got.content_type, got.format) == ("T", "# Grüße", "text/html", "markdown")
    assert (await read_page(download(b" <!DOCTYPE html><p>tea"), "text")).text == "tea"


async def test_a_page_that_kills_its_reader_is_an_error_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHILD", "pattern_core.web.no_such_child")
    with pytest.raises(InvalidInput, match="ended that process"):
        await read_page(download(b"<p>tea", "text/html"), "markdown")


async def test_a_page_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_TIMEOUT_S", 0.01)
    with pytest.raises(InvalidInput, match="took longer"):
        await read_page(download(b"<p>tea", "text/html"), "markdown")


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        (b'{"a": 1}', "application/json", '{"a": 1}'),
        (b"<a/>", "application/atom+xml", "<a/>"),
        ("Grüße".encode(), "text/plain", "Grüße"),
        ("Grüße".encode("latin-1"), "text/plain; charset=latin-1", "Grüße"),
        ("Grüße".encode(), "text/plain; charset=nonsense", "Grüße"),
        (b"words", None, "words"),
        (b"", "text/plain", ""),
    ],
)
async def test_text_is_shown_as_it_is(body: bytes, content_type: str | None, text: str) -> None:
    assert (await read_page(download(body, content_type), "markdown")).text == text


async def test_an_encoding_that_no_page_has_is_not_believed() -> None:
    # 2 MB of it would be decoded for an hour.
    made_to_hang = (b"a-" + b"b9c8" * 500_000)[:2_000_000]
    got = await read_page(download(made_to_hang, "text/plain; charset=Punycode"), "markdown")
    assert got.text.startswith("a-b9c8")
    assert (await read_page(download(b"a\\u0062", "text/plain; charset=unicode_escape"), "text")).text == "a\\u0062"


async def test_what_a_server_says_of_a_page_is_cut() -> None:
    page = await read_page(download(b"<title>" + b"x" * 10_000 + b"</title><p>tea", "text/html"), "text")
    assert len(page.title) == module.TITLE_CHARS_MAX
    assert len((await read_page(download(b"tea", "text/" + "x" * 10_000), "text")).content_type) < 200


async def test_what_is_no_text_is_refused() -> None:
    for body, kind in ((b"\x89PNG", "image/png"), (b"%PDF-1.7", "application/octet-stream")):
        with pytest.raises(InvalidInput, match="no text can be made"):
            await read_page(download(body, kind), "markdown")
    with pytest.raises(InvalidInput, match="cannot be read"):
        await read_page(download(b"%PDF-1.7 broken", "application/pdf"), "markdown")


async def test_a_cut_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HTML_BYTES_MAX", 10)
    got = await read_page(download(b"<p>one two three", "text/html"), "text")
    assert (got.text, got.is_cut) == ("one two", True)
    assert (await read_page(download(b"words", "text/plain", is_cut=True), "text")).is_cut
