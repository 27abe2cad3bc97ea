"""What the operator decided: flags, environment and `pattern.toml`, read once into one frozen `Config`.

The only reader of the environment. A later source loses to an earlier one: flags, `PATTERN_*` variables (a double
underscore goes one level down: `PATTERN_SUPERVISOR__DRAIN_S`), `pattern.toml`, the defaults below. The file is the one
that `PATTERN_CONFIG` names, else `pattern.toml` in the current folder if there is one. Providers' keys and addresses
also come from the vendors' own variables, such as `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL`.
"""

from __future__ import annotations

import os
import resource
import tomllib
from dataclasses import fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from pattern_core.embeddings.providers import EMBEDDERS
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.errors import PatternError
from pattern_core.limits import Limits
from pattern_core.mcp_servers.settings import McpSettings
from pattern_core.models.providers import PROVIDERS
from pattern_core.models.providers.settings import OpenAIFormat, Secret
from pattern_core.shell.policy import ShellSettings
from pattern_server.mcp_config import McpServersConfig, mcp_settings
from pattern_server.web_config import WebConfig

BOOTSTRAP_TOKEN_CHARS_MIN = 32
FILE_NAME = "pattern.toml"
MEGABYTE = 1024 * 1024
OPENAI_ACCOUNT = {"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"}
DESCRIPTORS_WANTED = 65_536


class ConfigError(PatternError):
    """The configuration does not fit; the message names the setting and the file."""

    code = "invalid_config"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProviderLimitsConfig(_Section):
    """How much a provider's key is asked, `[providers.<name>.limits]`; the vendor's own limits hold beside these."""

    calls_max: Annotated[int, Field(ge=1, le=1_000)] = Field(default=16, description="calls at once")
    waiting_max: Annotated[int, Field(ge=0, le=100_000)] = Field(
        default=1_000, description="calls that wait their turn"
    )
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None


class ModelConfig(_Section):
    """What is true of a model here, `[providers.<name>.models."<model>"]`, where the catalogue is wrong or silent.

    Prices are micro-dollars per million tokens: 2_000_000 is $2.
    """

    window: Annotated[int, Field(ge=256)] | None = Field(default=None, description="tokens of prompt and answer")
    output_max: Annotated[int, Field(ge=1)] | None = Field(default=None, description="tokens of the longest answer")
    input_price: Annotated[int, Field(ge=0)] | None = None
    output_price: Annotated[int, Field(ge=0)] | None = None
    cache_read_price: Annotated[int, Field(ge=0)] | None = None
    cache_write_price: Annotated[int, Field(ge=0)] | None = None
    images: bool | None = Field(default=None, description="it looks at pictures")
    tools: bool | None = Field(default=None, description="it calls tools")
    reasoning: bool | None = Field(default=None, description="it thinks before it answers")


class ProviderConfig(_Section):
    """One vendor or compatible server, `[providers.<name>]` in the file."""

    kind: str = Field(description="anthropic openai google embedded")
    base_url: str | None = Field(default=None, description="address of the API; the vendor's own if left out")
    api_key: SecretStr | None = Field(default=None, description="the key itself; never stored, never exported")
    api_key_env: str | None = Field(default=None, description="name of the environment variable that holds the key")
    omit: tuple[str, ...] = Field(default=(), description="fields that a compatible server does not accept")
    api: OpenAIFormat = Field(default="chat", description="which of OpenAI's formats is spoken")
    limits: ProviderLimitsConfig = Field(default_factory=ProviderLimitsConfig)
    models: dict[str, ModelConfig] = Field(default_factory=dict, description="figures of its models, by their names")

    @field_validator("kind")
    @classmethod
    def _kind_is_known(cls, kind: str) -> str:
        if kind not in PROVIDERS:
            raise ValueError(f"there is no kind {kind!r}; kinds are {', '.join(sorted(PROVIDERS))}")
        return kind


