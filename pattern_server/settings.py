"""What the configuration says, as the core needs it: values in which every key and address has found its place.

An index of vectors says who made it: provider, model, length and fingerprint. Files of constellations come from
anywhere, so what they say is never followed: no address, no folder and no download. It is only looked for among what
this server's own configuration names, and the fingerprint decides. Keys go nowhere but to the address that they are
configured with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from hashlib import blake2b
from pathlib import PurePath
from urllib.parse import urlsplit

from pattern_core.budgets.budget import MICRO, Budget
from pattern_core.embeddings.embedder import EmbedderInfo
from pattern_core.embeddings.providers import EMBEDDERS, make_embedder
from pattern_core.embeddings.questions import EmbedderShelf
from pattern_core.embeddings.settings import EmbedderSection, EmbedderSettings
from pattern_core.mcp_servers.settings import McpSection, McpSettings, Stdio, Streamable
from pattern_core.models.catalogue import Catalogue, ProviderModels
from pattern_core.models.client import Account
from pattern_core.models.providers import PROVIDERS
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_core.shell.policy import ShellSettings
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from pattern_server.config import Config
from pattern_server.sections import BudgetsConfig, McpConfig, ProviderConfig

OPENAI_ACCOUNT = {"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"}
MODEL_NAME_CHARS_MAX = 200
# What a program needs of this server's environment to be found and to start; everything else has to be named.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SHELL")

_KINDS = {"openai": "openai", "compatible": "openai", "google": "google", "ollama": "ollama"}  # whose format it is


def default_model_of(config: Config, provider: str) -> str:
    """Return the model of an agent that names this provider and no model; empty if there is no default for it."""
    if provider == config.default_provider:
        return config.default_model
    kind = config.providers[provider].kind if provider in config.providers else provider
    return PROVIDERS[kind].default_model if provider in PROVIDERS else ""


def provider_settings(entry: ProviderConfig) -> ProviderSettings:
    """Return what a section of `[providers]` says of the provider itself."""
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
    """Return a digest, so that the secret goes nowhere; without one, each section is an account of its own."""
    secret = "" if entry.api_key is None else entry.api_key.get_secret_value()
    if not secret:
        return name
    host = urlsplit(entry.base_url).netloc.rpartition("@")[2] if entry.base_url else ""
    return blake2b("\n".join((entry.kind, host, secret)).encode(), digest_size=16).hexdigest()


def configured_budgets(config: BudgetsConfig) -> tuple[Budget, ...]:
    """Return the operator's budgets, as `[budgets]` says them; none where nothing is configured."""
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
    """Return what `[shell]` says; None if it names no directory. The server's own data is kept out of every root."""
    section = config.shell
    if not section.roots:
        return None
    return ShellSettings(**asdict(section), kept_out=(config.data_dir.absolute(),))


def configured_mcp(config: Config, environment: Mapping[str, str] = os.environ) -> dict[str, McpSettings]:
    """Return what `[mcp.*]` says, with the values of the variables of this server's `environment` that are named there.

    A variable that is named and not set keeps that one server from being started.
    """
    return {name: _mcp_settings(section, environment) for name, section in config.mcp.items()}


def _mcp_settings(section: McpConfig, environment: Mapping[str, str]) -> McpSettings:
    named = [*section.env_from, *section.headers_env.values(), *([section.token_env] if section.token_env else [])]
    return McpSettings(
        **{item.name: getattr(section, item.name) for item in fields(McpSection)},
        reach=_address(section, environment) if section.url else _program(section, environment),
        missing=tuple(variable for variable in named if not environment.get(variable)),
    )


def _program(section: McpConfig, environment: Mapping[str, str]) -> Stdio:
    found = {name: Secret(environment[name]) for name in (*INHERITED, *section.env_from) if name in environment}
    assert section.command is not None  # as the section was checked
    return Stdio(command=section.command, args=section.args, environment={**found, **section.env}, cwd=section.cwd)


