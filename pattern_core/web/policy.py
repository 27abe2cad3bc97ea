"""What the operator decides about the web, which pages may be asked for, and which addresses may be connected to.

A name on the web may point anywhere, also at this machine, at a router near it or at the service of a cloud that
hands out keys. So what is asked is not "is this address forbidden" but "is it public": what is not known is refused.

Sources: the IANA registries of special-purpose IPv4 and IPv6 addresses (RFC 6890 and its successors); RFC 4291 for the
forms of IPv6 that hold an IPv4 address, RFC 3056 (6to4), RFC 6052 (NAT64), RFC 5214 (ISATAP).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import trio
from pydantic import Field

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.models.providers.settings import Secret

if TYPE_CHECKING:
    import httpx2

    from pattern_core.mcp_settings import McpSettings
    from pattern_core.shell.policy import ShellSettings

URL_CHARS_MAX = 2_000
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9._:-]+")
_SECRET_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")  # of a file: it leads out of no folder
_ODD = re.compile(r"[\x00-\x20\x7f\\]")

EngineKind = Literal["none", "searxng", "brave"]
Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)]
_Networks: TypeAlias = tuple[IPv4Network | IPv6Network, ...]


def _networks(names: str) -> _Networks:
    return tuple(ip_network(name) for name in names.split())


# What a home server may be allowed to reach: private networks and the machine itself.
_PRIVATE = _networks("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 127.0.0.0/8 100.64.0.0/10 fc00::/7 ::1/128")
_NEVER = _networks(
    # This network, link-local (where clouds keep their metadata), protocol assignments, AS112, documentation,
    # benchmarks, the relays of 6to4, multicast, reserved.
    "0.0.0.0/8 169.254.0.0/16 192.0.0.0/24 192.31.196.0/24 192.52.193.0/24 192.175.48.0/24 192.0.2.0/24"
    " 198.51.100.0/24 203.0.113.0/24 198.18.0.0/15 192.88.99.0/24 224.0.0.0/4 240.0.0.0/4"
    # Services of clouds that hand out keys, also within private networks: the host of a virtual machine at Azure,
    # Alibaba's, Amazon's, Google's and Scaleway's.
    " 168.63.129.16/32 100.100.100.200/32 fd00:ec2::/32 fd20:ce::/32 fd00:42::42/128"
    # Within 2000::/3: protocol assignments with Teredo and ORCHID, documentation, AS112.
    " 2001::/23 2001:db8::/32 3fff::/20 2620:4f:8000::/48"
)
_GLOBAL_V6 = ip_network("2000::/3")
# Networks of IPv6 addresses that hold an IPv4 address, and how far from their end: 6to4, NAT64, mapped, translated
# (RFC 2765), compatible.
_HOLDING = {"2002::/16": 80, "64:ff9b::/96": 0, "::ffff:0:0/96": 0, "::ffff:0:0:0/96": 0, "::/96": 0}
_HOLDERS = {IPv6Network(name): shift for name, shift in _HOLDING.items()}
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPolicy:
    """What agents may reach. A host in a list stands for itself and all names below it.

    With `allow_hosts` nothing else may be reached; `deny_hosts` wins. `allow_private` lets private networks and this
    machine be reached, for a server at home.
    """

    ports: tuple[Port, ...] = (80, 443)  # ports that may be used
    allow_hosts: tuple[str, ...] = ()  # the only hosts that may be visited, each with its subdomains; none: all
    deny_hosts: tuple[str, ...] = ()  # hosts that are never visited, each with its subdomains
    allow_private: bool = False  # whether private networks and this machine may be reached

    def check(self, url: str) -> WebTarget:
        """Return the page at `url`, if it may be asked for.

        Raises:
            InvalidInput: it is not an address of a web page.
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
        """Return whether a name, or an address as text, is one of those that are never visited."""
        return any(_covers(entry, host) for entry in self.deny_hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Which engine, where, and its key; the address is the operator's word and not checked as agents' are."""

    kind: EngineKind = "none"  # search engine; `none`: only pages can be read
    base_url: str | None = None  # address of a SearXNG server that allows the format json
    api_key: Secret | None = None  # key of Brave; `api_key_env` names a variable with it


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings(WebPolicy):
    """The section `[web]`. `timeout_s` bounds one page with all its redirects, and one search."""

    search: EngineSettings = field(default_factory=EngineSettings)
    timeout_s: Annotated[float, Field(gt=0, le=300)] = 30.0  # for one page with its redirects, or one search


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSource:
    """A secret, `[webhooks.secrets.<name>]` or `[sources.secrets.<name>]`, by one of its fields. A file is read
    whenever it is used.
    """

    env: str = ""  # environment variable of the server with the secret
    file: Path | None = None  # file with the secret
    value: Secret | None = None  # the secret itself


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings(WebPolicy):
    """The section `[webhooks]`: where webhooks may lead, and the secrets that sign what they are sent."""

    secrets: dict[str, SecretSource] = field(default_factory=dict)
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 15.0  # for one delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSection(WebPolicy):
    """The section `[sources]`: which services and files sources and channels may reach, and the secrets they need."""

    secrets: dict[str, SecretSource] = field(default_factory=dict)
    roots: tuple[Path, ...] = ()  # directories with files that sources may watch; none: no files
    # addresses of other services than the usual ones that may be sent secrets, such as https://matrix.example.org
    services: tuple[str, ...] = ()
    timeout_s: Annotated[float, Field(gt=0, le=300)] = 30.0  # for one request

    def check_service(self, url: str, own: str = "") -> None:
        """Refuse an address that would be sent a secret, unless it is its service's `own`, or the operator named it.

        Raises:
            InvalidInput: it is not an address.
            PermissionDenied: it is another one, or the operator's rules forbid it.
        """
        if url not in (own, *self.services):
            raise PermissionDenied(f"{url} may not be sent a secret; add it to `services` below [sources]")
        self.check(url)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings(SourceSection):
    """What sources may reach. Nothing in the directories `kept_out` is read, such as the server's own data. In
    `secrets_in` is a file for each secret that the command line stored. `shell` is what commands may do (None: nothing
    runs), and `mcp` the configured MCP servers.
    """

    kept_out: tuple[Path, ...] = ()
    secrets_in: Path | None = None
    shell: ShellSettings | None = None
    mcp: Mapping[str, McpSettings] = field(default_factory=dict)


async def read_secret(secrets: Mapping[str, SecretSource], name: str, section: str, folder: Path | None = None) -> str:
    """Return a configured secret, as its source says now; `section` is where it belongs in the configuration. One that
    is not there may be a file in the `folder`.

    Raises:
        InvalidInput: there is none of this name, or its source holds none.
    """
    source = secrets.get(name)
    if (
        source is None
        and folder is not None
        and _SECRET_NAME.fullmatch(name)
        and await trio.Path(folder / name).exists()
    ):
        source = SecretSource(file=folder / name)
    if source is None:
        raise InvalidInput(
            f"no secret {name!r} is configured; add [{section}.secrets.{name}] with env or file to pattern.toml"
        )
    try:
        text = "" if source.file is None else await trio.Path(source.file).read_text()
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"the secret {name!r} cannot be read: {error}") from None
    if source.value is not None:
        text = source.value.get_secret_value()
    if not (text := text.strip()):
        raise InvalidInput(f"the secret {name!r} is empty; set what [{section}.secrets.{name}] names")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class WebTarget:
    """A page that may be asked for. `host` is a name in ASCII or an address, in lower case, without brackets."""

    url: httpx2.URL
    host: str
    port: int

    def join(self, location: str) -> str:
        """Return where a redirection leads to.

        Raises:
            InvalidInput: it is not an address.
        """
        import httpx2

        try:
            return str(self.url.join(location))
        except (httpx2.InvalidURL, ValueError):
            raise InvalidInput(f"{self.url} leads on to something that is not an address") from None


def _parsed(url: str) -> WebTarget:
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
        raise InvalidInput(f"{shown!r} is not a web address; write for example https://example.org/page") from None
    if parsed.scheme not in _PORTS:
        raise InvalidInput(f"{shown!r} does not begin with http:// or https://, so it cannot be fetched")
    if parsed.userinfo:
        raise InvalidInput("an address with a user name or password is not fetched; leave that part out")
    if host and not _HOST.fullmatch(host):
        raise InvalidInput(f"{shown!r} names no host that can be: {host!r}")
    if not host:
        raise InvalidInput(f"{shown!r} names no host; write it whole, such as https://example.org/page")
    return WebTarget(url=parsed, host=host, port=_PORTS[parsed.scheme] if port is None else port)


def _covers(entry: str, host: str) -> bool:
    entry = entry.lower().strip(".").removeprefix("*.")
    return host == entry or host.endswith("." + entry)


def refusal(address: str, *, allow_private: bool = False) -> str | None:
    """Return why nothing may connect to `address` (an IPv4 or IPv6 address as text); None if it may.

    `allow_private` lets private networks and this machine pass, but nothing else that is special.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return f"{address} is not an address"
    if isinstance(parsed, IPv6Address):
        if parsed.scope_id is not None:
            return f"{address} is an address of one network link"
        parsed = embedded(parsed) or parsed
    is_private = any(parsed in network for network in _PRIVATE)
    is_global = is_private or isinstance(parsed, IPv4Address) or parsed in _GLOBAL_V6
    if not is_global or any(parsed in network for network in _NEVER):
        return f"{parsed} is not an address on the public internet"
    return f"{parsed} belongs to a private network or to this machine" if is_private and not allow_private else None


def embedded(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for; None if it stands for itself."""
    number = int(address)
    if number <= 1:  # none, and this machine
        return None
    isatap = 0 if (number >> 32 & 0xFFFF_FFFF) in _ISATAP else None
    shift = next((shift for network, shift in _HOLDERS.items() if address in network), isatap)
    return None if shift is None else IPv4Address(number >> shift & 0xFFFF_FFFF)
