"""What the operator decided: flags, environment and `pattern.toml`, read once into one frozen `Config`.

The only reader of the environment. A later source loses to an earlier one: flags, `PATTERN_*` variables (a double
underscore goes one level down: `PATTERN_SUPERVISOR__DRAIN_S`), the file, the defaults below. The file is the one that
`--config` or `PATTERN_CONFIG` names, else `pattern.toml` in the current folder, else `pattern.toml` in the data
directory. Only a file that was named decides where the data directory is: what a command works on must not depend on
the folder in which it is called. Providers' keys and addresses also come from the vendors' own variables, such as
`ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL`.
"""

from __future__ import annotations

import os
import sys
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from pattern_core.embeddings.providers import EMBEDDERS
from pattern_core.errors import NotFound, PatternError
from pattern_core.limits import Limits
from pattern_core.models.providers import PROVIDERS
from pattern_core.models.providers.settings import Secret
from pattern_core.shell.policy import ShellSection
from pattern_server.sections import (
    BudgetsConfig,
    EmbeddingsConfig,
    HttpConfig,
    McpServersConfig,
    ProviderConfig,
    ShellConfig,
    SupervisorConfig,
    WebConfig,
    WholePaths,
)

BOOTSTRAP_TOKEN_CHARS_MIN = 32
FILE_NAME = "pattern.toml"
REGISTRY_NAME = "global.db"  # what makes a folder a data directory
FORMER_DATA_DIR = "data"  # where earlier versions kept it, in the current folder
DEFAULT = "the default"


class ConfigError(PatternError):
    """The configuration does not fit; the message names the setting and the file."""

    code = "invalid_config"


def _check_token(token: Secret) -> Secret:
    if len(token.get_secret_value()) < BOOTSTRAP_TOKEN_CHARS_MIN:
        raise ValueError(f"must have at least {BOOTSTRAP_TOKEN_CHARS_MIN} characters")
    return token


_OF_COMMANDS = ("PATTERN_SERVER", "PATTERN_TOKEN")  # variables that are no settings


def user_data_dir() -> Path:
    """Return the data directory where none is named.

    Source: XDG Base Directory Specification, which ignores relative paths; macOS has a folder of its own.
    """
    given = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not given.is_absolute():
        given = Path.home() / ("Library/Application Support" if sys.platform == "darwin" else ".local/share")
    return given / "pattern"


def user_state_dir() -> Path:
    """Return the folder of what the command line remembers, such as the lines that were typed.

    Source: as `user_data_dir`.
    """
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not given.is_absolute():
        given = Path.home() / ("Library/Application Support" if sys.platform == "darwin" else ".local/state")
    return given / "pattern"


def remote_token() -> str:
    """Return the token for a server on another machine; empty if there is none."""
    return os.environ.get("PATTERN_TOKEN", "").strip()


def _check_limits(limits: Limits, path: str = "") -> Limits:
    for item in fields(limits):
        value = getattr(limits, item.name)
        if is_dataclass(value):
            _check_limits(cast("Limits", value), f"{path}{item.name}.")
        elif not value > 0 and (value, item.name) != (0, "retention_days"):
            raise ValueError(f"{path}{item.name} must be greater than 0")
    return limits


class Config(BaseSettings):
    """Everything that can be configured. Made by `load`."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="PATTERN_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    data_dir: Path = Field(default_factory=user_data_dir, description="folder of all files; absolute once loaded")
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=8470, description="0 takes a free port")
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="names of this server in URLs, with all names below them"
    )
    http: HttpConfig = Field(default_factory=HttpConfig)
    bootstrap_token: Annotated[Secret, AfterValidator(_check_token)] | None = Field(
        default=None, description="the first admin token"
    )
    body_bytes_max: Annotated[int, Field(ge=1024)] = Field(default=2 * 1024 * 1024, description="longest request body")
    files_roots: WholePaths = Field(
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
    shell: ShellConfig = Field(default_factory=ShellSection)
    web: WebConfig | None = None
    mcp: McpServersConfig = Field(default_factory=dict)
    limits: Annotated[Limits, AfterValidator(_check_limits)] = Field(default_factory=Limits)
    _data_dir_source: str = PrivateAttr(DEFAULT)

    @property
    def data_dir_source(self) -> str:
        """What named the data directory: `--data-dir`, `PATTERN_DATA_DIR`, a file, or `DEFAULT`."""
        return self._data_dir_source

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources: flags, then `PATTERN_*`, then the file. Called by pydantic-settings."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

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


def load(file: Path | None = None, **flags: object) -> Config:
    """Read the configuration. `flags` are the command line's, by field name; those that are None were not given.

    Raises:
        ConfigError: a key is unknown or a value does not fit, or the file named is missing or no TOML.
    """
    named = file or (Path(os.environ["PATTERN_CONFIG"]) if os.environ.get("PATTERN_CONFIG") else None)
    if named is not None and not named.is_file():
        raise ConfigError(f"the configuration file {named} does not exist", file=str(named))
    given = {name: value for name, value in flags.items() if value is not None}
    path = (named or _unnamed(given.get("data_dir"))).absolute()
    located = type(
        "Config", (Config,), {"model_config": {**Config.model_config, "toml_file": path}, "__module__": __name__}
    )
    try:
        config: Config = located(**given)
    except ValidationError as error:
        raise ConfigError(_misfits(error, path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", file=str(path)) from None
    return _anchored(config, path, is_named=named is not None, is_flag="data_dir" in given)


def _unnamed(data_dir: object) -> Path:
    """Return the file that is read where none is named; `data_dir` is the flag's."""
    here = Path(FILE_NAME)
    folder = data_dir or os.environ.get("PATTERN_DATA_DIR") or user_data_dir()
    return here if here.is_file() else Path(str(folder), FILE_NAME)


