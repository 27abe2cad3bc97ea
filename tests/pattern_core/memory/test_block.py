from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.limits import Limits
from pattern_core.memory.block import (
    DESCRIPTION_CHARS_MAX,
    Operation,
    agent_author,
    check_description,
    check_label,
    check_limit,
    check_metadata,
    is_agent,
    require,
    schema_of,
    short_name,
    shown_schema,
    with_schema,
)
from pattern_core.memory.schema import ListSchema, SchemaKind, TextSchema
from pattern_db.enums import Permission


@pytest.mark.parametrize(
    "label", ["x", "human", "process:1f", "to do", "übersicht", "日記", "a.b@c#d+e-f_g", "x" * 128]
)
def test_labels(label: str) -> None:
    assert check_label(label) == label


@pytest.mark.parametrize(
    "label", ["", " ", " x", "x ", "a/b", "a\\b", "<b>", 'a"b', "a\nb", "a\x00", "x" * 129, "\ud800"]
)
def test_labels_that_cannot_be(label: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be a label"):
        check_label(label)


def test_descriptions_at_the_bound_and_past_it() -> None:
    assert check_description("x" * DESCRIPTION_CHARS_MAX)
    for description in ("x" * (DESCRIPTION_CHARS_MAX + 1), "\ud800"):
        with pytest.raises(InvalidInput):
            check_description(description)


def test_limits() -> None:
    limits = Limits(block_chars_default=50, block_chars_max=100)
    assert [check_limit(limit, limits) for limit in (0, 1, 100)] == [50, 1, 100]
    for limit in (-1, 101):
        with pytest.raises(InvalidInput, match="between 1 and 100"):
            check_limit(limit, limits)


def test_metadata() -> None:
    assert check_metadata(None) == TextSchema()
    assert check_metadata({"schema": "Text", "colour": "red"}) == TextSchema()
    assert check_metadata({"schema": "List"}) == ListSchema()
    for metadata, words in (
        ({"x": object()}, "not JSON"),
        ({"x": float("nan")}, "not JSON"),
        ({"x": "\ud800"}, "surrogate"),
        ({"x": "y" * 10_000}, "at most 10000"),
        ({"schema": "Table"}, "there are: Text, Map, List, Log, Composite"),
    ):
        with pytest.raises(InvalidInput, match=words):
            check_metadata(metadata)


def test_the_schema_that_metadata_holds() -> None:
    stored = with_schema({"colour": "red"}, ListSchema())
    assert stored == {"colour": "red", "schema": {"List": {}}}
    assert schema_of(stored) == shown_schema(stored) == ListSchema()
    assert schema_of(stored).kind is SchemaKind.LIST
    assert shown_schema({"schema": "Table"}) == schema_of(None) == TextSchema()


def test_agents_are_told_from_people_and_the_system() -> None:
    assert agent_author("agt_1") == "agent:agt_1"
    assert [is_agent(author) for author in ("agent:agt_1", "user:usr_1", "system")] == [True, False, False]
    assert [short_name(author) for author in ("agent:agt_1", "user:usr_1", "system")] == [
        "agt_1",
        "user:usr_1",
        "system",
    ]


# The table of permissions, compared cell by cell with the one in the memory design.

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
    if permission in ALLOWED[operation]:
        require(permission, operation, "notes")
        return
    with pytest.raises(PermissionDenied) as refused:
        require(permission, operation, "notes")
    assert ("consent" in refused.value.details) == (permission in WITH_CONSENT[operation])


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
