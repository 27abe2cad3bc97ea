"""What the operator decided: flags, environment and `pattern.toml`, read into one frozen `Config`.

The only reader of the environment. Sources in order of priority: flags, `PATTERN_*` variables (a double
underscore goes one level down: `PATTERN_SUPERVISOR__DRAIN_S`), the file, the defaults below. The file is the one that
`--config` or `PATTERN_CONFIG` names, else `pattern.toml` in the current folder, else `pattern.toml` in the data
directory. Only a file that was named explicitly can set the data directory: it must not depend on the current folder.
Providers' keys and addresses also come from the vendors' own variables, such as `ANTHROPIC_API_KEY` and
`ANTHROPIC_BASE_URL`. A secret that a variable holds may be in a file instead, see `variable`.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from ipaddress import ip_address
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
from pattern_core.validation import must
from pattern_core.web.policy import SourceSection, WebhookSettings
from pattern_db import files as durable
from pattern_db.errors import translated
from pattern_server.sections import (
    BackupConfig,
    BudgetsConfig,
    EmbeddingsConfig,
    HttpConfig,
    McpServersConfig,
    PasswordsConfig,
    ProviderConfig,
    ShellConfig,
    SignInsConfig,
    SourcesConfig,
    SupervisorConfig,
    TelemetryConfig,
    WebConfig,
    WebhooksConfig,
    WholePaths,
)

BOOTSTRAP_TOKEN = "BOOTSTRAP_TOKEN"
BOOTSTRAP_TOKEN_CHARS_MIN = 32
FILE_NAME = "pattern.toml"
REGISTRY_NAME = "global.db"  # its presence marks a data directory
FORMER_DATA_DIR = "data"  # where earlier versions had it, in the current folder
DEFAULT = "the default"
_READ: ContextVar[Path] = ContextVar("the file that `load` reads")


class ConfigError(PatternError):
    """The configuration is invalid; the message names the setting and the file."""

    code = "invalid_config"
    remedy = "Correct the setting that the message names; the page Configuration lists all of them."


_LONG = must(
    lambda token: len(token.get_secret_value()) >= BOOTSTRAP_TOKEN_CHARS_MIN,
    f"must have at least {BOOTSTRAP_TOKEN_CHARS_MIN} characters",
)
_OF_COMMANDS = ("PATTERN_SERVER", "PATTERN_TOKEN", "PATTERN_CONSTELLATION")  # variables that are not settings


def user_data_dir() -> Path:
    """Return the default data directory.

    Source: XDG Base Directory Specification, which ignores relative paths; macOS has a folder of its own.
    """
    return _user_dir("XDG_DATA_HOME", ".local/share")


def user_state_dir() -> Path:
    """Return the folder of what the command line remembers, such as the lines that were typed.

    Source: as `user_data_dir`.
    """
    return _user_dir("XDG_STATE_HOME", ".local/state")


def _user_dir(variable: str, usual: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    if not given.is_absolute():
        given = Path.home() / ("Library/Application Support" if sys.platform == "darwin" else usual)
    return given / "pattern"


def variable(name: str) -> str | None:
    """Return the value of an environment variable for a secret. If it is not set, the secret may be in the file that
    `NAME_FILE` names, or be a credential NAME that systemd has loaded for this service.

    Raises:
        ConfigError: the file that `NAME_FILE` names cannot be read.
    """
    if value := os.environ.get(name):
        return value
    if named := os.environ.get(f"{name}_FILE"):
        try:
            return Path(named).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}_FILE names {named}, which cannot be read: {error}", file=named) from None
    credential = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nowhere"), name)
    return credential.read_text(encoding="utf-8").strip() if credential.is_file() else None


def service_manager() -> tuple[str, float]:
    """Return the address at which systemd hears of this service, and after how many seconds of silence it restarts it
    (infinite: never); an empty address without systemd.

    Source: sd_notify(3), sd_watchdog_enabled(3).
    """
    silence = os.environ.get("WATCHDOG_USEC", "")
    return os.environ.get("NOTIFY_SOCKET", ""), int(silence) / 1e6 if silence.isdigit() else math.inf


def remote_token() -> str:
    """Return the token for a server on another machine; empty if there is none."""
    return os.environ.get("PATTERN_TOKEN", "").strip()


MAY_BE_ZERO = ("retention_days", "overview_tokens_daily", "reflection_tokens_daily")  # limits for which that means none


def _check_limits(limits: Limits, path: str = "") -> Limits:
    for item in fields(limits):
        value = getattr(limits, item.name)
        if is_dataclass(value):
            _check_limits(cast("Limits", value), f"{path}{item.name}.")
        elif not value > 0 and not (value == 0 and item.name in MAY_BE_ZERO):
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
    exposed: bool = Field(default=False, description="serve other machines without TLS, in a network that you trust")
    open_loopback: bool = Field(
        default=False, description="front ends for chat sessions (/api/chat …) on this machine need no token"
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=8470, description="0: any free port")
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="names of this server in URLs, with all names below them"
    )
    http: HttpConfig = Field(default_factory=HttpConfig)
    passwords: PasswordsConfig = Field(default_factory=PasswordsConfig)
    sign_in: SignInsConfig = Field(default_factory=dict)
    bootstrap_token: Annotated[Secret, _LONG] | None = Field(default=None, description="the first admin token")
    body_bytes_max: Annotated[int, Field(ge=1024)] = Field(default=2 * 1024 * 1024, description="longest request body")
    files_roots: WholePaths = Field(
        default=(), description="directories from which users with the scope write can create local folders"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # what is logged
    log_format: Literal["auto", "json", "text"] = Field(default="auto", description="auto: text on a terminal")
    default_provider: str = Field(default="", description="`model_provider` of agents that name none")
    default_model: str = Field(default="", description="`model_name` of agents that name none")
    default_constellation: str = Field(default="", description="what commands work on without `--constellation`")
    providers: dict[str, ProviderConfig] = Field(default_factory=dict)
    embeddings: EmbeddingsConfig = Field(default_factory=EmbeddingsConfig)
    supervisor: SupervisorConfig = Field(default_factory=SupervisorConfig)
    backup: BackupConfig = Field(default_factory=BackupConfig)
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig)
    budgets: BudgetsConfig = Field(default_factory=BudgetsConfig)
    shell: ShellConfig = Field(default_factory=ShellSection)
    web: WebConfig | None = None
    webhooks: WebhooksConfig = Field(default_factory=WebhookSettings)
    sources: SourcesConfig = Field(default_factory=SourceSection)
    mcp: McpServersConfig = Field(default_factory=dict)
    limits: Annotated[Limits, AfterValidator(_check_limits)] = Field(default_factory=Limits)
    _data_dir_source: str = PrivateAttr(DEFAULT)
    _file: Path = PrivateAttr(Path(FILE_NAME))

    @property
    def data_dir_source(self) -> str:
        """What set the data directory: `--data-dir`, `PATTERN_DATA_DIR`, a file, or `DEFAULT`."""
        return self._data_dir_source

    @property
    def place(self) -> Path:
        """Where the configuration's file is, or would be."""
        return self._file

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
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _READ.get())

    @model_validator(mode="before")
    @classmethod
    def _vendors(cls, data: dict[str, Any]) -> dict[str, Any]:
        completed = {**data, "providers": _with_vendors(data.get("providers", {}))}
        if "bootstrap_token" not in data and (token := variable(f"PATTERN_{BOOTSTRAP_TOKEN}")):
            completed["bootstrap_token"] = token
        if "web" in data:
            completed["web"] = _with_key(data["web"])
        if isinstance(data.get("sign_in"), dict):
            sections = data["sign_in"].items()
            completed["sign_in"] = {name: _with_key(section, "client_secret") for name, section in sections}
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
        ConfigError: a key is unknown, a value is invalid, or the named file is missing or not TOML.
    """
    named = file or (Path(os.environ["PATTERN_CONFIG"]) if os.environ.get("PATTERN_CONFIG") else None)
    if named is not None and not named.is_file():
        raise ConfigError(f"the configuration file {named} does not exist", file=str(named))
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    path = (named or _unnamed(given.get("data_dir"))).absolute()
    _READ.set(path)
    try:
        config = Config(**given)
    except ValidationError as error:
        raise ConfigError(_misfits(error, path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", file=str(path)) from None
    return _anchored(config, path, is_named=named is not None, is_flag="data_dir" in given)


def _unnamed(data_dir: object) -> Path:
    """Return the file that is read if none is named; `data_dir` is the flag's."""
    here = Path(FILE_NAME)
    folder = data_dir or os.environ.get("PATTERN_DATA_DIR") or user_data_dir()
    return here if here.is_file() else Path(str(folder), FILE_NAME)


