"""The configuration as values for the core, with all keys and addresses resolved.

An index of vectors names its origin: provider, model, length and fingerprint. Files of constellations may come from
anyone, so these names are never followed: no address, no folder and no download. They are only compared with this
server's own configuration, and the fingerprint decides. Keys are sent only to the address that they are configured
with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from hashlib import blake2b
from pathlib import PurePath
from typing import TypeAlias
from urllib.parse import urlsplit

from pattern_core.budgets.budget import MICRO, Budget
from pattern_core.embeddings.embedder import EmbedderInfo
from pattern_core.embeddings.providers import EMBEDDERS, make_embedder
from pattern_core.embeddings.questions import EmbedderShelf
from pattern_core.embeddings.settings import EmbedderSection, EmbedderSettings
from pattern_core.mcp_settings import McpSection, McpSettings, Stdio, Streamable
from pattern_core.models.catalogue import Catalogue, ProviderModels
from pattern_core.models.client import Account
from pattern_core.models.providers import PROVIDERS
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_core.shell.policy import ShellSettings
from pattern_core.web.policy import SecretSource, SourceSection, SourceSettings, WebhookSettings
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from pattern_server.config import SECRETS_FOLDER, Config, variable
from pattern_server.sections import BudgetsConfig, McpConfig, ProviderConfig

Variables: TypeAlias = Callable[[str], str | None]  # returns the value of a variable

OPENAI_ACCOUNT = {"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"}
MODEL_NAME_CHARS_MAX = 200
# Variables that a program needs to be found and to start; all others must be named.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SHELL")

_KINDS = {"openai": "openai", "compatible": "openai", "google": "google", "ollama": "ollama"}  # the kind that it uses


def default_model_of(config: Config, provider: str) -> str:
    """Return the default model of this provider; empty if there is none."""
    if provider == config.default_provider:
        return config.default_model
    kind = config.providers[provider].kind if provider in config.providers else provider
    return PROVIDERS[kind].default_model if provider in PROVIDERS else ""


def provider_settings(entry: ProviderConfig) -> ProviderSettings:
    """Return the settings of the provider itself in a section of `[providers]`."""
    return ProviderSettings(**entry.model_dump(exclude={"limits", "models"}), account=_account())


def _account() -> dict[str, str]:
    return {header: os.environ[name] for header, name in OPENAI_ACCOUNT.items() if name in os.environ}


def catalogue_of(config: Config) -> Catalogue:
    """Return the packaged catalogue with the operator's figures, for the configured providers.

    Raises:
        FileNotFoundError: the catalogue is missing; the installation is incomplete.
    """
    return Catalogue.packaged().configured(
        {
            name: ProviderModels(
                kind=entry.kind,
                base_url=entry.base_url,
                overrides={model: figures.model_dump(exclude_none=True) for model, figures in entry.models.items()},
            )
            for name, entry in config.providers.items()
        }
    )


def accounts_of(config: Config) -> dict[str, Account]:
    """Return each provider's account and its limits; sections with the same key at the same vendor share one.

    Where sections share an account, the limits of the first of their names, in alphabetical order, hold.
    """
    return {name: Account(key=_key(name, entry), limits=entry.limits) for name, entry in config.providers.items()}


def _key(name: str, entry: ProviderConfig) -> str:
    """Return a digest instead of the secret; without a key, each section is its own account."""
    secret = "" if entry.api_key is None else entry.api_key.get_secret_value()
    if not secret:
        return name
    host = urlsplit(entry.base_url).netloc.rpartition("@")[2] if entry.base_url else ""
    return blake2b("\n".join((entry.kind, host, secret)).encode(), digest_size=16).hexdigest()


def configured_budgets(config: BudgetsConfig) -> tuple[Budget, ...]:
    """Return the operator's budgets from `[budgets]`; empty if none are configured."""
    amounts = [(BudgetScope.TURN, Period.TOTAL, config.turn)]
    for scope, section in ((BudgetScope.AGENT, config.agent), (BudgetScope.CONSTELLATION, config.constellation)):
        amounts += [(scope, period, getattr(section, period.value)) for period in Period]
    found = []
    for scope, period, amount in amounts:
        money = None if amount.dollars is None else int(amount.dollars * MICRO)
        units = ((Unit.TOKENS, amount.tokens), (Unit.MICRODOLLARS, money))
        found += [Budget(scope, "", period, unit, value) for unit, value in units if value is not None]
    return tuple(found)


def shell_settings(config: Config) -> ShellSettings | None:
    """Return the settings of `[shell]`; None without directories. The server's own data is excluded from every root."""
    section = config.shell
    if not section.roots:
        return None
    return ShellSettings(**asdict(section), kept_out=(config.data_dir.absolute(),))


def webhook_settings(config: Config, find: Variables = variable) -> WebhookSettings:
    """Return the settings of `[webhooks]` with the values of the variables that they name, as `find` returns them."""
    return replace(config.webhooks, secrets=_resolved(config.webhooks.secrets, find))


