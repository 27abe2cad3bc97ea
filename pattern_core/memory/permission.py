"""Who may do what to a block: one table, no state. Asking a person for consent is the caller's business."""

from __future__ import annotations

from enum import Enum, StrEnum

from pattern_core.errors import PermissionDenied
from pattern_db.enums import Permission


class Operation(StrEnum):
    """What can be done to a block's content, weakest first."""

    READ = "read"
    APPEND = "append"
    OVERWRITE = "overwrite"
    DELETE = "delete"


class Verdict(Enum):
    """What a permission says to an operation: yes, ask a person first, no."""

    ALLOW = "allow"
    CONSENT = "consent"
    DENY = "deny"


_ALLOW, _ASK, _DENY = Verdict.ALLOW, Verdict.CONSENT, Verdict.DENY

#                          read     append   overwrite  delete
_TABLE = {
    Permission.READ_ONLY: (_ALLOW, _DENY, _DENY, _DENY),
    Permission.PARTNER: (_ALLOW, _ASK, _ASK, _DENY),
    Permission.HUMAN: (_ALLOW, _ASK, _ASK, _DENY),
    Permission.APPEND: (_ALLOW, _ALLOW, _DENY, _DENY),
    Permission.READ_WRITE: (_ALLOW, _ALLOW, _ALLOW, _DENY),
    Permission.ADMIN: (_ALLOW, _ALLOW, _ALLOW, _ALLOW),
}
_OPERATIONS = tuple(Operation)
_WHO = {Permission.PARTNER: "your partner", Permission.HUMAN: "a person"}


def verdict(permission: Permission, operation: Operation) -> Verdict:
    """What `permission` says to `operation` by an agent."""
    return _TABLE[permission][_OPERATIONS.index(operation)]


def require(permission: Permission, operation: Operation, label: str) -> None:
    """Let an agent's operation on the block `label` pass, or refuse it.

    Raises:
        PermissionDenied: the permission forbids it, or a person would have to consent; the message names who
            (`details["consent"]`), or what is allowed instead.
    """
    answer = verdict(permission, operation)
    if answer is Verdict.ALLOW:
        return
    if answer is Verdict.CONSENT:
        raise PermissionDenied(
            f"to {operation} in the block {label} needs the consent of {_WHO[permission]}; ask for it in your answer",
            consent=permission.value,
            operation=operation.value,
        )
    allowed = [other.value for other in Operation if verdict(permission, other) is Verdict.ALLOW]
    raise PermissionDenied(
        f"the block {label} is {permission.value}: you may {' and '.join(allowed)}, not {operation}",
        permission=permission.value,
        operation=operation.value,
    )
