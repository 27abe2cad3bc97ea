"""Mutants: what is changed, which ones are drawn, and which tests they must pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutate import LAST, Mutant, mutants, nearest_tests, report, sample
from tests.sources import ROOT, Source, read


def source_of(text: str, folder: Path) -> Source:
    path = folder / "pattern_core" / "room" / "one.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return read(folder, ["pattern_core"])[0]


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("x = a < b", ["x = a <= b"]),
        ("x = a and 'ä' and b", ["x = a or 'ä' or b"]),
        ("x = a + b", ["x = a - b"]),
        ("x = 3", ["x = 4", "x = 2"]),
        ("x = True", ["x = False"]),
        ("x = f'{a + b}'", []),
        ("def f(a: Literal[3] = b) -> Literal[4]: ...", []),
        ("@dataclass(frozen=True)\nclass A:\n    b: Literal[3] = c", []),
        ("if TYPE_CHECKING: a = 3", []),
        ("if a: b.c = d", ["if not a: b.c = d", "if a: pass"]),
        ("x = (a if b\n     else c)", ["x = (a if not b\n     else c)"]),
        ("await f(a)", ["pass"]),
        ("_log.info(a)", []),
        ("def f(): return a", ["def f(): return None"]),
        ("try: a\nexcept E: b", ["try: a\nexcept Exception: b"]),
        ("raise E", ["pass"]),
    ],
)
def test_what_is_changed(text: str, changed: list[str], tmp_path: Path) -> None:
    assert [mutant.text for mutant in mutants(source_of(text, tmp_path))] == changed


def test_a_mutant_says_where_it_is(tmp_path: Path) -> None:
    (mutant,) = mutants(source_of("a = b\nc = d or e\n", tmp_path))
    assert (mutant.operator, mutant.source.at(mutant.old)) == ("operator", "pattern_core/room/one.py:2")
    assert mutant.diff.endswith(" a = b\n-c = d or e\n+c = d and e")


def test_a_seed_draws_the_same_again_and_nothing_twice(tmp_path: Path) -> None:
    source = source_of("x = 1 + 2 < 3 or y\n" * 5, tmp_path)
    drawn, again, others = ([one.text for one in sample([source], 10, seed)] for seed in (1, 1, 2))
    assert drawn == again != others
    assert len({(one.old.lineno, one.text) for one in sample([source], 1_000, 1)}) == len(mutants(source)) == 45


def test_the_nearest_tests_run_first() -> None:
    store = next(source for source in read(ROOT, ["pattern_core/memory"]) if source.name.endswith(".store"))
    chosen = nearest_tests(store)
    assert chosen[0] == "tests/pattern_core/memory/test_store.py"
    assert chosen[-1] == LAST
    assert {path.split("/")[2] for path in chosen[:10]} == {"memory"}
    assert len(chosen) == len(set(chosen))


def test_survivors_are_reported_with_their_change(tmp_path: Path) -> None:
    one, other = mutants(source_of("x = 3\n", tmp_path))
    ended: list[tuple[Mutant, str]] = [(one, "detected"), (other, "survived")]
    output = report(ended)
    assert output.count("pattern_core/room/one.py:1 survived: constant") == 1
    assert "-x = 3\n+x = 2\n" in output
    assert "+x = 4" not in output
    assert ["total", "2", "1", "0", "1", "0"] in [line.split() for line in output.splitlines()]
