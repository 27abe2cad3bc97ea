"""The sections of the configuration: the settings of each, with their meaning and default."""

from __future__ import annotations

import re
import resource
from dataclasses import dataclass, field
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pattern_core.embeddings.settings import EmbedderSection
from pattern_core.mcp_settings import SERVERS_MAX, McpSection, is_server_name
from pattern_core.models.model import ToolProfile
from pattern_core.models.providers import PROVIDERS
from pattern_core.models.providers.settings import OpenAIFormat, Secret
from pattern_core.models.throttle import ClientLimits
from pattern_core.shell.policy import ShellSection
from pattern_core.validation import must
from pattern_core.web.policy import SourceSection, WebhookSettings, WebSettings

DESCRIPTORS_WANTED = 65_536
_LOOPBACK = r"http://(127\.0\.0\.1|\[::1\]|localhost)"
DISK_BYTES_EASY = 1024 * 1024 * 1024  # with less free space, there is a warning


def _are_whole(paths: tuple[Path, ...]) -> bool:
    return all(path.is_absolute() for path in paths)


def _is_address(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _is_recipient(text: str) -> bool:
    return text.startswith(("age1", "ssh-"))


def _check_origin(origin: str) -> str:
    place = urlsplit(origin)
    if origin != "*" and (not place.netloc or origin.lower() != f"{place.scheme}://{place.netloc}".lower()):
        raise ValueError(f"{origin!r} is not an origin; write it as https://chat.example.org, without a path")
    return origin.lower()


def _check_kind(kind: str) -> str:
    if not kind:
        raise ValueError(f'is missing; set it to one of {", ".join(sorted(PROVIDERS))}, such as kind = "openai"')
    if kind not in PROVIDERS:
        raise ValueError(f"there is no kind {kind!r}; kinds are {', '.join(sorted(PROVIDERS))}")
    return kind


def _check_engine(web: WebSettings) -> WebSettings:
    if web.search.kind == "searxng" and not _is_address(web.search.base_url or ""):
        raise ValueError("search of kind searxng needs base_url, such as http://127.0.0.1:8888")
    if web.search.kind == "brave" and not web.search.api_key:
        raise ValueError("search of kind brave needs api_key, or api_key_env that names a variable which is set")
    return web


_Secrets = TypeVar("_Secrets", WebhookSettings, SourceSection)


def _check_secrets(section: _Secrets) -> _Secrets:
    for name, source in section.secrets.items():
        if [bool(source.env), source.file is not None, source.value is not None].count(True) != 1:
            raise ValueError(f"secrets.{name} needs one of env (the name of a variable), file and value")
    return section


_WHOLE = "each directory needs an absolute path, such as /srv/work"
WholePaths = Annotated[tuple[Path, ...], must(_are_whole, _WHOLE)]
WebhooksConfig = Annotated[WebhookSettings, AfterValidator(_check_secrets)]
SourcesConfig = Annotated[
    SourceSection, AfterValidator(_check_secrets), must(lambda sources: _are_whole(sources.roots), _WHOLE)
]
ShellConfig = Annotated[ShellSection, must(lambda shell: _are_whole((*shell.roots, *shell.readable)), _WHOLE)]
WebConfig = Annotated[WebSettings, AfterValidator(_check_engine)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelConfig(_Section):
    """Facts about a model, `[providers.<name>.models."<model>"]`, if the catalogue has none or wrong ones.

    Prices are micro-dollars per million tokens: 2_000_000 is $2.
    """

    window: Annotated[int, Field(ge=256)] | None = Field(default=None, description="tokens of prompt and answer")
    output_max: Annotated[int, Field(ge=1)] | None = Field(default=None, description="tokens of the longest answer")
    input_price: Annotated[int, Field(ge=0)] | None = None  # of tokens in the prompt
    output_price: Annotated[int, Field(ge=0)] | None = None  # of tokens in the answer
    cache_read_price: Annotated[int, Field(ge=0)] | None = None  # of prompt tokens read from the cache
    cache_write_price: Annotated[int, Field(ge=0)] | None = None  # of prompt tokens written to the cache
    images: bool | None = Field(default=None, description="it looks at pictures")
    tools: bool | None = Field(default=None, description="it calls tools")
    reasoning: bool | None = Field(default=None, description="it thinks before it answers")
    tool_calls: Literal["auto", "native", "text"] | None = Field(
        default=None, description="how it calls tools: in its server's format, in its text, or both (auto)"
    )
    tool_profile: ToolProfile | None = Field(default=None, description="`small` or `full`; default: by its window")


class ProviderConfig(_Section):
    """One vendor or compatible server, `[providers.<name>]` in the file."""

    kind: Annotated[str, AfterValidator(_check_kind)] = Field(
        default="", validate_default=True, description="API format; default: the section's name if it is a kind"
    )
    base_url: str | None = Field(default=None, description="URL of the API; default: the vendor's")
    api_key: Secret | None = Field(default=None, description="the key itself; never stored, never exported")
    omit: tuple[str, ...] = Field(default=(), description="fields that a compatible server does not accept")
    api: OpenAIFormat = Field(default="chat", description="which of OpenAI's formats is used")
    limits: ClientLimits = Field(default_factory=ClientLimits)
    models: dict[str, ModelConfig] = Field(default_factory=dict, description="facts about its models, by name")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsConfig(EmbedderSection):
    """The embedding model, `[embeddings]`, and the previous one, `[embeddings.former]`.

    The former model serves searches until the configured one has replaced it. It is needed only if the server cannot
    find it: a model's folder, a service at another URL.
    """

    former: EmbedderSection | None = None


def descriptors_max() -> int:
    """Return how many files this process may open after raising its soft limit."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)


def raise_descriptor_limit() -> None:
    """Ask the system for `descriptors_max()` open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < descriptors_max():
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max(), hard))


