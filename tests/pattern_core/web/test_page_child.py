from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pattern_core.web.page_child import DEPTH_MAX, RECURSION_MAX, read
from tests.sources import ROOT

URL = "https://example.org/garden/page.html"
PAGE = """<!DOCTYPE html>
<html><head><title>Tea &amp;
 gardens</title><style>p { color: red }</style><base href="/base/"></head>
<body>
<header>Site name</header><nav><a href="/">Home</a></nav>
<!-- a secret -->
<main><h1>Tea</h1><header>By Ruth</header>
<p>Ruth likes <b>Darjeeling</b> and <a href="tea_list.html#x">many_others</a>.
 See <a href="#top">above</a>, <a href="javascript:alert(1)">this</a>.</p>
<ul><li>first</li><li>second</li></ul>
<pre><code>brew(tea)
  wait()</code></pre>
<table><tr><th>Tea</th><th>°C</th></tr><tr><td>green</td><td>80</td></tr></table>
<img src="cup.png" alt="A cup"><img src="pixel.gif"><img src="data:image/png;base64,AAAA" alt="Dot">
<div class="box ads">Buy now</div><div id="cookie-banner">We like cookies</div><p style="display: none">hidden words</p>
<div class="shadow adspace">kept</div><p hidden>gone</p><script>alert(1)</script><svg><text>drawn</text></svg>
<p>The owl sleeps by day and hunts by night, and it is rather fond of the small garden behind the house, where mice
live under the shed and nobody ever mows the grass before the end of June in any year that Ruth remembers.</p>
</main><footer>Imprint</footer></body></html>"""
GONE = [
    "Site name",
    "Home",
    "secret",
    "Buy now",
    "cookies",
    "hidden",
    "gone",
    "alert",
    "drawn",
    "Imprint",
    "color",
    "AAAA",
]


def test_markdown() -> None:
    title, text = read(PAGE.encode(), "markdown", URL, None)
    assert title == "Tea & gardens"
    assert text.startswith("# Tea\n\nBy Ruth\n\nRuth likes **Darjeeling** and")
    assert "[many_others](https://example.org/base/tea_list.html#x)" in text
    assert "See above, this." in text
    assert "- first\n- second" in text
    assert "```\nbrew(tea)\n  wait()\n```" in text
    assert "| Tea | °C |" in text and "| green | 80 |" in text
    assert "![A cup](https://example.org/base/cup.png)" in text
    assert "Dot" in text and "kept" in text
    assert [word for word in GONE if word in text] == []
    assert "\n\n\n" not in text


def test_text_has_no_links_and_marks() -> None:
    _title, text = read(PAGE.encode(), "text", URL, None)
    assert "Ruth likes Darjeeling and many_others." in text
    assert "http" not in text and "**" not in text
    assert "green" in text and "brew(tea)" in text


def test_html_is_tidied() -> None:
    _title, text = read(PAGE.encode(), "html", URL, None)
    assert text.startswith("<main>") and '<a href="https://example.org/base/tea_list.html#x">' in text
    assert [word for word in GONE if word in text] == []


def test_a_page_without_a_main_part_is_read_whole() -> None:
    assert read(b"<p>one</p><article>two</article><p>three", "markdown", URL, None)[1] == "one\n\ntwo\n\nthree"
    assert read(b"just words", "markdown", URL, None) == ("", "just words")
    assert read(b"", "markdown", URL, None) == ("", "")


def test_encodings() -> None:
    assert read("<p>Grüße</p>".encode("latin-1"), "text", URL, "latin-1")[1] == "Grüße"
    assert read('<meta charset="cp1251"><p>чай</p>'.encode("cp1251"), "text", URL, None)[1] == "чай"


@pytest.mark.parametrize("wanted", ["markdown", "html", "text"])
def test_depth_does_no_harm(wanted: str) -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_MAX)
    try:
        deep = b"<div><b>" * (DEPTH_MAX * 5) + b"the owl" + b"</b></div>" * (DEPTH_MAX * 5)
        assert "the owl" in read(deep, wanted, URL, None)[1]
    finally:
        sys.setrecursionlimit(before)


def test_the_process_answers_in_json() -> None:
    command = [sys.executable, "-m", "pattern_core.web.page_child", "text", URL, "latin-1"]
    data = "<title>T</title><p>Grüße</p>".encode("latin-1")
    done = subprocess.run(command, input=data, capture_output=True, check=False, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"title": "T", "text": "Grüße"}