def _anchored(config: Config, path: Path, *, is_named: bool, is_flag: bool) -> Config:
    """Return the configuration with the absolute path of the data directory, and what set it."""
    source, base = DEFAULT, Path.cwd()
    if is_flag:
        source = "--data-dir"
    elif os.environ.get("PATTERN_DATA_DIR"):
        source = "PATTERN_DATA_DIR"
    elif "data_dir" in config.model_fields_set:
        source, base = str(path), path.parent
        if not is_named:
            raise ConfigError(
                f"data_dir in {path} is ignored, because that file was not named explicitly; delete the line and name "
                f"the directory with --data-dir or PATTERN_DATA_DIR, or name this file with --config or PATTERN_CONFIG",
                file=str(path),
            )
    anchored = config.model_copy(update={"data_dir": base / config.data_dir.expanduser()})
    anchored._data_dir_source, anchored._file = source, path
    return anchored


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine reach the host."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(config: Config) -> None:
    """Refuse to serve other machines in clear text, unless the operator said so, and any of them without a token.

    Raises:
        ConfigError: the server would.
    """
    is_seen = not is_loopback(config.host) or config.exposed or bool(config.http.trusted_proxies)
    if config.open_loopback and is_seen:
        raise ConfigError(
            "--open-loopback (open_loopback = true) serves chat sessions without a token, so only this machine may"
            " reach the server: listen on 127.0.0.1, without `exposed` and http.trusted_proxies; or leave it out, and"
            " give the front end a token"
        )
    if not (is_loopback(config.host) or config.exposed or config.http.trusted_proxies):
        raise ConfigError(
            f"other machines reach {config.host}, and passwords, tokens and messages would not be encrypted."
            " Put a proxy with TLS before the server, and name it in http.trusted_proxies; or, in a network that you"
            " trust, add --exposed (exposed = true)"
        )


