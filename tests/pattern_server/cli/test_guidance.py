"""`pattern guidance validate`: P44 to P46 of Delia's analysis, on files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pattern_server.cli import run
from tests.pattern_core.test_playbooks import GOLDEN, SEEDS, of


def folder(tmp_path: Path, **playbooks: str) -> Path:
    made = tmp_path / ".delia"
    for name, content in {
        "profiles/core.md": "# Core\n",
        "memories/plan.md": "# Plan\n",
        **{f"playbooks/{name}.json": text for name, text in playbooks.items()},
    }.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(content)
    return made


def checked(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str]]:
    code = run(["guidance", "validate", *map(str, arguments)])
    return code, capsys.readouterr().out.splitlines()


def test_p44_p45_sound_folders_pass_and_strict_refuses_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(tmp_path, coding=GOLDEN)
    for place in (tmp_path, made):
        code, lines = checked(capsys, place, "--strict")
        assert (code, lines[-1]) == (0, "Validation passed: 1 bullets valid")
    folder(tmp_path, coding=of({**SEEDS, "content": "x" * 4}, {**SEEDS, "id": "b", "content": "y" * 501}))
    code, lines = checked(capsys, tmp_path)
    assert (code, lines[-1]) == (0, "Validation passed with 2 warnings")
    assert checked(capsys, tmp_path, "--strict")[0] == 3
    found = json.loads("\n".join(checked(capsys, tmp_path, "--json")[1]))
    assert (found["bullets"], len(found["warnings"]), found["fixed"]) == (2, 2, [])
    code = run(["guidance", "validate", str(tmp_path / ".delia" / "memories")])
    assert (code, "No .delia directory found" in capsys.readouterr().err) == (1, True)


def test_p46_a_fix_backs_up_first_and_changes_only_what_it_understands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = of({"id": "x"}, {"content": "Use pathlib.Path", "use_count": 4}, version=1)
    made = folder(tmp_path, coding=old, git=of(SEEDS, version=9), broken="[{", testing=GOLDEN)
    outside = tmp_path / "outside.json"
    outside.write_text(of(SEEDS, version=1))
    (made / "playbooks/api.json").symlink_to(outside)
    before = {path.name: path.read_bytes() for path in (made / "playbooks").iterdir()}
    code, lines = checked(capsys, tmp_path, "--fix")
    assert code == 1 and "Error: coding.json[0]: content: field required" in lines
    after = {path.name: path.read_bytes() for path in (made / "playbooks").iterdir()}
    [backup] = {*after} - {*before}
    assert backup.startswith("coding.json.bak-2") and after[backup] == before["coding.json"] == old.encode()
    assert {name for name, data in before.items() if after[name] != data} == {"coding.json"}
    bullets = json.loads(after["coding.json"])["bullets"]
    assert bullets[0] == {"id": "x"} and (bullets[1]["helpful_count"], len(bullets)) == (4, 2)
    assert checked(capsys, tmp_path, "--fix")[0] == 1
    assert {path.name: path.read_bytes() for path in (made / "playbooks").iterdir()} == after
    assert outside.read_text() == of(SEEDS, version=1)  # a link that leads out is not followed
