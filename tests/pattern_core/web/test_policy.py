from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.web.policy import URL_CHARS_MAX, WebPolicy


@pytest.mark.parametrize(
    ("url", "host", "port", "text"),
    [
        ("http://example.org", "example.org", 80, "http://example.org"),
        ("HTTPS://Example.ORG:443/a?b=c#d", "example.org", 443, "https://example.org/a?b=c"),
        ("http://bücher.de/ä", "xn--bcher-kva.de", 80, "http://xn--bcher-kva.de/%C3%A4"),
        ("http://example.org./", "example.org", 80, "http://example.org./"),
        ("http://[::1]/x", "::1", 80, "http://[::1]/x"),
    ],
)
def test_addresses_are_read_once(url: str, host: str, port: int, text: str) -> None:
    target = WebPolicy().check(url)
    assert (target.host, target.port, target.text.lower()) == (host, port, text.lower())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("example.org", "does not begin with http"),
        ("//example.org", "does not begin with http"),
        ("ftp://example.org/", "does not begin with http"),
        ("file:///etc/passwd", "does not begin with http"),
        ("javascript:alert(1)", "does not begin with http"),
        ("http://", "names no host"),
        ("http:///path", "names no host"),
        ("http://user:pw@example.org/", "user name or password"),
        ("http://example.org@127.0.0.1/", "user name or password"),
        ("http://exa mple.org/", "holds a blank"),
        ("http://example.org\\@evil/", "backslash"),
        ("http://example.org/\r\nHost: evil", "control character"),
        ("http://①.example/", "no web address"),
        ("http://[::1/", "no web address"),
        ("http://%5bbroken/", "no host that can be"),
        ("http://[fe80::1%25eth0]/", "no host that can be"),
        ("http://example.org/" + "x" * URL_CHARS_MAX, "at most 2000 characters"),
        ("", "does not begin with http"),
    ],
)
def test_what_is_no_address_of_a_page(url: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        WebPolicy().check(url)


def test_ports() -> None:
    for port in (0, 22, 25, 8080, 99999):
        with pytest.raises(PermissionDenied, match="allowed are 80, 443"):
            WebPolicy().check(f"http://example.org:{port}/")
    assert WebPolicy(ports=(8080,)).check("http://example.org:8080/").port == 8080


def test_hosts_stand_for_themselves_and_what_is_below() -> None:
    policy = WebPolicy(allow_hosts=("example.org", "*.Example.net"), deny_hosts=("secret.example.org",))
    for url in ("http://example.org/", "https://www.example.org/", "http://EXAMPLE.org./", "http://a.example.net/"):
        policy.check(url)
    for url in ("http://notexample.org/", "http://example.org.evil/", "http://secret.example.org/", "http://a.b/"):
        with pytest.raises(PermissionDenied, match="may not be visited"):
            policy.check(url)
    WebPolicy(deny_hosts=("a.b",)).check("http://c.d/")


def test_redirections_are_joined_and_addresses_put_in() -> None:
    target = WebPolicy().check("https://example.org/a/b?c=d")
    assert target.join("../x") == "https://example.org/x"
    assert target.join("//other.org/y") == "https://other.org/y"
    assert str(target.at("8.8.8.8")) == "https://8.8.8.8/a/b?c=d"
    assert str(target.at("2606::1")) == "https://[2606::1]/a/b?c=d"
