"""The section `[web]` of the configuration: whether and how agents reach the world wide web."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from pattern_core.models.providers.settings import Secret
from pattern_core.web.engines import EngineKind, EngineSettings
from pattern_core.web.policy import WebPolicy, WebSettings

Port = Annotated[int, Field(ge=1, le=65535)]


class WebSearchConfig(BaseModel):
    """The search engine, `[web.search]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: EngineKind = Field(default="none", description="none searxng brave")
    base_url: str | None = Field(default=None, description="address of the engine; SearXNG has none of its own")
    api_key: SecretStr | None = Field(default=None, description="the key itself; never stored, never exported")
    api_key_env: str | None = Field(default=None, description="name of the environment variable that holds the key")

    @model_validator(mode="after")
    def _is_whole(self) -> WebSearchConfig:
        if self.kind == "searxng" and not (self.base_url or "").startswith(("http://", "https://")):
            raise ValueError("kind searxng needs base_url, such as http://127.0.0.1:8888")
        if self.kind == "brave" and not self.api_key:
            raise ValueError("kind brave needs api_key, or api_key_env that names a variable which is set")
        return self


class WebConfig(BaseModel):
    """What agents may reach, `[web]`; where the section is missing, there is no tool `web`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ports: tuple[Port, ...] = Field(default=(80, 443), description="ports that may be used")
    allow_hosts: tuple[str, ...] = Field(default=(), description="if any: only these and what is below them")
    deny_hosts: tuple[str, ...] = Field(default=(), description="never these and what is below them")
    allow_private: bool = Field(default=False, description="private networks and this machine may be reached")
    timeout_s: Annotated[float, Field(gt=0, le=300)] = Field(default=30.0, description="for one page, or one search")
    search: WebSearchConfig = Field(default_factory=WebSearchConfig)


def web_settings(section: WebConfig | None) -> WebSettings | None:
    """What `[web]` says, for `pattern_core.web.web.Web`; None if there is no such section."""
    if section is None:
        return None
    key = section.search.api_key
    return WebSettings(
        policy=WebPolicy(
            ports=section.ports,
            allow_hosts=section.allow_hosts,
            deny_hosts=section.deny_hosts,
            allow_private=section.allow_private,
        ),
        search=EngineSettings(
            kind=section.search.kind,
            base_url=section.search.base_url,
            api_key=None if key is None else Secret(key.get_secret_value()),
        ),
        timeout_s=section.timeout_s,
    )
