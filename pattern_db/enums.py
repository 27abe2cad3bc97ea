"""Enums whose values are column values; the CHECKs of the migrations hold the same lists."""

from __future__ import annotations

from enum import StrEnum

CONSTELLATION_OWNER = "_constellation_"  # owner of what belongs to all agents, where a column wants an agent's id


class AgentStatus(StrEnum):
    """Whether an agent takes part: it works, rests until woken by hand, or is kept for its past only."""

    ACTIVE = "active"
    HIBERNATED = "hibernated"
    ARCHIVED = "archived"


class Role(StrEnum):
    """Who speaks in a message."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


class BatchType(StrEnum):
    """What started a turn's batch of messages."""

    USER_REQUEST = "user_request"
    AGENT_TO_AGENT = "agent_to_agent"
    SYSTEM_TRIGGER = "system_trigger"
    CONTINUATION = "continuation"


class BlockType(StrEnum):
    """Where a block shows: always in the prompt, when pinned or referred to, only by search, as a log."""

    CORE = "core"
    WORKING = "working"
    ARCHIVAL = "archival"
    LOG = "log"


class Permission(StrEnum):
    """What an agent may do to a block, weakest first; partner and human mean: after that person's consent."""

    READ_ONLY = "read_only"
    PARTNER = "partner"
    HUMAN = "human"
    APPEND = "append"
    READ_WRITE = "read_write"
    ADMIN = "admin"


class UpdateSource(StrEnum):
    """Where a stored update of a block came from."""

    AGENT = "agent"
    SYNC = "sync"
    MIGRATION = "migration"
    MANUAL = "manual"


class HistoryKind(StrEnum):
    """What made a version of a block."""

    CREATE = "create"
    EDIT = "edit"
    UNDO = "undo"
    REDO = "redo"
    ROLLBACK = "rollback"
    MERGE = "merge"
    REPAIR = "repair"


class DamagedPart(StrEnum):
    """Which stored bytes of a block a repair put aside."""

    CREATED = "created"
    CHECKPOINT = "checkpoint"
    UPDATE = "update"
    SEGMENT = "segment"


class Encoding(StrEnum):
    """How bytes are stored: as they came, or as one zstd frame."""

    RAW = "raw"
    ZSTD = "zstd"


class TurnStatus(StrEnum):
    """Where a turn is; the first three are open, the others are its one end."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    LIMIT = "limit"


class EffectClass(StrEnum):
    """What may be done with a tool call whose outcome a crash hid, safest first."""

    PURE = "pure"
    LOCAL = "local"
    IDEMPOTENT = "idempotent"
    VERIFIABLE = "verifiable"
    UNSAFE = "unsafe"


class EffectStatus(StrEnum):
    """Where a tool call is; in doubt means that it may have happened."""

    PLANNED = "planned"
    AWAITING_APPROVAL = "awaiting_approval"
    STARTED = "started"
    DONE = "done"
    ERROR = "error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    DENIED = "denied"
    IN_DOUBT = "in_doubt"


class ApprovalKind(StrEnum):
    """What a person is asked about."""

    TOOL = "tool"
    MEMORY = "memory"
    RECOVERY = "recovery"
    SCHEDULE = "schedule"


class ApprovalStatus(StrEnum):
    """What became of a question to a person."""

    PENDING = "pending"
    APPROVED = "approved"
    EDITED = "edited"
    DENIED = "denied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class ScheduleStatus(StrEnum):
    """Whether a schedule is due again: a finished one has no next occurrence."""

    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"


class OccurrenceStatus(StrEnum):
    """What happened at a nominal time of a schedule: a turn, too late, nothing to do, or a person is asked."""

    FIRED = "fired"
    MISSED = "missed"
    SKIPPED = "skipped"
    ASKED = "asked"


class PathType(StrEnum):
    """Where a folder's files are."""

    LOCAL = "local"
    VIRTUAL = "virtual"
    REMOTE = "remote"


class FolderAccess(StrEnum):
    """What an agent may do in a folder."""

    READ = "read"
    READ_WRITE = "read_write"


class SearchKind(StrEnum):
    """What a search looks through; each kind has vectors, too."""

    MESSAGE = "message"
    BLOCK = "block"
    ARCHIVAL = "archival"
    FILE = "file"
    SUMMARY = "summary"


class IndexState(StrEnum):
    """What an index of vectors is for: search answers from the active one; a retired one is being removed."""

    BUILDING = "building"
    ACTIVE = "active"
    RETIRED = "retired"