def _anchored(config: Config, path: Path, *, is_named: bool, is_flag: bool) -> Config:
    """Return the configuration with a whole path of the data directory, and what named it."""
    source, base = DEFAULT, Path.cwd()
    if is_flag:
        source = "--data-dir"
    elif os.environ.get("PATTERN_DATA_DIR"):
        source = "PATTERN_DATA_DIR"
    elif "data_dir" in config.model_fields_set:
        source, base = str(path), path.parent
        if not is_named:
            raise ConfigError(
                f"data_dir in {path} does not count, since nothing named that file: take it out, and name the directory"
                f" with --data-dir or PATTERN_DATA_DIR, or this file with --config or PATTERN_CONFIG",
                file=str(path),
            )
    anchored = config.model_copy(update={"data_dir": base / config.data_dir.expanduser()})
    anchored._data_dir_source = source
    return anchored


def require_data(config: Config, *, creates: bool = False) -> None:
    """Refuse to work on a data directory that is not there yet, unless what is done `creates` it.

    Raises:
        NotFound: there is none; or it would be created while one of an earlier version is in the current folder.
    """
    if (config.data_dir / REGISTRY_NAME).exists():
        return
    missing = f"there is no data directory yet at {config.data_dir}"
    former = Path.cwd() / FORMER_DATA_DIR
    if config.data_dir_source == DEFAULT and (former / REGISTRY_NAME).exists():
        raise NotFound(
            f"{missing}, but {former} is one of an earlier version. To use it, move it there (mv {former}"
            f" {config.data_dir}), or name it with --data-dir; for an empty one, name that with --data-dir"
        )
    if not creates:
        raise NotFound(f"{missing}; `pattern serve` makes it, or name another one with --data-dir")


def file_of(config: Config) -> Path | None:
    """Return the file that the configuration was read from; None if there was none."""
    file = Path(str(config.model_config.get("toml_file")))
    return file if file.is_file() else None


def unknown_variables() -> list[str]:
    """Environment variables that look like settings of ours and are none: probably typing errors. Sorted."""
    known = {f"PATTERN_{name.upper()}" for name in Config.model_fields} | {"PATTERN_CONFIG", *_OF_COMMANDS}
    return sorted(
        name for name in os.environ if name.startswith("PATTERN_") and name.upper().split("__")[0] not in known
    )


def _with_vendors(configured: object) -> object:
    """Return the providers of the file, completed by the vendors' own environment variables and those without a key."""
    if not isinstance(configured, dict):
        return configured  # the field's own type says what is wrong
    providers = {name: dict(value) if isinstance(value, dict) else value for name, value in configured.items()}
    for name, kind in sorted(PROVIDERS.items(), key=lambda item: item[1].variables is None):  # keyless ones last
        found = {
            field: value
            for field in ("api_key", "base_url")
            if kind.variables is not None and (value := os.environ.get(f"{kind.variables}_{field.upper()}"))
        }
        if "api_key" in found or kind.variables is None:
            providers.setdefault(name, {})
        if isinstance(entry := providers.get(name), dict):
            providers[name] = {"kind": name, **entry, **found}
    return {name: _with_key(entry) for name, entry in providers.items()}


def _with_key(section: object) -> object:
    """Return the section with keys in the place of `api_key_env`, in itself and in `former` or `search` in it."""
    if not isinstance(section, dict):
        return section
    inner = {name: _with_key(section[name]) for name in ("former", "search") if name in section}
    section = {**section, **inner}
    if not isinstance(section.get("api_key_env"), str):
        return section
    variable = section.pop("api_key_env")
    return {**section, "api_key": section.get("api_key") or os.environ.get(variable) or None}


def _with_defaults(data: dict[str, Any]) -> dict[str, Any]:
    providers = data["providers"]
    if not isinstance(providers, dict):
        return data
    provider = data.get("default_provider") or min(providers, key=lambda name: _is_rules(providers[name]))
    if provider not in providers:
        raise ValueError(
            f"default_provider is {provider!r}, which is not configured; known are {', '.join(sorted(providers))}"
        )
    model = data.get("default_model") or (PROVIDERS[provider].default_model if provider in PROVIDERS else "")
    return {**data, "default_provider": provider, "default_model": model}


def _is_rules(entry: object) -> bool:
    """Return whether a section's provider is no language model, and so no agent's if there is another one."""
    kind = PROVIDERS.get(str(entry.get("kind"))) if isinstance(entry, dict) else None
    return kind is not None and not kind.is_language_model


_SECTION = "is a section, with settings of its own within"
_MISFITS = {  # pydantic's type of a misfit → what we say of it
    "extra_forbidden": "is not a known setting",
    "unexpected_keyword_argument": "is not a known setting",
    "dataclass_type": _SECTION,
    "model_type": _SECTION,
    "model_attributes_type": _SECTION,
    "dict_type": _SECTION,
}


def _misfits(error: ValidationError, path: Path) -> str:
    """Return all misfits in a sentence each, by the names that the operator wrote. No values: they may be secret."""
    lines = []
    for misfit in error.errors(include_url=False, include_input=False, include_context=False):
        name = ".".join(str(part) for part in misfit["loc"]) or "configuration"
        what = _MISFITS.get(misfit["type"], misfit["msg"])
        lines.append(f"{name}: {what.removeprefix('Value error, ')}")
    return f"the configuration does not fit ({path} or PATTERN_* variables): " + "; ".join(lines)
