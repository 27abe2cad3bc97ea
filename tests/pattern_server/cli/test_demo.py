"""`pattern demo`: it runs, and it fails loudly when a promise does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from pattern_server.cli import demo, run


@pytest.mark.slow
def test_the_tour_runs_and_leaves_its_files_where_it_was_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--data-dir", str(tmp_path / "tour")]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "All of it held" in shown
    assert "Lisbon" in shown
    assert [f"\n{number}. " in shown for number in range(1, 12)] == [True] * 10 + [False]
    assert (tmp_path / "tour" / "home.db").exists()
    assert run(["demo", "--data-dir", str(tmp_path / "tour")]) == 1
    assert "not empty" in capsys.readouterr().err


@pytest.mark.slow
def test_a_promise_that_does_not_hold_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATTERN_EMBEDDINGS__PROVIDER", "none")  # the tour ends before it would find anything
    monkeypatch.setattr(demo, "ASKED", (("What do you know about Ruth?", ("Timbuktu",)),))
    assert run(["demo"]) == 1
    shown = capsys.readouterr()
    assert "Timbuktu" in shown.err
    assert "All of it held" not in shown.out
