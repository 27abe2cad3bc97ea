"""What an agent's `config` says: checked once when it is written, read as one value afterwards.

| member | read by |
|---|---|
| `max_output_tokens temperature top_p stop reasoning_effort response_schema context_window` | `prompts.settings` |
| `context` | `prompts.settings` |
| `compaction` | `compaction.settings` |
| `routing` | `models.routing` |
| `limits` | `budgets.turn_budget` |
| `detectors` | `rules.detectors` |
| `message_policy`, `on_doubt` | here |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from pattern_core.budgets.turn_budget import TurnBudget
from pattern_core.compaction.settings import CompactionSettings
from pattern_core.errors import InvalidInput
from pattern_core.models.routing import RoutingSettings
from pattern_core.prompts.settings import SAMPLING_KEYS, WINDOW_MAX, ContextSettings, Sampling, window_of
from pattern_core.rules.detectors import DetectorSettings
from pattern_db.columns import Json

MessagePolicy = Literal["enqueue", "reject", "interrupt", "rollback", "steer"]
OnDoubt = Literal["tell_model", "ask_human", "fail_turn"]

KEYS = (
    *SAMPLING_KEYS,
    "context",
    "compaction",
    "routing",
    "limits",
    "detectors",
    "message_policy",
    "on_doubt",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """An agent's config.

    `message_policy` says what becomes of a message that comes while the agent is busy, `on_doubt` what becomes of an
    unsafe call that was cut off. `window` is in tokens; a model's own may be smaller.
    """

    message_policy: MessagePolicy = "enqueue"
    on_doubt: OnDoubt = "tell_model"
    context: ContextSettings = field(default_factory=ContextSettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    limits: TurnBudget = field(default_factory=TurnBudget)
    detectors: DetectorSettings = field(default_factory=DetectorSettings)
    sampling: Sampling = field(default_factory=Sampling)
    window: int = WINDOW_MAX


def settings_of(config: Mapping[str, Json]) -> AgentSettings:
    """The settings in an agent's `config`; members that are not known are passed over.

    Raises:
        InvalidInput: a value will not do; the message names its key and what is allowed.
    """
    if not config:
        return NO_SETTINGS
    return AgentSettings(
        message_policy=policy_of(config),
        on_doubt=_choice(config, "on_doubt", get_args(OnDoubt)),
        context=ContextSettings.of(config.get("context")),
        compaction=CompactionSettings.of(config.get("compaction")),
        routing=RoutingSettings.of(config.get("routing")),
        limits=TurnBudget.of(config.get("limits")),
        detectors=DetectorSettings.of(config.get("detectors")),
        sampling=Sampling.of(config),
        window=window_of(config),
    )


def policy_of(config: Mapping[str, Json]) -> MessagePolicy:
    """The agent's `message_policy` alone.

    Raises:
        InvalidInput: there is no such policy.
    """
    policy: MessagePolicy = _choice(config, "message_policy", get_args(MessagePolicy))
    return policy


def check_config(config: Mapping[str, Json]) -> None:
    """Refuse a config that would fail a turn later.

    Raises:
        InvalidInput: a key is not known, or a value will not do.
    """
    unknown = sorted(set(config) - set(KEYS))
    if unknown:
        raise InvalidInput(f"config.{unknown[0]} is not known; known are {', '.join(KEYS)}")
    settings_of(config)


def _choice(config: Mapping[str, Json], key: str, choices: tuple[str, ...]) -> Json:
    value = config.get(key, choices[0])
    if value not in choices:
        raise InvalidInput(f"config.{key} must be one of {', '.join(choices)}, not {value!r}")
    return value


NO_SETTINGS = AgentSettings()
