"""All bounds of the core with their units; everything that can grow has one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

KEY_CHARS_MAX = 255  # of an idempotency key
IMPORT_MESSAGES_MAX = 10_000  # of one import; they are stored in one transaction

ARCHIVE_ENTRY_CHARS_MAX = 200_000
ARCHIVE_ROWS_MAX = 100_000  # of one owner; a long entry counts once for each chunk

RESULT_STORED_CHARS_MAX = 4_000_000  # stored of one tool's result; the rest is lost, and the text says so
RESULTS_MAX = 200  # long results kept per agent
RESULTS_BYTES_MAX = 32 * 1024 * 1024  # of them, compressed, kept per agent

IMAGES_MAX = 10  # in one message
IMAGE_BYTES_MAX = 5 * 1024 * 1024 * 3 // 4  # of one image: Anthropic accepts 5 MiB of base64, the others more
IMAGES_SHOWN_MAX = 20  # newest images that one request shows …
IMAGES_SHOWN_BYTES_MAX = 12 * 1024 * 1024  # … and their bytes together: as base64 they fit the vendors' bound


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """Bounds on one turn. A turn that reaches one ends with `turn.limit` and the reason.

    Those that begin with `local_` apply to models on this machine or network, which may need minutes to read a prompt.
    """

    steps_max: int = 50  # model calls of one turn
    tool_calls_max: int = 100  # tool calls of one turn
    turn_timeout_s: float = 300.0  # without the time that it waits for people
    local_turn_timeout_s: float = 3600.0  # the same with a local model
    model_timeout_s: float = 120.0  # until the first word of an answer
    local_model_timeout_s: float = 600.0  # the same for a local model
    model_idle_timeout_s: float = 30.0  # between two chunks of a stream
    local_model_idle_timeout_s: float = 120.0  # the same for a local model
    tool_timeout_s: float = 60.0  # for one call, where the tool sets no time of its own
    tool_result_chars_max: int = 20_000  # shown to the model; the tool `result` reads the rest
    output_tokens_max: int = 4_096  # of one answer, where the agent sets nothing
    depth_max: int = 5  # length of a chain of agents that ask each other
    resumes_max: int = 3  # restarts that may interrupt the same step before the turn fails
    attempts_max: int = 2  # model calls that may break off in mid-answer before the step fails

    def local(self) -> TurnLimits:
        """Return the bounds with the times of a local model, none of them shorter."""
        return replace(
            self,
            turn_timeout_s=max(self.turn_timeout_s, self.local_turn_timeout_s),
            model_timeout_s=max(self.model_timeout_s, self.local_model_timeout_s),
            model_idle_timeout_s=max(self.model_idle_timeout_s, self.local_model_idle_timeout_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimits:
    """Bounds on what one prompt shows."""

    history_messages_max: int = 2_000  # messages read for one prompt; older ones are left out, and the prompt says so


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """When the updates of a block's document are merged into a checkpoint, which bytes are compressed, and which
    checkpoints are kept.

    The first of the three that is reached counts. Large documents are merged later, so that an edit is not written
    often.
    Source: names and defaults of `LoroStorageConfig` in the database design.
    """

    compression_threshold_bytes: int = 10 * 1024  # larger snapshots are stored compressed
    checkpoint_update_count: int = 100  # updates of a block until they are merged
    checkpoint_update_size: int = 50 * 1024  # bytes of updates until they are merged
    checkpoint_interval_s: float = 3600.0  # age of the oldest update until they are merged
    checkpoints_newest: int = 10  # checkpoints of a block that are always kept
    checkpoints_days: int = 30  # days (UTC) for which the last checkpoint of each day is kept too


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All bounds of one constellation."""

    turn: TurnLimits = field(default_factory=TurnLimits)
    prompt: PromptLimits = field(default_factory=PromptLimits)
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    inbox_per_agent_max: int = 1_000  # messages that wait for one agent
    pair_cooldown_s: float = 30.0  # between two messages from one agent to another, answers aside
    agents_max: int = 1_000  # agents of one constellation
    message_chars_max: int = 200_000  # length of one message
    block_chars_default: int = 5_000  # limit of a memory block that sets none
    block_chars_max: int = 1_000_000  # largest limit of a memory block
    open_documents_max: int = 256  # memory blocks kept open in addition to those in use, about 25 KiB each
    approvals_pending_max: int = 1_000  # open questions to people
    approval_expiry_s: float = 7 * 24 * 3600.0  # how long a question to a person stays open
    overview_tokens_daily: int = 100_000  # of models, for agents' summaries of one day (UTC); 0: they quote messages
    reflection_tokens_daily: int = 0  # of models, for guidance that they propose from sessions in a day (UTC); 0: none
    retention_days: int = 90  # days for which events, steps and prompt logs of ended turns are kept; 0: for ever
    event_buffer_max: int = 1_000  # newest events kept in memory for live streams
    delta_flush_s: float = 0.1  # streamed text is stored at least this often
    delta_flush_chars: int = 2_000  # streamed text is stored after this many characters
    question_timeout_s: float = 2.0  # for a query's vector; without it, search uses words alone
    room_wait_s: float = 2.0  # on a full disk, until agents try their work again
    commit_timeout_s: float = 30.0  # a commit that lasts longer counts as a disk failure
