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

    steps_max: int = 50
    tool_calls_max: int = 100
    turn_timeout_s: float = 300.0
    local_turn_timeout_s: float = 3600.0
    model_timeout_s: float = 120.0  # until the first token of an answer
    local_model_timeout_s: float = 600.0
    model_idle_timeout_s: float = 30.0  # between two chunks of a stream
    local_model_idle_timeout_s: float = 120.0
    tool_timeout_s: float = 60.0
    tool_result_chars_max: int = 20_000
    output_tokens_max: int = 4_096
    depth_max: int = 5  # agents that ask agents that ask agents
    resumes_max: int = 3  # restarts that may interrupt the same step before the turn fails
    attempts_max: int = 2  # model calls that may break off during the answer before the step fails

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

    history_messages_max: int = 2_000  # read at once; older ones leave first, and the prompt says so


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """When the updates of a block's document are merged into a checkpoint, which bytes are compressed, and which
    checkpoints are kept.

    The first of the three that is reached counts. Large documents are merged later, so that an edit is not written
    often.
    Source: names and defaults of `LoroStorageConfig` in the database design.
    """

    compression_threshold_bytes: int = 10 * 1024  # larger snapshots are compressed
    checkpoint_update_count: int = 100
    checkpoint_update_size: int = 50 * 1024  # bytes
    checkpoint_interval_s: float = 3600.0
    checkpoints_newest: int = 10  # that are kept, and …
    checkpoints_days: int = 30  # … the last one of each of these days (UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All bounds of one constellation."""

    turn: TurnLimits = field(default_factory=TurnLimits)
    prompt: PromptLimits = field(default_factory=PromptLimits)
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    inbox_per_agent_max: int = 1_000
    agents_max: int = 1_000
    message_chars_max: int = 200_000
    block_chars_default: int = 5_000
    block_chars_max: int = 1_000_000
    open_documents_max: int = 256  # kept open in addition to those in use: some 25 KiB each
    approvals_pending_max: int = 1_000  # open questions to people
    approval_expiry_s: float = 7 * 24 * 3600.0
    retention_days: int = 90  # of events, steps and prompt logs of ended turns; 0: forever
    event_buffer_max: int = 1_000  # newest events kept in memory for live streams
    delta_flush_s: float = 0.1  # streamed text becomes a row at least this often …
    delta_flush_chars: int = 2_000  # … or after this much text
    question_timeout_s: float = 2.0  # for a question's vector; without it a search is by words only
    room_wait_s: float = 2.0  # on a full disk, until agents retry their work
    commit_timeout_s: float = 30.0  # a shielded commit that lasts longer is a disk error
