"""The table, compared cell by cell with the one in the memory design."""

from __future__ import annotations

import pytest

from pattern_core.errors import PermissionDenied
from pattern_core.memory.permission import Operation, Verdict, require, verdict
from pattern_db.enums import Permission

ALLOWED = {
    Operation.READ: set(Permission),
    Operation.APPEND: {Permission.APPEND, Permission.READ_WRITE, Permission.ADMIN},
    Operation.OVERWRITE: {Permission.READ_WRITE, Permission.ADMIN},
    Operation.DELETE: {Permission.ADMIN},
}
WITH_CONSENT = {
    Operation.READ: set[Permission](),
    Operation.APPEND: {Permission.PARTNER, Permission.HUMAN},
    Operation.OVERWRITE: {Permission.PARTNER, Permission.HUMAN},
    Operation.DELETE: set[Permission](),
}


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("permission", Permission)
def test_every_cell(permission: Permission, operation: Operation) -> None:
    expected = Verdict.DENY
    if permission in ALLOWED[operation]:
        expected = Verdict.ALLOW
    elif permission in WITH_CONSENT[operation]:
        expected = Verdict.CONSENT
    assert verdict(permission, operation) is expected


def test_require_passes_what_is_allowed() -> None:
    require(Permission.APPEND, Operation.APPEND, "notes")


def test_a_refusal_says_what_is_allowed() -> None:
    with pytest.raises(PermissionDenied, match="the block notes is append: you may read and append, not overwrite"):
        require(Permission.APPEND, Operation.OVERWRITE, "notes")


@pytest.mark.parametrize(("permission", "who"), [(Permission.PARTNER, "your partner"), (Permission.HUMAN, "a person")])
def test_consent_names_who_must_give_it(permission: Permission, who: str) -> None:
    with pytest.raises(PermissionDenied, match=f"needs the consent of {who}") as caught:
        require(permission, Operation.APPEND, "notes")
    assert caught.value.details["consent"] == permission.value