class EmbedderConfig(_Section):
    """One model that makes vectors.

    `provider` is one of `pattern_core.embeddings.providers`, or the name of a section `[providers.<name>]` of kind
    openai or google, whose address and key are then used. What is left out is the provider's own.
    """

    provider: str = Field(default="local", description="local openai compatible google ollama none deterministic")
    model: str = Field(default="", description="the model's name, for local also a folder")
    dimensions: Annotated[int, Field(ge=1, le=8192)] | None = Field(default=None, description="length of the vectors")
    base_url: str | None = Field(default=None, description="address of the service")
    api_key: SecretStr | None = Field(default=None, description="the key itself; never stored, never exported")
    api_key_env: str | None = Field(default=None, description="name of the environment variable that holds the key")
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    runtime: Literal["auto", "sentence-transformers", "onnx"] = Field(default="auto", description="what runs `local`")
    allow_download: bool = Field(default=False, description="fetch a local model that is missing, once")
    idle_unload_s: Annotated[float, Field(gt=0)] = Field(default=600.0, description="then its memory is given back")
    threads: Annotated[int, Field(ge=1, le=64)] = Field(default=1, description="for `local`; more only help if idle")
    query_prefix: str | None = Field(default=None, description="before a question, instead of the model's own")
    passage_prefix: str | None = Field(default=None, description="before a passage, instead of the model's own")


class EmbeddingsConfig(EmbedderConfig):
    """How texts become vectors, `[embeddings]`, and how they did before, `[embeddings.former]`.

    The former model answers questions until the configured one has taken over. It is needed only where the server
    cannot tell by itself how to ask it: a model's folder, a service at another address.
    """

    former: EmbedderConfig | None = Field(default=None, description="the model before, until a switch is complete")


def embedder_settings(config: Config, former: EmbedderConfig | None = None) -> EmbedderSettings:
    """What `[embeddings]` says (or `former`), with the address and key of the section of `[providers]` it names."""
    section = former or config.embeddings
    named = config.providers.get(section.provider)
    is_ours = section.provider in EMBEDDERS
    key = section.api_key or (None if named is None else named.api_key)
    return EmbedderSettings(
        # A provider of its own name speaks the format of its kind.
        provider=section.provider if is_ours or named is None else named.kind,
        model=section.model,
        dimensions=section.dimensions,
        base_url=section.base_url or (None if named is None else named.base_url),
        api_key=None if key is None else Secret(key.get_secret_value()),
        account={header: os.environ[name] for header, name in OPENAI_ACCOUNT.items() if name in os.environ},
        timeout_s=section.timeout_s,
        runtime=section.runtime,
        allow_download=section.allow_download,
        idle_unload_s=section.idle_unload_s,
        threads=section.threads,
        query_prefix=section.query_prefix,
        passage_prefix=section.passage_prefix,
    )


def descriptors_max() -> int:
    """How many files this process may have open once it asks for all that it may."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)


def raise_descriptor_limit() -> None:
    """Ask the system for `descriptors_max()` open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < descriptors_max():
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max(), hard))


