from __future__ import annotations

from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.search.documents import rank
from pattern_core.search.plan import plan
from pattern_core.search.request import check
from pattern_db.enums import SearchKind
from tests.pattern_core.search.rig import DIMENSION, Past, asked, past

KIND = SearchKind.ARCHIVAL


def ranking(rig: Past, query: str, meant: str | None = None) -> list[str]:
    request = asked(query, kinds=[KIND])
    vector = None if meant is None else hashed_words(meant, DIMENSION)
    found, _ = rank(rig.connection, plan(rig.connection, request, check(request), vector), KIND)
    return [one.row.id for one in found]


def test_words_and_meaning_count_half_each() -> None:
    rig = past()
    rig.store("both", "lift of a wing")
    rig.store("words", "lift of a wing")
    rig.store("meaning", "aerofoil")
    rig.store("neither", "cooking")
    for ref, text in (("both", "wing lift"), ("words", "x"), ("meaning", "wing lift"), ("neither", "y z")):
        rig.embed(KIND, ref, text)
    found = ranking(rig, "wing lift", "wing lift")
    assert found[0] == "both"
    assert set(found[1:3]) == {"words", "meaning"}
    assert sorted(ranking(rig, "wing lift")) == ["both", "words"]


def test_the_chunks_of_an_entry_are_one_hit() -> None:
    rig = past()
    rig.store("long", "the first part, on cooking")
    rig.store("long.1", "the second part, on wings and wings", parent="long")
    rig.store("other", "wings")
    assert sorted(ranking(rig, "wings")) == ["long", "other"]


def test_terms_that_the_index_does_not_know_count_too() -> None:
    rig = past()
    rig.store("plus", "a book on C++")
    rig.store("letter", "a book on C")
    rig.store("cat", "关于猫的书")
    assert ranking(rig, "book C++")[0] == "plus"
    assert ranking(rig, "C++") == ["plus"]
    assert ranking(rig, "猫") == ["cat"]
