"""Enumerations of column values; the CHECKs of the migrations have the same lists."""

from __future__ import annotations

from enum import StrEnum

CONSTELLATION_OWNER = "_constellation_"  # owner of data of all agents, where a column needs an agent's id


class AgentStatus(StrEnum):
    """Whether an agent works, is paused until it is activated, or is kept only for its history."""

    ACTIVE = "active"
    HIBERNATED = "hibernated"
    ARCHIVED = "archived"


class Role(StrEnum):
    """Who speaks in a message."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


SPOKEN = (Role.USER, Role.ASSISTANT, Role.SYSTEM)  # results of tools repeat texts that are stored elsewhere


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
    """What an agent may do with a block, weakest first; partner and human mean: with that person's approval."""

    READ_ONLY = "read_only"
    PARTNER = "partner"
    HUMAN = "human"
    APPEND = "append"
    READ_WRITE = "read_write"
    ADMIN = "admin"


class UpdateSource(StrEnum):
    """The origin of a stored update of a block."""

    AGENT = "agent"
    SYNC = "sync"
    MIGRATION = "migration"
    MANUAL = "manual"


class HistoryKind(StrEnum):
    """The kind of change that made a version of a block."""

    CREATE = "create"
    EDIT = "edit"
    UNDO = "undo"
    REDO = "redo"
    ROLLBACK = "rollback"
    MERGE = "merge"
    REPAIR = "repair"


class DamagedPart(StrEnum):
    """The kind of stored bytes that a repair replaced."""

    CREATED = "created"
    CHECKPOINT = "checkpoint"
    UPDATE = "update"
    SEGMENT = "segment"


class Encoding(StrEnum):
    """How bytes are stored: unchanged, or as one zstd frame."""

    RAW = "raw"
    ZSTD = "zstd"


class TurnStatus(StrEnum):
    """The status of a turn; the first three are open, the others final."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    LIMIT = "limit"


class TrustLevel(StrEnum):
    """Who wants something of an agent, most trusted first: one who may change the constellation, an agent by itself,
    one who may only chat, anything else.
    """

    PARTNER = "partner"
    AGENT = "agent"
    CONVERSANT = "conversant"
    SOURCE = "source"

    def __init__(self, value: str) -> None:
        # Whether who wants something may be shown what others said; anyone else only their own conversation.
        self.sees_all = value in ("partner", "agent")


class EffectClass(StrEnum):
    """How a tool call is treated if a crash hid its outcome, safest first."""

    PURE = "pure"
    LOCAL = "local"
    IDEMPOTENT = "idempotent"
    VERIFIABLE = "verifiable"
    UNSAFE = "unsafe"


class EffectStatus(StrEnum):
    """The status of a tool call; in doubt means that it may have happened."""

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
    """The status of a question to a person."""

    PENDING = "pending"
    APPROVED = "approved"
    EDITED = "edited"
    DENIED = "denied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class DeliveryStatus(StrEnum):
    """Whether something was delivered; what is dead was tried often enough, and a person decides."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


class SourceDelivery(StrEnum):
    """What an event of a source becomes: a message, one made by a template, an archive entry, or a line of activity."""

    MESSAGE = "message"
    NOTIFICATION = "notification"
    ARCHIVE = "archive"
    ACTIVITY = "activity"


class PersonStatus(StrEnum):
    """Whether a person or a room may talk in a channel: a partner may answer questions to people, too."""

    PENDING = "pending"
    ALLOWED = "allowed"
    PARTNER = "partner"
    BLOCKED = "blocked"


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


class TaskStatus(StrEnum):
    """The status of a task; the last two are final. What is in the backlog or deferred is not to be done now."""

    BACKLOG = "backlog"
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    BLOCKED = "blocked"
    DEFERRED = "deferred"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class AssignmentStatus(StrEnum):
    """How far an assignment is; one that is in progress has an agent that works on it."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class Priority(StrEnum):
    """How urgent something is, ascending; columns hold the place in this list, from 0."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    URGENT = "urgent"


class NotableKind(StrEnum):
    """What a notable event is."""

    DECISION = "decision"
    MILESTONE = "milestone"
    PROBLEM = "problem"


class EventOccurrenceStatus(StrEnum):
    """The state of an occurrence of a calendar event; a cancelled one does not take place."""

    SCHEDULED = "scheduled"
    ACTIVE = "active"
    COMPLETED = "completed"
    SKIPPED = "skipped"
    SNOOZED = "snoozed"
    CANCELLED = "cancelled"


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
    """A kind of data that is searched; each kind has vectors, too."""

    MESSAGE = "message"
    BLOCK = "block"
    ARCHIVAL = "archival"
    FILE = "file"
    SUMMARY = "summary"
    TASK = "task"


class IndexState(StrEnum):
    """The state of an index of vectors: search uses the active one; a retired one is being deleted."""

    BUILDING = "building"
    ACTIVE = "active"
    RETIRED = "retired"


class DecisionSource(StrEnum):
    """Who says a decision: a person or an agent, or what read it in a conversation, or in a turn."""

    MANUAL = "manual"
    EXTRACTED = "extracted"
    TURN = "turn"


class DecisionLinkKind(StrEnum):
    """What a decision is to another one."""

    SUPERSEDES = "supersedes"
    CONFLICTS = "conflicts"


class GuidanceState(StrEnum):
    """Whether guidance is shown: only active one is. Merged guidance is replaced by another one."""

    PROPOSED = "proposed"
    ACTIVE = "active"
    ARCHIVED = "archived"
    MERGED = "merged"


class GuidanceSource(StrEnum):
    """Where guidance comes from: starters, experience, a person, or what read conversations or sorted them."""

    SEED = "seed"
    LEARNED = "learned"
    MANUAL = "manual"
    REFLECTOR = "reflector"
    CURATOR = "curator"


class GuidanceVerdict(StrEnum):
    """What guidance did in a turn: it helped, it did harm, or it was only used."""

    HELPFUL = "helpful"
    HARMFUL = "harmful"
    USED = "used"
