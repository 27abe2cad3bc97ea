"""What is written: tables that fit, times and plots for people, everything for pipes, errors in two lines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from rich.cells import cell_len

from pattern_server.cli.output import Output, ago, bar, fitted, sentences, spark
from tests.pattern_server.cli.conftest import on_terminal

AGENT, USER = "agent_01kdvdnbyg1sxdjpxfs3sa9mkv", "user_01kdvdnbyg1sxdjpxfs3sa9mkv"
TURN = "turn_01kdvdncxrhd99fdtgj8yepfzx"
COLUMNS = ("id", "status?", "who=author", "seen=seen_at?", "text*")
SEEN = "2020-01-31T12:00:00.000Z"
ROWS: list[dict[str, str | None]] = [
    {"id": TURN, "status": "done", "author": f"agent:{AGENT}", "seen_at": SEEN, "text": "a " * 80},
    {"id": TURN[:-1] + "y", "status": "failed", "author": f"user:{USER}", "seen_at": None, "text": "漢字" * 40},
]  # fmt: skip


def table(output: Output | None = None) -> None:
    output = output or Output()
    output.names = {AGENT: "ada", USER: "max"}
    output.table(COLUMNS, ROWS, empty="none")


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_table_fits_and_its_ids_are_whole(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_terminal(monkeypatch, columns)
    table()
    assert [click.unstyle(line) != line for line in screen.getvalue().splitlines()[:3]] == [True, False, False]
    lines = click.unstyle(screen.getvalue()).splitlines()
    assert all(cell_len(line) <= columns for line in lines)
    assert [line.split()[0] for line in lines if line.startswith("turn")] == [row["id"] for row in ROWS]
    assert ("status" in lines[0]) == (columns > 60)
    whole = "".join(line.split("  ")[-1].strip() for line in lines)
    assert whole.count("漢字") == 40 or columns < 200
    assert "ada" in screen.getvalue() and "max" in screen.getvalue() and AGENT not in screen.getvalue()
    assert columns < 120 or "31 Jan 2020" in screen.getvalue()


def test_a_pipe_gets_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    table()
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "status", "who", "seen", "text"]
    assert first.endswith(f"{SEEN}  " + ("a " * 80).strip()) and second.endswith("漢字" * 40)


def test_the_widest_column_shrinks_first_and_the_last_optional_one_goes() -> None:
    parts = [("id", "id", ""), ("a", "a", "?"), ("b", "b", "?"), ("text", "text", "")]
    assert fitted([30, 10, 10, 50], parts, 200) == {0: 30, 1: 10, 2: 10, 3: 50}
    assert fitted([30, 10, 10, 50], parts, 80) == {0: 30, 1: 10, 2: 10, 3: 24}
    assert fitted([30, 10, 10, 50], parts, 70) == {0: 30, 1: 10, 2: 10, 3: 14}
    assert fitted([30, 10, 10, 50], parts, 69) == {0: 30, 1: 10, 3: 25}
    assert fitted([30, 10, 10, 50], parts, 41) == {0: 30, 3: 9}
    assert fitted([30, 10, 10, 50], parts, 10) == {0: 30, 3: 8}
    assert fitted([40, 30], [("a", "a", ""), ("b", "b", "")], 52) == {0: 25, 1: 25}


NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (timedelta(seconds=-20), "now"),
        (timedelta(minutes=-3), "3 min ago"),
        (timedelta(minutes=30), "in 30 min"),
        (timedelta(hours=-2), "today 10:00"),
        (timedelta(hours=-22), "yesterday 14:00"),
        (timedelta(hours=24), "tomorrow 12:00"),
        (timedelta(days=-40), "15 Oct 12:00"),
        (timedelta(days=-400), "20 Oct 2025"),
    ],
)
def test_times_are_relative(then: timedelta, words: str) -> None:
    assert ago(NOW + then, NOW) == words


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        ("there is no agent 'x'; the agents are ada, bob", ["There is no agent 'x'", "The agents are ada, bob"]),
        ("It is taken. Choose another name. Or none", ["It is taken", "Choose another name. Or none"]),
        ("line 1 is bad; line 2 is bad; line 3 is bad", ["Line 1 is bad; line 2 is bad; line 3 is bad"]),
        ("data/x.toml is not valid.", ["data/x.toml is not valid"]),
        ("", [""]),
    ],
)
def test_an_error_is_what_is_wrong_and_what_to_do(
    message: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentences(message) == lines
    Output().error(message)
    assert capsys.readouterr().err == "Error: " + "\n".join(lines) + "\n"


def test_an_id_that_contains_another_is_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.names = {AGENT: "ada"}
    output.error(f"there is no budget turn.total.{AGENT} of agent:{AGENT}")
    assert capsys.readouterr().err == f"Error: There is no budget turn.total.{AGENT} of ada\n"


def test_plots_are_seen_from_the_smallest_value() -> None:
    assert [bar(0), bar(0.001), bar(0.5, 4), bar(1, 4)] == ["", "▏", "██", "████"]
    assert spark([0, 1, 4, 8]) == " ▂▅█" and spark([]) == "" and spark([0]) == " "


def test_no_color(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from pattern_server.cli import run

    screen = on_terminal(monkeypatch, 80)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["constellation", "list", "--data-dir", str(tmp_path / "none")]) == 1
    assert "Error:" in screen.getvalue() and "\x1b" not in screen.getvalue()