def require_data(config: Config, *, creates: bool = False) -> None:
    """Refuse a data directory that does not exist, unless the command `creates` it.

    Raises:
        NotFound: it does not exist; or it would be created although one of an earlier version is in the current folder.
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
        raise NotFound(f"{missing}; `pattern up` creates it, or name another one with --data-dir")


def file_of(config: Config) -> Path | None:
    """Return the file that the configuration was read from; None if there was none."""
    return config.place if config.place.is_file() else None


def reloaded(config: Config) -> Config:
    """Read the configuration again, from the same place.

    Raises:
        ConfigError: as `load`.
    """
    return load(file_of(config), data_dir=config.data_dir)


_HEADER = f"""\
# {FILE_NAME}: the configuration of Pattern. The file holds what differs from the defaults; data/docs/configuration.md
# lists all settings. After a change here `pattern up` has a running server read its models again; other settings need a
# restart. `pattern config check` finds mistakes.
# A key is read from the environment variable that api_key_env names, or written as api_key = "…".

# The model of agents that name none: a provider below, and the name that it has there.
"""


def write_default(config: Config, provider: str, model: str, section: Mapping[str, str] | None = None) -> Path:
    """Make a model the default, in the configuration's file, which is made if there is none; return its path.

    `section` is written as `[providers.<provider>]` where there is none. Everything else in the file stays as it is,
    comments included.

    Raises:
        ConfigError: the file is not TOML, or is written in a way that cannot be changed safely; the message holds the
            lines to write by hand.
        StorageFailed: the disk is full or failed.
    """
    path = config.place
    before = path.read_text(encoding="utf-8") if path.is_file() else _HEADER
    wanted: dict[str, Any] = {"default_provider": provider, "default_model": model}
    lines, added = _settings(wanted), []
    try:
        expected = tomllib.loads(before) | wanted
        providers = expected.get("providers", {})
        if section is not None and provider not in providers:
            expected["providers"] = {**providers, provider: dict(section)}
            added = ["", f"[providers.{_key(provider)}]", *_settings(section)]
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}. Correct it first", file=str(path)) from None
    top = re.match(r"(?:(?![ \t]*\[).*\n?)*", before)  # the lines before the first section
    end = top.end() if top else 0
    kept = [line for line in before[:end].splitlines() if not re.match(r"\s*default_(provider|model)\s*=", line)]
    rest = ["", before[end:].rstrip()] if before[end:] else []
    after = "\n".join([*kept, *lines, *rest, *added]).strip() + "\n"
    try:
        is_safe = tomllib.loads(after) == expected
    except tomllib.TOMLDecodeError:
        is_safe = False
    if not is_safe:
        by_hand = "\n".join([*lines, *added])
        raise ConfigError(f"{path} cannot be changed safely. Write into it:\n{by_hand}", file=str(path))
    write_private(path.resolve(), after)
    return path


def _settings(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


SECRETS_FOLDER = "secrets"  # in the data directory: a file for each secret that `pattern channel add` was given


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user may read: the whole of it, or nothing. Its folder is made if it is missing.

    Raises:
        StorageFailed: the disk is full or failed.
    """
    with translated():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with translated(), durable.written(path) as new:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)


def known_variables() -> set[str]:
    """Return the names of our environment variables; those of a section's settings begin with `NAME__`."""
    known = {f"PATTERN_{name.upper()}" for name in Config.model_fields}
    return known | {"PATTERN_CONFIG", f"PATTERN_{BOOTSTRAP_TOKEN}_FILE", *_OF_COMMANDS}