def _address(section: McpConfig, environment: Mapping[str, str]) -> Streamable:
    named = {header: Secret(environment.get(name, "")) for header, name in section.headers_env.items()}
    headers = {**section.headers, **named}
    if section.token_env:
        headers["Authorization"] = Secret(f"Bearer {environment.get(section.token_env, '')}")
    assert section.url is not None  # as the section was checked
    return Streamable(url=section.url, headers=headers)


def embedder_settings(config: Config, former: EmbedderSection | None = None) -> EmbedderSettings:
    """Return what `[embeddings]` says (or `former`), with the address and key of the section of `[providers]` it
    names.
    """
    section = former or config.embeddings
    named = config.providers.get(section.provider)
    is_ours = section.provider in EMBEDDERS
    given = {field.name: getattr(section, field.name) for field in fields(EmbedderSection)}
    if named is not None:
        # A provider of its own name speaks the format of its kind.
        given["provider"] = section.provider if is_ours else named.kind
        given |= {"base_url": section.base_url or named.base_url, "api_key": section.api_key or named.api_key}
    return EmbedderSettings(**given, account=_account())


def embedder_shelf(config: Config) -> EmbedderShelf:
    """Return the configured embedder, and what can be made again of others. Nothing is loaded or opened yet."""
    configured = make_embedder(embedder_settings(config))
    return EmbedderShelf(configured, lambda wanted: map(make_embedder, former_settings(config, wanted)))


def former_settings(config: Config, wanted: EmbedderInfo) -> list[EmbedderSettings]:
    """Return what may lead to the model that an index was made by, the likeliest first.

    With embeddings switched off nothing does: then no text leaves this machine, questions neither.
    """
    configured = embedder_settings(config)
    if configured.provider == "none":
        return []
    former = config.embeddings.former
    found = [] if former is None else [embedder_settings(config, former)]
    if not _is_name(wanted.model):
        pass
    elif wanted.provider == "local":
        found += _local(configured, wanted)
    elif wanted.provider == "deterministic":
        found.append(EmbedderSettings(provider="deterministic", dimensions=wanted.dimension))
    elif wanted.provider in _KINDS:
        found += _services(config, configured, _KINDS[wanted.provider], wanted)
    return [one for place, one in enumerate(found) if one not in (configured, *found[:place])]


def _local(configured: EmbedderSettings, wanted: EmbedderInfo) -> list[EmbedderSettings]:
    """Return the ways to a model that was local: it is still there or gone, nothing is fetched for it.

    Both ways to run a model, since their vectors differ; with the model's own prefixes or those that are configured.
    """
    base = EmbedderSettings(
        provider="local", model=wanted.model, idle_unload_s=configured.idle_unload_s, threads=configured.threads
    )
    found = [replace(base, runtime="sentence-transformers"), replace(base, runtime="onnx")]
    if configured.provider == "local":
        if PurePath(configured.model).name == wanted.model:  # a folder: an index knows only its name
            found = [replace(settings, model=configured.model) for settings in found]
        found += [
            replace(settings, query_prefix=configured.query_prefix, passage_prefix=configured.passage_prefix)
            for settings in found
        ]
    return found


def _services(config: Config, configured: EmbedderSettings, kind: str, wanted: EmbedderInfo) -> list[EmbedderSettings]:
    """Return every address of this kind that is configured, each with its own key."""
    places = [(entry.base_url, entry.api_key) for entry in config.providers.values() if entry.kind == kind]
    if _KINDS.get(configured.provider) == kind:
        places.append((configured.base_url, configured.api_key))
    if kind == "ollama":
        places.append((None, None))  # on this machine
    return [
        EmbedderSettings(
            provider=kind,
            model=wanted.model,
            base_url=base_url,
            api_key=key,
            account=configured.account,
            # First as long as the model makes them; then shortened, which not every service can do.
            dimensions=dimensions,
            timeout_s=configured.timeout_s,
        )
        for base_url, key in places
        for dimensions in (None, wanted.dimension)
    ]


def _is_name(model: str) -> bool:
    """Return whether it is the name of a model rather than a place in the file system, or rubbish."""
    is_place = model.startswith(("/", ".", "~")) or ".." in model
    return 0 < len(model) <= MODEL_NAME_CHARS_MAX and model.isprintable() and not is_place
