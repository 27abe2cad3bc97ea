"""Webhooks as rows, and the cursor that follows the events for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_db.connection import Connection
from pattern_db.errors import RowConflict, RowNotFound, translated
from pattern_db.tables import outbox, webhooks
from pattern_db.tables.outbox import OutboxRow
from pattern_db.tables.webhooks import WebhookRow
from tests.pattern_db.conftest import NOW

PAGER = WebhookRow("hook_1", "pager", "https://example.org/", ["turn.failed", "approval.*"], "key", 7, NOW)


def test_the_cursor_only_rises(db: Connection) -> None:
    webhooks.create(db, PAGER)
    webhooks.create(db, late := replace(PAGER, id="hook_2", name="late", after=9))
    with pytest.raises(RowConflict), translated():
        webhooks.create(db, replace(PAGER, id="hook_3"))
    webhooks.pass_on(db, 8)
    assert webhooks.list_all(db) == [late, replace(PAGER, after=8)]
    assert webhooks.find(db, "pager") == webhooks.find(db, "hook_1")


def test_what_waits_for_a_webhook_goes_with_it(db: Connection) -> None:
    webhooks.create(db, PAGER)
    for number, target in enumerate(["webhook:hook_1", "webhook:hook_10", "agent:agt_ada"]):
        outbox.add(db, OutboxRow(id=str(number), target=target, payload="{}", next_at=NOW, created_at=NOW))
    webhooks.delete(db, "hook_1")
    assert sorted(row.id for row in outbox.newest(db, "*", 9)) == ["1", "2"]
    with pytest.raises(RowNotFound, match="webhook 'hook_1'"):
        webhooks.delete(db, "hook_1")
    outbox.pause_all(db, "a copy")
    assert {(row.status, row.last_error) for row in outbox.newest(db, "*", 9)} == {("dead", "a copy")}
