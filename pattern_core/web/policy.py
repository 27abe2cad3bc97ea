"""What the operator decides about the web, and which pages may be asked for: schemes, hosts and ports.

The addresses behind a host are checked when they are known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.web.engines import EngineSettings

if TYPE_CHECKING:
    import httpx2

URL_CHARS_MAX = 2_000
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9._:-]+")
_ODD = re.compile(r"[\x00-\x20\x7f\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPolicy:
    """What agents may reach. A host in a list stands for itself and all names below it.

    With `allow_hosts` nothing else may be reached; `deny_hosts` wins. `allow_private` lets private networks and this
    machine be reached, for a server at home.
    """

    ports: Sequence[int] = (80, 443)
    allow_hosts: Sequence[str] = ()
    deny_hosts: Sequence[str] = ()
    allow_private: bool = False

    def check(self, url: str) -> Target:
        """The page at `url`, if it may be asked for.

        Raises:
            InvalidInput: it is no address of a web page.
            PermissionDenied: the operator's rules forbid it.
        """
        target = _parsed(url)
        if target.port not in self.ports:
            ports = ", ".join(str(port) for port in self.ports)
            raise PermissionDenied(f"port {target.port} may not be used; allowed are {ports}")
        if self.denies(target.host):
            raise PermissionDenied(f"{target.host} may not be visited: this server's rules forbid it")
        if self.allow_hosts and not any(_covers(entry, target.host) for entry in self.allow_hosts):
            raise PermissionDenied(
                f"{target.host} may not be visited: this server allows {', '.join(self.allow_hosts)}"
            )
        return target

    def denies(self, host: str) -> bool:
        """Whether a name, or an address as text, is one of those that are never visited."""
        return any(_covers(entry, host) for entry in self.deny_hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """What the operator decided. `timeout_s` bounds one page with all its redirects, and one search."""

    policy: WebPolicy = field(default_factory=WebPolicy)
    search: EngineSettings = field(default_factory=EngineSettings)
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A page that may be asked for. `host` is a name in ASCII or an address, in lower case, without brackets."""

    url: httpx2.URL
    host: str
    port: int

    @property
    def text(self) -> str:
        """The whole address as text."""
        return str(self.url)

    def at(self, address: str) -> httpx2.URL:
        """The same page at one address of its host, so that nobody asks for the host's addresses a second time."""
        return self.url.copy_with(host=address)

    def join(self, location: str) -> str:
        """Where a redirection leads to.

        Raises:
            InvalidInput: it is no address.
        """
        import httpx2

        try:
            return str(self.url.join(location))
        except (httpx2.InvalidURL, ValueError):
            raise InvalidInput(f"{self.text} leads on to something that is no address") from None


def _parsed(url: str) -> Target:
    # One parser only: where two read an address differently, one is checked and the other is visited.
    import httpx2

    shown = url if len(url) <= 200 else url[:200] + "…"
    if len(url) > URL_CHARS_MAX:
        raise InvalidInput(f"an address has at most {URL_CHARS_MAX} characters, this one {len(url)}")
    if _ODD.search(url):
        raise InvalidInput(f"{shown!r} holds a blank, a backslash or a control character; write it as %20, %5C …")
    try:
        parsed = httpx2.URL(url).copy_with(fragment=None)
        port = parsed.port
        host = parsed.raw_host.decode("ascii").lower().strip("[]").rstrip(".")
    except (httpx2.InvalidURL, ValueError, TypeError):
        raise InvalidInput(f"{shown!r} is no web address; write it whole, such as https://example.org/page") from None
    if parsed.scheme not in _PORTS:
        raise InvalidInput(f"{shown!r} does not begin with http:// or https://, so it cannot be fetched")
    if parsed.userinfo:
        raise InvalidInput("an address with a user name or password is not fetched; leave that part out")
    if host and not _HOST.fullmatch(host):
        raise InvalidInput(f"{shown!r} names no host that can be: {host!r}")
    if not host:
        raise InvalidInput(f"{shown!r} names no host; write it whole, such as https://example.org/page")
    return Target(url=parsed, host=host, port=_PORTS[parsed.scheme] if port is None else port)


def _covers(entry: str, host: str) -> bool:
    entry = entry.lower().strip(".").removeprefix("*.")
    return host == entry or host.endswith("." + entry)
