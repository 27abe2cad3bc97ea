"""An agent's `config`: checked once when it is written, read as one value afterwards.

    {"message_policy": "steer", "on_doubt": "ask_human", "hibernate_after_s": 86400, "context_window": 32000,
     "max_output_tokens": 2000, "temperature": 0.7, "top_p": 0.9, "stop": ["END"], "reasoning_effort": "low",
     "response_schema": {"type": "object", …}, "files": [{"pattern": "*.toml", "access": "read"}],
     "context": {"extra_tokens": 1200, "shares": {"pinned": 40, "recalled": 25}, "show": {"activity": false}, …},
     "compaction": {"type": "sliding_window", "keep_recent": 20, …},
     "routing": …, "limits": …, "detectors": …}

The last three are described where they are used: `models.routing`, `budgets.budget`, `rules.detectors`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from pattern_core.budgets.budget import TurnBudget
from pattern_core.models.model import ReasoningEffort
from pattern_core.models.routing import RoutingSettings, SplitName
from pattern_core.rules.detectors import DetectorSettings, switched_off
from pattern_core.validation import must, names_in, read, without_null
from pattern_db.columns import Json
from pattern_db.enums import FolderAccess

MessagePolicy = Literal["enqueue", "reject", "interrupt", "rollback", "steer"]
OnDoubt = Literal["tell_model", "ask_human", "fail_turn"]
Strategy = Literal["truncate", "importance_based", "recursive_summarization", "sliding_window", "time_decay"]
# Kinds of parts of a prompt.
SWITCHED = (
    *("guide", "rules", "pinned", "referred", "logs", "workspace", "decisions", "guidance"),
    *("recalled", "tasks", "catch_up", "activity", "time"),
)
# In percent, in this order: what one kind does not need is available to the later ones.
SHARES: Mapping[str, int] = MappingProxyType({"pinned": 40, "recalled": 25, "logs": 15, "tasks": 10, "activity": 10})
WINDOW_MAX = 100_000_000  # tokens

T = TypeVar("T")


def _completed(given: Mapping[str, int]) -> Mapping[str, int]:
    shares = {**SHARES, **_known_only(SHARES, given)}
    total = sum(shares.values())
    if total > 100:
        raise ValueError(f"the shares add up to {total} (with defaults for those left out); lower them to 100 or less")
    return MappingProxyType(shares)


def _known_only(known: Collection[str], given: Mapping[str, T]) -> Mapping[str, T]:
    if unknown := [name for name in given if name not in known]:
        raise ValueError(f"{unknown[0]} is not known (known are: {', '.join(known)})")
    return given


Percent: TypeAlias = Annotated[int, Field(ge=0, le=100)]
MessageCount: TypeAlias = Annotated[int, Field(ge=1, le=10_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """What a prompt shows in addition to core memory and the conversation.

    `extra_tokens` is divided by `shares` (in percent); kinds that are false in `show` are never shown. Without a value
    for `activity`, that of agents that share a block is shown; if true, that of all agents. A turn waits at most
    `recall_timeout_ms` for recalled passages.
    """

    # tokens for what a prompt shows besides core memory and conversation
    extra_tokens: Annotated[int, Field(ge=0, le=100_000)] = 1_200
    # how `extra_tokens` is divided, in hundredths
    shares: Annotated[Mapping[str, Percent], AfterValidator(_completed)] = field(default_factory=lambda: SHARES)
    # switches parts off (`false`), by kind
    show: Annotated[Mapping[str, bool], AfterValidator(partial(_known_only, SWITCHED))] = field(default_factory=dict)
    recall_max: Annotated[int, Field(ge=0, le=50)] = 5  # passages recalled from older messages, archive and files
    recall_timeout_ms: Annotated[int, Field(ge=0, le=10_000)] = 150  # how long a turn waits for recalled passages
    activity_max: Annotated[int, Field(ge=0, le=100)] = 20  # events of other agents that are shown
    activity_own_max: Annotated[int, Field(ge=0, le=100)] = 3  # events of the agent itself that are shown
    activity_hours: Annotated[int, Field(ge=1, le=24 * 30)] = 24  # age of the oldest event that is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """How a conversation is kept within its window: what leaves, and what is kept of it.

    `type` is the strategy: truncate keeps the newest `keep_recent` messages; importance_based keeps the best
    `keep_important` of the others too; time_decay removes what is older than `compress_after_hours`, but keeps
    `min_keep_recent` messages; sliding_window summarises the oldest `percentage` of the tokens;
    recursive_summarization summarises all but `keep_recent`, in chunks of `chunk_size` messages, together with the
    previous summary. If that is not enough, the oldest others leave too. Counts are of messages; whole turns are kept
    or leave.

    Compaction begins when the conversation fills `threshold` of its room. `summarization_model` is "provider/model"
    (None: the agent's own), `summarization_prompt` replaces the usual instructions, and a summary has at most
    `summary_tokens` tokens by estimate.
    """

    type: Strategy = "sliding_window"  # what leaves the prompt, and whether it is summarised
    keep_recent: MessageCount = 20  # newest messages that stay
    # `importance_based`: most important older messages that stay
    keep_important: Annotated[int, Field(ge=0, le=10_000)] = 20
    chunk_size: Annotated[int, Field(ge=2, le=1_000)] = 40  # `recursive_summarization`: messages per summary
    compress_after_hours: Annotated[float, Field(ge=0, le=100_000)] = 24.0  # `time_decay`: age at which messages leave
    min_keep_recent: MessageCount = 10  # `time_decay`: newest messages that stay in any case
    summarization_model: SplitName | None = None  # `provider/model` that writes summaries; default: the agent's own
    # instructions for summaries; default: built in
    summarization_prompt: Annotated[str, Field(max_length=20_000), must(str.strip, "the text is empty")] | None = None
    # `sliding_window`: oldest part of the tokens that is summarised
    percentage: Annotated[float, Field(ge=0.1, le=0.9)] = 0.3
    threshold: Annotated[float, Field(ge=0.5, le=1.0)] = 0.9  # used part of the room at which compaction begins
    summary_tokens: Annotated[int, Field(ge=50, le=8_192)] = 600  # longest summary

    @property
    def summarises(self) -> bool:
        """Whether a model summarises the messages that leave."""
        return self.type in ("recursive_summarization", "sliding_window")

    def model(self, provider: str, model: str) -> tuple[str, str]:
        """Return the provider and model that write summaries; by default the agent's own, which are given."""
        named = self.summarization_model
        return (provider, model) if named is None else (named.provider, named.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRule:
    """What an agent may do with files, in folders that are attached to it for writing, of which the name matches."""

    # `*` within a part, `**` any parts; without a slash, it is of the last part
    pattern: Annotated[str, Field(min_length=1, max_length=500)]
    access: FolderAccess  # `read` or `read_write`


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """An agent's config.

    Settings of its model calls: None is the vendor's default; for `max_output_tokens` it is the limit of the turn;
    `response_schema` is a JSON Schema that the answer must follow. `message_policy` says how messages that arrive while
    the agent is busy are handled, `on_doubt` how an interrupted unsafe call is. `context_window` is in tokens; a
    model's own may be smaller.
    """

    # longest answer of one call; default: 4,096, or a quarter of a smaller window
    max_output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None  # default: the vendor's
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None  # default: the vendor's
    # texts at which an answer ends
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=16)] = ()
    reasoning_effort: ReasoningEffort | None = None  # how much the model thinks; default: the vendor's
    response_schema: dict[str, Any] | None = None  # JSON Schema that answers must follow
    message_policy: MessagePolicy = "enqueue"  # what happens to a message while the agent is busy
    on_doubt: OnDoubt = "tell_model"  # what happens to an unsafe tool call with an unknown outcome
    # seconds without work after which it hibernates, until there is something to do; default: never
    hibernate_after_s: Annotated[float, Field(ge=60, le=366 * 86_400)] | None = None
    # tokens of prompt and answer; at most the model's window
    context_window: Annotated[int, Field(ge=1_000, le=WINDOW_MAX)] = WINDOW_MAX
    # `provider/model` that proposes guidance from its sessions; default: its own
    reflection_model: SplitName | None = None
    # which files it may write; the first rule that matches counts, without one the folder's
    files: Annotated[tuple[FileRule, ...], Field(max_length=100)] = ()
    context: Annotated[ContextSettings, BeforeValidator(without_null)] = field(default_factory=ContextSettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    limits: TurnBudget = field(default_factory=TurnBudget)
    detectors: Annotated[DetectorSettings, BeforeValidator(switched_off)] = field(default_factory=DetectorSettings)


def settings_of(config: Mapping[str, Json], *, is_new: bool = False) -> AgentSettings:
    """Return an agent's `config` as one value; unknown keys, stored by a newer version, are ignored unless it `is_new`.

    Raises: InvalidInput: a value is invalid, or a key of a new config is unknown; the message names it.
    """
    if not config:
        return NO_SETTINGS
    return read(_SETTINGS, without_null(config), _KNOWN, place="config", ignores_unknown=not is_new)


_SETTINGS = TypeAdapter(AgentSettings)
_KNOWN = names_in(AgentSettings)
KEYS = tuple(one.name for one in fields(AgentSettings))
NO_SETTINGS = AgentSettings()