def unknown_variables() -> list[str]:
    """Environment variables that look like settings of ours and are none: probably typing errors. Sorted."""
    known = known_variables()
    return sorted(
        name for name in os.environ if name.startswith("PATTERN_") and name.upper().split("__")[0] not in known
    )


def _with_vendors(configured: object) -> object:
    """Return the providers of the file, completed by the vendors' own environment variables and those without a key."""
    if not isinstance(configured, dict):
        return configured  # the field's own type reports the error
    providers = {name: dict(value) if isinstance(value, dict) else value for name, value in configured.items()}
    for name, kind in sorted(PROVIDERS.items(), key=lambda item: item[1].variables is None):  # keyless ones last
        found = {
            field: value
            for field in ("api_key", "base_url")
            if kind.variables is not None and (value := variable(f"{kind.variables}_{field.upper()}"))
        }
        if "api_key" in found or kind.variables is None:
            providers.setdefault(name, {})
        if isinstance(entry := providers.get(name), dict):
            providers[name] = {"kind": name, **entry, **found}
    return {name: _with_key(entry) for name, entry in providers.items()}


def _with_key(section: object, field: str = "api_key") -> object:
    """Return the section with keys instead of `api_key_env`, also in its `former` or `search`."""
    if not isinstance(section, dict):
        return section
    inner = {name: _with_key(section[name]) for name in ("former", "search") if name in section}
    section = {**section, **inner}
    if not isinstance(section.get(f"{field}_env"), str):
        return section
    name = section.pop(f"{field}_env")
    return {**section, field: section.get(field) or variable(name) or None}


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
    """Return whether a section's provider is not a language model, so that agents use another one if possible."""
    kind = PROVIDERS.get(str(entry.get("kind"))) if isinstance(entry, dict) else None
    return kind is not None and not kind.is_language_model


_SECTION = "is a section with its own settings"
_UNKNOWN = "is not a known setting"
_MISFITS = {  # pydantic's type of an error → our message
    "extra_forbidden": _UNKNOWN,
    "unexpected_keyword_argument": _UNKNOWN,
    "dataclass_type": _SECTION,
    "model_type": _SECTION,
    "model_attributes_type": _SECTION,
    "dict_type": _SECTION,
}


def _misfits(error: ValidationError, path: Path) -> str:
    """Return all errors, a sentence each, with the names that the operator wrote. No values: they may be secret."""
    sentences = []
    for misfit in error.errors(include_url=False, include_input=False, include_context=False):
        place = tuple(str(part) for part in misfit["loc"])
        what = _MISFITS.get(misfit["type"], misfit["msg"]).removeprefix("Value error, ")
        near = get_close_matches(place[-1], _known(place[:-1]), 1) if what == _UNKNOWN else []
        meant = f", did you mean {near[0]}?" if near else ""
        origin = origin_of(place, path)
        sentences.append(f"{'.'.join(place) or 'configuration'}: {what}{meant}{f' ({origin})' if origin else ''}")
    return f"invalid configuration ({path} or PATTERN_* variables): " + "; ".join(sentences)


def origin_of(place: tuple[str, ...], path: Path) -> str:
    """Return what sets a setting, by the names of its sections and its own: a variable, or a line of the file; empty
    if neither does.
    """
    name = f"PATTERN_{'__'.join(place)}".upper()
    if place and name in os.environ:
        return name
    section: tuple[str, ...] = ()
    found, depth = "", 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.is_file() else (), start=1):
        head = re.match(r"\s*\[\s*(.+?)\s*\]\s*(#.*)?$", line)
        key = re.match(r"\s*([^=#\[]+?)\s*=", line)
        if head:
            section = _names_in(head[1])
        at = section if head else (*section, *_names_in(key[1])) if key else ()
        if len(at) > depth and at == place[: len(at)]:
            found, depth = f"line {number}", len(at)
    return found


def _names_in(dotted: str) -> tuple[str, ...]:
    """Return the names of a key of TOML, such as `mcp."a.b"`; none if it is not one."""
    try:
        (name, below), *_ = tomllib.loads(f"{dotted} = 0").items()
    except tomllib.TOMLDecodeError:
        return ()
    names = [name]
    while isinstance(below, dict):
        ((name, below),) = below.items()
        names.append(name)
    return tuple(names)


def _known(place: tuple[str, ...]) -> list[str]:
    """Return the names that a section may have."""
    schema = node = Config.model_json_schema()
    for part in place:
        node = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
        node = next((one for one in node.get("anyOf", ()) if "$ref" in one), node)
        node = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    names = list(node.get("properties", ()))
    return [*names, "api_key_env"] if "api_key" in names else names