def _max_open() -> int:
    """One awake constellation may hold seven descriptors: its lock and two connections with their logs."""
    return max(8, min(4096, descriptors_max() // 8))


class AmountConfig(_Section):
    """How much may be spent; what is left out has no bound."""

    tokens: Annotated[int, Field(ge=0)] | None = Field(default=None, description="tokens in and out")
    dollars: Annotated[Decimal, Field(ge=0, le=10**9, decimal_places=6)] | None = None


class PeriodsConfig(_Section):
    """Amounts per period; days and months are those of UTC."""

    day: AmountConfig = Field(default_factory=AmountConfig)
    month: AmountConfig = Field(default_factory=AmountConfig)
    total: AmountConfig = Field(default_factory=AmountConfig)


class BudgetsConfig(_Section):
    """What model calls may cost, `[budgets]`: each turn with all that it led to, each agent, each constellation.

    Those of turns and agents hold where a constellation's own budgets say nothing; its own cannot lift the last one.
    """

    turn: AmountConfig = Field(default_factory=AmountConfig)
    agent: PeriodsConfig = Field(default_factory=PeriodsConfig)
    constellation: PeriodsConfig = Field(default_factory=PeriodsConfig)


class ShellConfig(_Section):
    """What the tool `shell` may do, `[shell]`; without `roots` it runs nothing."""

    roots: tuple[Path, ...] = Field(default=(), description="directories in which commands run and may write")
    readable: tuple[Path, ...] = Field(default=(), description="what they may read beside the system's programs")
    allow: tuple[str, ...] = Field(default=(), description="beginnings of commands that run without a question")
    deny: tuple[str, ...] = Field(default=(), description="beginnings of commands that never run")
    network: bool = Field(default=False, description="whether commands reach other machines")
    require_sandbox: bool = Field(default=True, description="run nothing where the system cannot confine it")
    path: str = Field(default="/usr/local/bin:/usr/bin:/bin", description="where programs are looked for")
    children_max: Annotated[int, Field(ge=1, le=64)] = Field(
        default=8, description="commands at once, a constellation's"
    )
    processes_max: Annotated[int, Field(ge=4)] = Field(default=128, description="processes of one command")
    cpu_s: Annotated[int, Field(ge=1)] = Field(default=600, description="processor time of one process")
    memory_mb: Annotated[int, Field(ge=64)] = Field(default=4096, description="address space of one process")
    file_mb: Annotated[int, Field(ge=1)] = Field(default=1024, description="longest file that is written")
    idle_s: Annotated[float, Field(gt=0)] = Field(default=3600.0, description="then an unwatched task is ended")

    @field_validator("roots", "readable")
    @classmethod
    def _are_whole_paths(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        if not all(path.is_absolute() for path in value):
            raise ValueError("name each directory by its whole path, such as /srv/work")
        return value


def shell_settings(config: Config) -> ShellSettings | None:
    """What `[shell]` says; None if it names no directory. The server's own data is kept out of every root."""
    section = config.shell
    if not section.roots:
        return None
    return ShellSettings(
        roots=section.roots,
        kept_out=(config.data_dir.absolute(),),
        readable=section.readable,
        allow=section.allow,
        deny=section.deny,
        network=section.network,
        require_sandbox=section.require_sandbox,
        path=section.path,
        children_max=section.children_max,
        processes_max=section.processes_max,
        cpu_s=section.cpu_s,
        memory_bytes=section.memory_mb * MEGABYTE,
        file_bytes=section.file_mb * MEGABYTE,
        idle_s=section.idle_s,
    )


class SupervisorConfig(_Section):
    """When constellations sleep, fall ill and stop, `[supervisor]`."""

    idle_park_s: Annotated[float, Field(gt=0)] = 600.0
    max_open: Annotated[int, Field(ge=1)] = Field(default_factory=_max_open)
    crashes_max: Annotated[int, Field(ge=1)] = 5
    crash_window_s: Annotated[float, Field(gt=0)] = 60.0
    drain_s: Annotated[float, Field(ge=0)] = 10.0


class Config(BaseSettings):
    """Everything that can be configured. Made by `load`."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="PATTERN_", env_nested_delimiter="__", hide_input_in_errors=True
    )

    data_dir: Path = Field(default=Path("data"), description="folder of all files; the file's is relative to it")
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=8470, description="0 takes a free port")
    bootstrap_token: SecretStr | None = Field(default=None, description="the first admin token")
    body_bytes_max: Annotated[int, Field(ge=1024)] = Field(default=2 * 1024 * 1024, description="longest request body")
    files_roots: tuple[Path, ...] = Field(
        default=(), description="directories of which everybody who may write can make folders for agents"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "text"] = Field(default="auto", description="auto: text on a terminal")
    default_provider: str = Field(default="", description="`model_provider` of agents that name none")
    default_model: str = Field(default="", description="`model_name` of agents that name none")
    providers: dict[str, ProviderConfig] = Field(default_factory=dict)
    embeddings: EmbeddingsConfig = Field(default_factory=EmbeddingsConfig)
    supervisor: SupervisorConfig = Field(default_factory=SupervisorConfig)
    budgets: BudgetsConfig = Field(default_factory=BudgetsConfig)
    shell: ShellConfig = Field(default_factory=ShellConfig)
    web: WebConfig | None = None
    mcp: McpServersConfig = Field(default_factory=dict)
    limits: Limits = Field(default_factory=Limits)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then `PATTERN_*`, then the file. Called by pydantic-settings."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @field_validator("limits", mode="before")
    @classmethod
    def _limits_are_known(cls, value: object) -> object:
        # pydantic ignores keys that a dataclass does not have; a typo must not become a missing bound.
        _refuse_unknown(Limits, value)
        return value

    @field_validator("limits")
    @classmethod
    def _limits_are_positive(cls, value: Limits) -> Limits:
        _refuse_useless(value)
        return value

    @field_validator("files_roots")
    @classmethod
    def _roots_are_whole_paths(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        if not all(root.is_absolute() for root in value):
            raise ValueError("name each directory by its whole path, such as /srv/notes")
        return value

    @field_validator("bootstrap_token")
    @classmethod
    def _token_is_long(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < BOOTSTRAP_TOKEN_CHARS_MIN:
            raise ValueError(f"must have at least {BOOTSTRAP_TOKEN_CHARS_MIN} characters")
        return value

    @model_validator(mode="before")
    @classmethod
    def _vendors(cls, data: dict[str, Any]) -> dict[str, Any]:
        completed = {**data, "providers": _with_vendors(data.get("providers", {}))}
        if "web" in data:
            completed["web"] = _with_key(data["web"])
        return _with_defaults({**completed, "embeddings": _with_key(data.get("embeddings", {}))})

    @model_validator(mode="after")
    def _embeddings_are_known(self) -> Config:
        former = self.embeddings.former
        for place, section in (("embeddings", self.embeddings), ("embeddings.former", former)):
            if section is None:
                continue
            name = section.provider
            kind = name if name in EMBEDDERS else self.providers[name].kind if name in self.providers else ""
            if kind not in EMBEDDERS:
                raise ValueError(
                    f"{place}.provider is {name!r}; there are {', '.join(sorted(EMBEDDERS))}, and the sections of "
                    "[providers] of kind openai or google"
                )
        return self


def default_model_of(config: Config, provider: str) -> str:
    """The model of an agent that names this provider and no model; empty if there is no default for it."""
    if provider == config.default_provider:
        return config.default_model
    kind = config.providers[provider].kind if provider in config.providers else provider
    return PROVIDERS[kind].default_model if provider in PROVIDERS else ""


def configured_mcp(config: Config) -> dict[str, McpSettings]:
    """What `[mcp.*]` says, with the values of the environment variables that are named there."""
    return mcp_settings(config.mcp, os.environ)


def load(file: Path | None = None, **flags: object) -> Config:
    """Read the configuration. `flags` are the command line's, by field name; those that are None were not given.

    Raises:
        ConfigError: a key is unknown or a value does not fit, or the file named is missing or no TOML.
    """
    named = file or (Path(os.environ["PATTERN_CONFIG"]) if os.environ.get("PATTERN_CONFIG") else None)
    if named is not None and not named.is_file():
        raise ConfigError(f"the configuration file {named} does not exist", file=str(named))
    path = named or Path(FILE_NAME)
    located = type(
        "Config", (Config,), {"model_config": {**Config.model_config, "toml_file": path}, "__module__": __name__}
    )
    try:
        config: Config = located(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise ConfigError(_misfits(error, path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", file=str(path)) from None
    return config if flags.get("data_dir") is not None else _anchored(config, path)


def unknown_variables() -> list[str]:
    """Environment variables that look like settings of ours and are none: probably typing errors. Sorted."""
    known = {f"PATTERN_{name.upper()}" for name in Config.model_fields} | {"PATTERN_CONFIG"}
    return sorted(
        name for name in os.environ if name.startswith("PATTERN_") and name.upper().split("__")[0] not in known
    )


def _anchored(config: Config, path: Path) -> Config:
    """A relative `data_dir` of the file means: beside the file, wherever the server was started."""
    if os.environ.get("PATTERN_DATA_DIR") or config.data_dir.is_absolute() or not path.is_file():
        return config
    return config.model_copy(update={"data_dir": path.parent / config.data_dir})


def _with_vendors(configured: object) -> object:
    """The providers of the file, completed by the vendors' own environment variables and the embedded one."""
    if not isinstance(configured, dict):
        return configured  # the field's own type says what is wrong
    providers = {name: dict(value) if isinstance(value, dict) else value for name, value in configured.items()}
    for name, kind in PROVIDERS.items():
        if kind.variables is None:
            continue
        found = {
            "api_key": os.environ.get(f"{kind.variables}_API_KEY"),
            "base_url": os.environ.get(f"{kind.variables}_BASE_URL"),
        }
        if found["api_key"] or (name in providers and found["base_url"]):
            entry = providers.setdefault(name, {})
            if isinstance(entry, dict):
                entry.update({key: value for key, value in found.items() if value})
        if isinstance(providers.get(name), dict):
            providers[name].setdefault("kind", name)
    for entry in providers.values():
        if isinstance(entry, dict) and entry.get("api_key_env") and not entry.get("api_key"):
            entry["api_key"] = os.environ.get(str(entry["api_key_env"])) or None
    providers.setdefault("embedded", {"kind": "embedded"})
    return providers


def _with_key(section: object) -> object:
    """The section with the keys from the environment variables that it and `former` or `search` in it name."""
    if not isinstance(section, dict):
        return section
    inner = {name: _with_key(section[name]) for name in ("former", "search") if name in section}
    section = {**section, **inner}
    if not section.get("api_key_env") or section.get("api_key"):
        return section
    return {**section, "api_key": os.environ.get(str(section["api_key_env"])) or None}


def _with_defaults(data: dict[str, Any]) -> dict[str, Any]:
    providers = data["providers"]
    if not isinstance(providers, dict):
        return data
    provider = data.get("default_provider") or next((name for name in providers if name != "embedded"), "embedded")
    if provider not in providers:
        raise ValueError(
            f"default_provider is {provider!r}, which is not configured; known are {', '.join(sorted(providers))}"
        )
    model = data.get("default_model") or (PROVIDERS[provider].default_model if provider in PROVIDERS else "")
    return {**data, "default_provider": provider, "default_model": model}


def _refuse_unknown(shape: Any, value: object, path: str = "") -> None:
    if not isinstance(value, dict) or not is_dataclass(shape):
        return
    hints = get_type_hints(shape)
    known = {item.name for item in fields(shape)}
    for key, inner in value.items():
        if key not in known:
            raise ValueError(f"unknown key {path}{key}; known are {', '.join(sorted(known))}")
        _refuse_unknown(hints[key], inner, f"{path}{key}.")


def _refuse_useless(limits: Any, path: str = "") -> None:
    for item in fields(limits):
        value = getattr(limits, item.name)
        if is_dataclass(value):
            _refuse_useless(value, f"{path}{item.name}.")
        elif not value > 0:
            raise ValueError(f"{path}{item.name} must be greater than 0")


_SECTION = "is a section, with settings of its own within"
_MISFITS = {  # pydantic's type of a misfit → what we say of it
    "extra_forbidden": "is not a known setting",
    "model_type": _SECTION,
    "model_attributes_type": _SECTION,
    "dict_type": _SECTION,
}


def _misfits(error: ValidationError, path: Path) -> str:
    """All misfits in a sentence each, by the names that the operator wrote. No values: they may be secret."""
    lines = []
    for misfit in error.errors(include_url=False, include_input=False, include_context=False):
        name = ".".join(str(part) for part in misfit["loc"]) or "configuration"
        what = _MISFITS.get(misfit["type"], misfit["msg"])
        lines.append(f"{name}: {what.removeprefix('Value error, ')}")
    return f"the configuration does not fit ({path} or PATTERN_* variables): " + "; ".join(lines)
