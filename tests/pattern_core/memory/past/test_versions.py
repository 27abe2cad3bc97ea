from __future__ import annotations

import pytest

from pattern_core.memory.delta import applied
from pattern_core.memory.document import (
    Change,
    Count,
    Document,
    DocumentDamaged,
    HistoryDamaged,
    Splice,
    Spliced,
    state_of,
)
from pattern_core.memory.past.versions import apply_change, change_by, change_to, document_of, write_state

STATE = {"content": "some text\n", "items": [1, True, "x"], "fields": {"a": {"b": [1]}}, "counter_n": 3}


def test_a_document_of_a_state_holds_it() -> None:
    assert state_of(document_of(STATE)) == STATE
    assert state_of(document_of({})) == {}


def test_write_state_leaves_nothing_else() -> None:
    document = document_of(STATE)
    write_state(document, {"content": "other"})
    document.commit("user:1", {}, now_ms=0)
    assert state_of(document) == {"content": "other"}


def test_true_is_not_one() -> None:
    change = change_to({"items": [1]}, {"items": [True]})
    assert change == {"items": Spliced(False, (Splice(0, (1,), (True,)),))}
    assert state_of(document_of({"fields": {"a": True}})) != {"fields": {"a": 2}}
    assert change_to({"fields": {"a": 1}}, {"fields": {"a": True}})


def test_a_change_makes_of_a_document_what_it_makes_of_its_state() -> None:
    document = document_of({"content": "abc"})
    change: Change = {"content": Spliced(True, (Splice(1, "b", "B🌍"),)), "counter_n": Count(2.0)}
    assert applied({"content": "abc"}, change) == {"content": "aB🌍c", "counter_n": 2}
    apply_change(document, change)
    document.commit("user:1", {}, now_ms=0)
    assert state_of(document) == {"content": "aB🌍c", "counter_n": 2}


def test_a_change_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DocumentDamaged):
        apply_change(document_of({"content": "a"}), {"content": Spliced(True, (Splice(5, "b", ""),))})
    with pytest.raises(HistoryDamaged):
        applied({"content": "a"}, {"content": Spliced(True, (Splice(5, "b", ""),))})


def test_what_somebody_writes_is_a_change() -> None:
    def write(document: Document) -> None:
        document.splice(1, 1, "")
        document.append("d")

    assert change_by({"content": "abc"}, write) == {"content": Spliced(True, (Splice(1, "b", ""), Splice(1, "", "d")))}
