from __future__ import annotations

from pattern_core.files.reading.markup import read_html

PAGE = b"""<!DOCTYPE html><html><head><title>Garden</title><style>p { color: red }</style></head>
<body><script>alert("no")</script><h1>Beds</h1><p>Four of <b>them</b>,
in a row.</p><ul><li>north<li>south</ul><h2>Code</h2><pre>a
  b</pre><table><tr><th>bed</th><td>soil</td></tr></table><!-- not this --><p>End&nbsp;&amp; out.</p></body></html>"""


def test_a_page_becomes_markdown() -> None:
    assert read_html(PAGE).split("\n") == [
        "# Beds",
        "",
        "Four of them, in a row.",
        "",
        "- north",
        "- south",
        "",
        "## Code",
        "",
        "```",
        "a",
        "  b",
        "```",
        "",
        "| bed | soil |",
        "",
        "End\u00a0& out.",
        "",
    ]


def test_a_title_stands_for_a_missing_heading() -> None:
    assert read_html(b"<title>Garden</title><p>Words") == "# Garden\n\nWords\n"


def test_the_encoding_is_what_the_page_says() -> None:
    page = '<meta charset="iso-8859-1"><p>Grün'.encode("latin-1")
    assert read_html(page) == "Grün\n"


def test_the_deepest_page_is_read() -> None:
    assert "deep" in read_html(b"<div>" * 20_000 + b"deep")
