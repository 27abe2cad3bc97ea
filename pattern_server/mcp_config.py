"""The sections `[mcp.<name>]` of the configuration: servers whose tools agents may have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from pattern_core.mcp_servers.settings import McpSettings, Protocol, Stdio, Streamable, is_server_name
from pattern_core.models.providers.settings import Secret
from pattern_db.enums import EffectClass

# What a program needs of this server's environment to be found and to start; everything else has to be named.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SHELL")

Seconds = Annotated[float, Field(gt=0, le=3600)]
Effect = Literal["idempotent", "unsafe"]


class McpConfig(BaseModel):
    """One MCP server: either a program (`command`) or an address (`url`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str | None = Field(default=None, min_length=1, description="the program to start")
    args: tuple[str, ...] = Field(default=(), description="its arguments")
    env: dict[str, SecretStr] = Field(default_factory=dict, description="variables for the program")
    env_from: tuple[str, ...] = Field(default=(), description="variables that it gets from this server's environment")
    cwd: Path = Field(default=Path("/"), description="where it starts")
    url: str | None = Field(default=None, description="the address, for streamable HTTP")
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="sent with every request")
    headers_env: dict[str, str] = Field(default_factory=dict, description="headers whose values stand in variables")
    token_env: str | None = Field(default=None, description="name of the variable that holds a bearer token")
    tools: tuple[str, ...] | None = Field(default=None, description="which of its tools agents may have; or all")
    effect: Effect = Field(default="unsafe", description="whether a call may be repeated after a crash")
    effects: dict[str, Effect] = Field(default_factory=dict, description="the same, tool by tool")
    trust_hints: bool = Field(default=False, description="believe what the server says about its tools' effects")
    lazy: bool = Field(default=True, description="start it when somebody needs it, end it when nobody does")
    protocol: Protocol = Field(default="auto", description="legacy: servers of before 2026 only")
    start_timeout_s: Seconds = 30.0
    call_timeout_s: Seconds = 60.0
    idle_s: Annotated[float, Field(gt=0)] = Field(default=600.0, description="a lazy server rests after that")
    calls_max: Annotated[int, Field(ge=1, le=64)] = Field(default=8, description="calls at once")

    @model_validator(mode="after")
    def _is_one_of_both(self) -> McpConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("an MCP server needs either command or url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError("url must begin with http:// or https://")
        foreign = ("args", "env", "env_from", "cwd") if self.url else ("headers", "headers_env", "token_env")
        given = [name for name in foreign if name in self.model_fields_set]
        if given:
            raise ValueError(
                f"{', '.join(given)} {'means' if len(given) == 1 else 'mean'} nothing beside "
                f"{'url' if self.url else 'command'}"
            )
        return self


def _check_names(servers: dict[str, McpConfig]) -> dict[str, McpConfig]:
    """Refuse names that tools could not be named by."""
    for name in servers:
        if not is_server_name(name):
            raise ValueError(
                f"{name!r} cannot be an MCP server's name: it has at most 24 small letters, digits, dashes and single"
                " underscores, and begins with a letter"
            )
    return servers


McpServersConfig = Annotated[dict[str, McpConfig], AfterValidator(_check_names)]


def mcp_settings(servers: Mapping[str, McpConfig], environment: Mapping[str, str]) -> dict[str, McpSettings]:
    """What `[mcp.*]` says, for `pattern_core.mcp_servers.servers.McpServers`; `environment` is this server's own.

    A variable that is named and not set keeps that one server from being started.
    """
    return {name: _settings(section, environment) for name, section in servers.items()}


def _settings(section: McpConfig, environment: Mapping[str, str]) -> McpSettings:
    named = [*section.env_from, *section.headers_env.values(), *([section.token_env] if section.token_env else [])]
    return McpSettings(
        reach=_address(section, environment) if section.url else _program(section, environment),
        missing=tuple(variable for variable in named if not environment.get(variable)),
        tools=section.tools,
        effect=EffectClass(section.effect),
        effects={tool: EffectClass(effect) for tool, effect in section.effects.items()},
        trust_hints=section.trust_hints,
        lazy=section.lazy,
        protocol=section.protocol,
        start_timeout_s=section.start_timeout_s,
        call_timeout_s=section.call_timeout_s,
        idle_s=section.idle_s,
        calls_max=section.calls_max,
    )


def _program(section: McpConfig, environment: Mapping[str, str]) -> Stdio:
    found = {name: Secret(environment[name]) for name in (*INHERITED, *section.env_from) if name in environment}
    own = {name: Secret(value.get_secret_value()) for name, value in section.env.items()}
    assert section.command is not None  # as the section was checked
    return Stdio(command=section.command, args=section.args, environment={**found, **own}, cwd=section.cwd)


def _address(section: McpConfig, environment: Mapping[str, str]) -> Streamable:
    headers = {header: Secret(value.get_secret_value()) for header, value in section.headers.items()}
    headers |= {header: Secret(environment.get(name, "")) for header, name in section.headers_env.items()}
    if section.token_env:
        headers["Authorization"] = Secret(f"Bearer {environment.get(section.token_env, '')}")
    assert section.url is not None  # as the section was checked
    return Streamable(url=section.url, headers=headers)