def _connections_max() -> int:
    """Return how many connections may be open with so many constellations."""
    return max(16, min(4000, descriptors_max() // 10))


class HttpConfig(_Section):
    """What clients may do, `[http]`. An address is the peer's or, if that is a trusted proxy, the one
    that it names; of connections, always the peer's.
    """

    # addresses or networks of proxies with TLS, such as 127.0.0.1 or 10.0.0.0/8; their X-Forwarded-For, or
    # Forwarded, is believed
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()

    # open connections; default: 4,000, at most a tenth of the open files that the system allows
    connections_max: Annotated[int, Field(ge=1)] = Field(default_factory=_connections_max)
    # the same for one address; default: three quarters of that
    connections_per_address_max: Annotated[int, Field(ge=1)] = Field(
        default_factory=lambda: _connections_max() * 3 // 4
    )
    requests_max: Annotated[int, Field(ge=1)] = 2000  # requests with a valid token at once, streams included
    requests_per_token_max: Annotated[int, Field(ge=1)] = 1000  # the same for one token
    public_requests_per_address_max: Annotated[int, Field(ge=1)] = 64  # requests without a token, of one address

    # requests a second, on average over ten seconds: without a token, of one address
    rate_per_address: Annotated[float, Field(gt=0)] = 50.0
    rate_per_token: Annotated[float, Field(gt=0)] = 300.0  # the same with one token
    rate_per_user: Annotated[float, Field(gt=0)] = 500.0  # the same of one user
    rate_per_constellation: Annotated[float, Field(gt=0)] = 500.0  # the same to one constellation

    answer_timeout_s: Annotated[float, Field(gt=0)] = 4000.0  # until an answer begins; it may wait for a turn
    # origins of web pages that may use the API, such as https://chat.example.org; `*` for all
    cors_origins: tuple[Annotated[str, AfterValidator(_check_origin)], ...] = ()


class PasswordsConfig(_Section):
    """What it costs to check a password, `[passwords]`: by default what RFC 9106, section 4, names second. Two are
    checked at once.
    """

    memory_kib: Annotated[int, Field(ge=64, le=4 * 1024 * 1024)] = 65_536  # memory in KiB
    passes: Annotated[int, Field(ge=1, le=100)] = 3  # how often the memory is filled
    lanes: Annotated[int, Field(ge=1, le=8)] = 4  # parts of the memory that are filled at the same time


class SignInConfig(_Section):
    """A provider that users can sign in with, `[sign_in.<name>]`: OpenID Connect with an `issuer`, OAuth 2 with three
    addresses, or an AT Protocol server (as Bluesky's) with app passwords.
    """

    issuer: str | None = Field(default=None, description="the issuer's address, exactly as it writes it itself")
    authorization_url: str | None = Field(default=None, description="without an issuer: where users sign in")
    token_url: str | None = Field(default=None, description="without an issuer: where a code is exchanged")
    user_url: str | None = Field(default=None, description="without an issuer: where JSON about the user is")
    user_field: str = Field(default="id", description="the field of that JSON with the user's unchanging id")
    atproto_url: str | None = Field(default=None, description="an AT Protocol server, such as https://bsky.social")
    client_id: str = Field(default="", description="what this server is called there; not for AT Protocol")
    client_secret: Secret | None = Field(default=None, description="its secret there, if it has one")
    scopes: tuple[str, ...] = Field(default=(), description="what to ask for; with an issuer also `openid`")
    # the address on the user's machine that is registered there, if it must be exact; default: any port of 127.0.0.1
    redirect_url: str | None = None

    @property
    def where(self) -> str:
        """Return the address by which the provider's identities are known."""
        return self.issuer or self.user_url or self.atproto_url or ""


def _check_sign_in(section: SignInConfig) -> SignInConfig:
    addresses = (section.authorization_url, section.token_url, section.user_url)
    single = (section.issuer, section.atproto_url)
    if (addresses.count(None), single.count(None)) not in ((0, 2), (3, 1)):
        raise ValueError("needs either issuer, or atproto_url, or all of authorization_url, token_url and user_url")
    if section.atproto_url is None and not section.client_id:
        raise ValueError("needs client_id: what this server is called at the provider")
    for url in (*single, *addresses):
        if url is not None and not is_confidential(url):
            raise ValueError(f"{url!r} must begin with https://")
    if section.redirect_url is not None and not is_loopback_url(section.redirect_url):
        raise ValueError("redirect_url must be one of the user's own machine, such as http://127.0.0.1:8471/")
    return section


def _check_sign_in_names(sections: dict[str, SignInConfig]) -> dict[str, SignInConfig]:
    for name in sections:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,23}", name):
            raise ValueError(f"{name!r} cannot be a provider's name: use small letters, digits and dashes")
    return sections


SignInsConfig = Annotated[
    dict[str, Annotated[SignInConfig, AfterValidator(_check_sign_in)]], AfterValidator(_check_sign_in_names)
]


def is_loopback_url(url: str) -> bool:
    """Return whether it is an http address of the person's own machine with a port and nothing behind its path."""
    return re.fullmatch(rf"{_LOOPBACK}:\d+(/[\w./-]*)?", url, re.ASCII) is not None


def is_confidential(url: str) -> bool:
    """Return whether no one else can read what is sent to an address: it is encrypted, or stays on this machine."""
    return re.match(rf"https://[^/]|{_LOOPBACK}(:\d+)?(/|$)", url, re.ASCII) is not None


class AmountConfig(_Section):
    """How much may be spent; no limit for what is left out."""

    tokens: Annotated[int, Field(ge=0)] | None = Field(default=None, description="tokens in and out")
    dollars: Annotated[Decimal, Field(ge=0, le=10**9, decimal_places=6)] | None = None  # cost


class PeriodsConfig(_Section):
    """Amounts per period; days and months in UTC."""

    day: AmountConfig = Field(default_factory=AmountConfig)
    month: AmountConfig = Field(default_factory=AmountConfig)
    total: AmountConfig = Field(default_factory=AmountConfig)


class BudgetsConfig(_Section):
    """Budgets for model calls, `[budgets]`: of each turn with the turns that it started, each agent, each
    constellation.

    Those of turns and agents apply unless a constellation has its own; its own cannot raise the last one.
    """

    turn: AmountConfig = Field(default_factory=AmountConfig)
    agent: PeriodsConfig = Field(default_factory=PeriodsConfig)
    constellation: PeriodsConfig = Field(default_factory=PeriodsConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConfig(McpSection):
    """One MCP server, `[mcp.<name>]`: either a program (`command`) or an address (`url`); other keys belong to one of
    them.

    `env_from`, `headers_env` and `token_env` (of a bearer token) name variables of this server's environment; `cwd` is
    where the program starts.
    """

    command: Annotated[str, Field(min_length=1)] | None = None  # program to start, found by `PATH`
    args: tuple[str, ...] = ()  # arguments of the program
    env: dict[str, Secret] = field(default_factory=dict)  # environment variables for the program
    env_from: tuple[str, ...] = ()  # variables to pass on from this server's environment
    cwd: Path = Path("/")  # directory in which the program starts
    url: str | None = None  # address of a server that speaks streamable HTTP; it may be a private one
    headers: dict[str, Secret] = field(default_factory=dict)  # headers of every request
    headers_env: dict[str, str] = field(default_factory=dict)  # headers from variables, `{X-Key = "MY_KEY"}`
    token_env: str | None = None  # environment variable with a bearer token


def _check_mcp(section: McpConfig) -> McpConfig:
    if (section.command is None) == (section.url is None):
        raise ValueError("needs either command or url")
    if section.url is not None and not _is_address(section.url):
        raise ValueError("url must begin with http:// or https://")
    foreign = ("args", "env", "env_from", "cwd") if section.url else ("headers", "headers_env", "token_env")
    given = [name for name in foreign if getattr(section, name) != getattr(McpConfig(), name)]
    if given:
        raise ValueError(
            f"{', '.join(given)} {'means' if len(given) == 1 else 'mean'} nothing with "
            f"{'url' if section.url else 'command'}"
        )
    return section


def _check_names(servers: dict[str, McpConfig]) -> dict[str, McpConfig]:
    """Refuse names that are invalid in names of tools."""
    for name in servers:
        if not is_server_name(name):
            raise ValueError(
                f"{name!r} cannot be an MCP server's name: it has at most 24 small letters, digits, dashes and single"
                " underscores, and begins with a letter"
            )
    return servers


McpServersConfig = Annotated[
    dict[str, Annotated[McpConfig, AfterValidator(_check_mcp)]],
    Field(max_length=SERVERS_MAX),
    AfterValidator(_check_names),
]


class BackupConfig(_Section):
    """Scheduled backups of all constellations, and of users and tokens, `[backup]`: only of what has changed."""

    enabled: bool = True  # whether they are made
    # default: `backups` in the data directory
    folder: Annotated[Path | None, must(Path.is_absolute, "needs an absolute path, such as /srv/backups")] = None
    every_hours: Annotated[float, Field(ge=0.1, le=10_000)] = 24.0  # hours between two rounds
    daily: Annotated[int, Field(ge=0)] = 7  # last days of which the newest copy is kept
    weekly: Annotated[int, Field(ge=0)] = 4  # the same for weeks
    monthly: Annotated[int, Field(ge=0)] = 6  # the same for months
    # a program with its arguments, run after each copy with the path of that as one more, such as ["/opt/send-copy"]
    command: tuple[str, ...] = ()
    # whom each copy is encrypted to, in a file next to it, which `command` gets instead: age1…, or a key of SSH
    age_recipient: Annotated[str, must(_is_recipient, "needs a public key, such as age1…")] = ""
    auto_vacuum: bool = False  # whether files of idle constellations with much free space are made smaller before


_TRACED_TO = must(_is_address, "needs an address, such as http://127.0.0.1:4318/v1/traces")


class TelemetryConfig(_Section):
    """Traces of turns, `[telemetry]`: ids, names, models, tokens and times, without any text of messages. They need the
    extra `otel`.
    """

    # address of your collector for traces (OTLP over HTTP), such as http://127.0.0.1:4318/v1/traces; without it, none
    endpoint: Annotated[str | None, _TRACED_TO] = None


class SupervisorConfig(_Section):
    """When constellations are parked, quarantined and stopped, `[supervisor]`."""

    idle_park_s: Annotated[float, Field(gt=0)] = 600.0  # a constellation without work is closed after this time
    # constellations that are awake at once
    max_open: Annotated[int, Field(ge=1)] = Field(default_factory=lambda: max(8, min(4096, descriptors_max() // 8)))
    crashes_max: Annotated[int, Field(ge=1)] = 5  # crashes within `crash_window_s` that put one into quarantine
    crash_window_s: Annotated[float, Field(gt=0)] = 60.0  # the time in which crashes are counted
    drain_s: Annotated[float, Field(ge=0)] = 10.0  # how long turns may continue after SIGTERM
