from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.models.providers.settings import Secret
from pattern_core.web.policy import URL_CHARS_MAX, SecretSource, WebPolicy, embedded, read_secret, refusal

PUBLIC = ["8.8.8.8", "93.184.216.34", "172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0", "11.0.0.1"]
PUBLIC += ["2606:2800:220:1:248:1893:25c8:1946", "2a00:1450:4001::200e", "64:ff9b::808:808", "2002:808:808::1"]
PUBLIC += ["::ffff:8.8.8.8"]
PRIVATE = ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "127.0.0.1", "127.255.255.254", "100.64.0.1"]
PRIVATE += ["::1", "fd00::1", "fc00::", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "2002:7f00:1::"]
PRIVATE += ["64:ff9b::7f00:1", "64:ff9b::a00:1", "::ffff:0:127.0.0.1", "2a00::5efe:192.168.0.1", "2a00::200:5efe:a00:1"]
NEVER = ["0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1"]
NEVER += ["198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"]
NEVER += ["168.63.129.16", "::", "fe80::1", "fec0::1", "ff02::1", "2001::1", "2001:db8::1", "3fff::1", "5f00::1"]
NEVER += ["168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42", "fe80::a9fe:a9fe"]
NEVER += ["::ffff:100.100.100.200", "2002:6464:64c8::", "64:ff9b::6464:64c8", "::ffff:168.63.129.16"]
NEVER += ["100::1", "64:ff9b:1::1", "::ffff:169.254.169.254", "2002:a9fe:a9fe::", "64:ff9b::a9fe:a9fe"]
NEVER += ["2620:4f:8000::1", "fd00:ec2::254%eth0", "no address", "127.1", "0x7f000001", "2130706433", "[::1]"]


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
    assert (target.host, target.port, str(target.url).lower()) == (host, port, text.lower())


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
        ("http://①.example/", "not a web address"),
        ("http://[::1/", "not a web address"),
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


@pytest.mark.parametrize(
    ("address", "is_open", "is_open_at_home"),
    [*product(PUBLIC, [True], [True]), *product(PRIVATE, [False], [True]), *product(NEVER, [False], [False])],
)
def test_which_addresses_are_reached(address: str, is_open: bool, is_open_at_home: bool) -> None:
    why, why_at_home = refusal(address), refusal(address, allow_private=True)
    assert (why is None, why_at_home is None) == (is_open, is_open_at_home)
    assert is_open or not is_open_at_home or "private network or to this machine" in str(why)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_nothing_passes_that_python_knows_as_special(address: object) -> None:
    parsed = ip_address(str(address))
    if isinstance(parsed, IPv6Address):
        parsed = embedded(parsed) or parsed
    if refusal(str(address)) is None:
        assert parsed.is_global and not parsed.is_multicast


async def test_a_secret_is_read_whenever_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / "key"
    secrets = {
        "a": SecretSource(file=file),
        "b": SecretSource(value=Secret(" words\n")),
        "c": SecretSource(value=Secret("")),
    }
    assert await read_secret(secrets, "b", "sources") == "words"
    for name, words in (("a", "cannot be read"), ("c", "is empty"), ("d", "sources.secrets.d")):
        with pytest.raises(InvalidInput, match=words):
            await read_secret(secrets, name, "sources")
    file.write_text("other words\n", encoding="utf-8")
    assert await read_secret(secrets, "a", "sources") == "other words"