def source_settings(config: Config, find: Variables = variable) -> SourceSettings:
    """Return the settings of `[sources]`, as `webhook_settings`. The server's own data is excluded from every root."""
    given = {field.name: getattr(config.sources, field.name) for field in fields(SourceSection)}
    given["secrets"] = _resolved(config.sources.secrets, find)
    data_dir = config.data_dir.absolute()
    return SourceSettings(
        **given,
        kept_out=(data_dir,),
        secrets_in=data_dir / SECRETS_FOLDER,
        shell=shell_settings(config),
        mcp=configured_mcp(config, find),
    )


def _resolved(secrets: Mapping[str, SecretSource], find: Variables) -> dict[str, SecretSource]:
    return {
        name: replace(source, value=Secret(find(source.env) or "")) if source.env else source
        for name, source in secrets.items()
    }


def configured_mcp(config: Config, find: Variables = variable) -> dict[str, McpSettings]:
    """Return the settings of `[mcp.*]` with the values of the variables that they name, as `find` returns them.

    If a named variable is not set, that MCP server cannot start.
    """
    return {name: _mcp_settings(section, find) for name, section in config.mcp.items()}


def _mcp_settings(section: McpConfig, find: Variables) -> McpSettings:
    named = [*section.env_from, *section.headers_env.values(), *([section.token_env] if section.token_env else [])]
    return McpSettings(
        **{item.name: getattr(section, item.name) for item in fields(McpSection)},
        reach=_address(section, find) if section.url else _program(section, find),
        missing=tuple(variable for variable in named if not find(variable)),
    )


def _program(section: McpConfig, find: Variables) -> Stdio:
    found = {name: Secret(value) for name in (*INHERITED, *section.env_from) if (value := find(name)) is not None}
    assert section.command is not None  # as checked in the section
    return Stdio(command=section.command, args=section.args, environment={**found, **section.env}, cwd=section.cwd)


def _address(section: McpConfig, find: Variables) -> Streamable:
    named = {header: Secret(find(name) or "") for header, name in section.headers_env.items()}
    headers = {**section.headers, **named}
    if section.token_env:
        headers["Authorization"] = Secret(f"Bearer {find(section.token_env) or ''}")
    assert section.url is not None  # as checked in the section
    return Streamable(url=section.url, headers=headers)


def embedder_settings(config: Config, former: EmbedderSection | None = None) -> EmbedderSettings:
    """Return the settings of `[embeddings]` (or `former`), with the URL and key of the provider that it names."""
    section = former or config.embeddings
    named = config.providers.get(section.provider)
    is_ours = section.provider in EMBEDDERS
    given = {field.name: getattr(section, field.name) for field in fields(EmbedderSection)}
    if named is not None:
        # A provider with its own name uses the format of its kind.
        given["provider"] = section.provider if is_ours else named.kind
        given |= {"base_url": section.base_url or named.base_url, "api_key": section.api_key or named.api_key}
    return EmbedderSettings(**given, account=_account())


def embedder_shelf(config: Config) -> EmbedderShelf:
    """Return the configured embedder, and former ones that can still be used. Nothing is loaded or opened yet."""
    configured = make_embedder(embedder_settings(config))
    return EmbedderShelf(configured, lambda wanted: map(make_embedder, former_settings(config, wanted)))


def former_settings(config: Config, wanted: EmbedderInfo) -> list[EmbedderSettings]:
    """Return settings that may be the model of an index, the likeliest first: `[embeddings.former]`, then what the
    index says, with the addresses and keys that are configured for such models. Nothing is downloaded.

    None if embeddings are switched off: then no text leaves this machine, not even a question.
    """
    own, former = config.embeddings, config.embeddings.former
    if own.provider == "none":
        return []
    kind, sections = wanted.provider, [] if former is None else [former]
    is_folder = kind == own.provider == "local" and PurePath(own.model).name == wanted.model  # its name is stored
    model = own.model if is_folder else wanted.model
    likely = [own, EmbedderSection(provider=kind)] if kind == own.provider else [EmbedderSection(provider=kind)]
    if kind in _KINDS:
        named = [name for name, entry in config.providers.items() if entry.kind == _KINDS[kind]]
        likely = [EmbedderSection(provider=name) for name in named]
        likely += [own] if _KINDS.get(embedder_settings(config).provider) == _KINDS[kind] else []
        likely += [EmbedderSection(provider=kind)] if kind == "ollama" else []  # on this machine
    for section in likely if kind in EMBEDDERS and _is_name(wanted.model) else ():
        found = replace(section, model=model, allow_download=False)
        if kind == "local":  # the vectors of both differ
            sections += [replace(found, runtime="sentence-transformers"), replace(found, runtime="onnx")]
        else:  # the model's own length; or a shorter one, which not every service supports
            sections += [replace(found, dimensions=None), replace(found, dimensions=wanted.dimension)]
    made = [embedder_settings(config, section) for section in sections]
    return [one for place, one in enumerate(made) if one not in (embedder_settings(config), *made[:place])]


def _is_name(model: str) -> bool:
    """Return whether it is the name of a model and not a path or an invalid text."""
    is_place = model.startswith(("/", ".", "~")) or ".." in model
    return 0 < len(model) <= MODEL_NAME_CHARS_MAX and model.isprintable() and not is_place
