"""Imports on the command line: issues of old archives, files of resolutions, and exit codes."""

from __future__ import annotations

import json
import re
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

from pattern_db.connection import open_connection
from pattern_db.program_files import read, write
from tests.faults.operations import stored
from tests.pattern_core.conversation.test_exports import chatgpt, claude, node
from tests.pattern_core.legacy.theirs import Theirs, old_agent, old_export, old_memory
from tests.pattern_core.test_chat_files import repaired, tables
from tests.pattern_core.test_delta_files import GOLDEN
from tests.pattern_server.cli.conftest import Pattern

NOW = "2026-02-03T04:05:06.007Z"


def old_archive(folder: Path) -> str:
    """An archive of version 2 in which the persona of Ada is Ben's."""
    theirs = Theirs()
    known = [old_memory("agent_a", "m1", "persona", "I am Ben.")]
    pairs = [
        ["agent_a", old_export(theirs, old_agent("agent_a", "Ada"), [], known)],
        ["agent_b", old_export(theirs, old_agent("agent_b", "Ben"), [], [])],
    ]
    data = {"constellation": {"name": "house"}, "groups": [], "agent_export_cids": pairs, "agent_memberships": []}
    return str(theirs.write(folder / "old.car", theirs.manifest("Constellation", theirs.node(data), 2)))


def test_issues_are_listed_then_resolved_by_a_file(pattern: Pattern, tmp_path: Path) -> None:
    archive = old_archive(tmp_path)
    listed = pattern("import", "--from", archive, "--dry-run", "--json")
    assert listed.code == 3, listed.err
    (issue,) = listed.json["report"]["audit_log"]["decisions"]
    assert (issue["kind"], issue["decision"], issue["severity"]) == ("CrossContamination", "undecided", "critical")
    left = pattern("import", "--from", archive, "--as", "first")
    assert left.code == 3
    assert f"CrossContamination {issue['name']}: undecided (critical: the persona of Ada names Ben" in left.out
    assert pattern("memory", "show", "persona", "-c", "first", "-a", "Ada").out.strip() == "I am Ben."

    decisions = tmp_path / "decisions.json"
    chosen = {"issue_id": issue["name"], "action": "assign_to", "target_agent": "Ben"}
    decisions.write_text(json.dumps({"resolutions": [chosen]}))
    done = pattern("import", "--from", archive, "--as", "second", "--resolutions", str(decisions))
    assert (done.code, done.err) == (0, "")
    assert pattern("memory", "show", "persona", "-c", "second", "-a", "Ben").out.strip() == "I am Ben."
    logged = pattern("import", "log", "-c", "second", "--json").json
    assert [(one["source_version"], one["issues_found"], one["issues_resolved"]) for one in logged] == [(2, 1, 1)]
    assert logged[0]["audit_log"]["decisions"][0]["decided_by"] == "resolution"


def test_resolutions_that_fit_nothing_are_refused(pattern: Pattern, tmp_path: Path) -> None:
    archive = old_archive(tmp_path)
    for given, words in (
        ('[{"issue_id": "x", "action": "skip"}]', "no issue"),
        ('[{"issue_id": "x", "action": "dance"}]', "action"),
        ("[", "not valid JSON"),
    ):
        refused = pattern("import", "--from", archive, "--as", "house", "--resolutions", given)
        assert refused.code == 2
        assert words in refused.err
    assert pattern("constellation", "list", "--json").json == []


def test_delta_goes_in_and_out_as_files(pattern: Pattern, tmp_path: Path) -> None:
    pattern("constellation", "create", "home")
    folders = [tmp_path / name for name in ("srv_shop-main", "srv_shop-no-git", ".._.git", "other")]
    for folder in folders:
        folder.mkdir()
        write(folder / "delta.db", "v1", GOLDEN)
    (folders[3] / "delta.db").write_bytes(b"no database" * 100)
    before = (folders[0] / "delta.db").read_bytes()
    dry = pattern("import", "delta", str(folders[0]), "--dry-run", "-c", "home")
    assert dry.code == 0 and "Would import" in dry.out, dry.err
    assert pattern("workspace", "list", "-c", "home", "--json").json == []
    done = pattern("import", "delta", str(folders[0]), str(folders[1] / "delta.db"), "-c", "home", "--json")
    assert done.code == 0, done.err
    assert [sum(one["added"].values()) for one in done.json] == [7, 6], "the value is the same in both"
    [workspace] = pattern("workspace", "list", "-c", "home", "--json").json
    assert workspace["name"] == "srv_shop"
    assert [one["alias"] for one in workspace["aliases"]] == ["srv_shop-main", "srv_shop-no-git"]
    again = pattern("import", "delta", str(folders[0]), "-c", "home")
    assert (again.code, "added: 0, updated: 0, present: 7." in again.out) == (0, True)
    assert (folders[0] / "delta.db").read_bytes() == before
    mixed = pattern("import", "delta", str(folders[2]), "-c", "home")
    assert mixed.code == 2 and "Name a workspace" in mixed.err
    assert pattern("import", "delta", str(folders[3]), "-c", "home").code == 1

    out = tmp_path / "out.db"
    written = pattern("export", "delta", "--workspace", "srv_shop", "-o", str(out), "-c", "home")
    assert written.code == 0, written.err
    assert {table: len(rows) for table, rows in read(out).tables.items()} == {
        "kv": 1,
        "episodes": 4,
        "tasks": 4,
        "project_notes": 4,
    }
    assert pattern("export", "delta", "--workspace", "srv_shop", "-o", str(out), "-c", "home").code == 1
    newer = pattern("export", "delta", "--workspace", "srv_shop", "--format", "v4", "-o", f"{out}4", "-c", "home")
    assert newer.code == 3 and "Left out: 4." in newer.err
    assert read(Path(f"{out}4")).version == "v4"
    assert pattern("export", "delta", "-o", f"{out}5", "-c", "home").code == 2


def test_codepilot_goes_in_and_out_as_files(pattern: Pattern, tmp_path: Path) -> None:
    pattern("constellation", "create", "home")
    pattern("agent", "create", "ada", "-c", "home")
    source, out = tmp_path / "codepilot.db", tmp_path / "out.db"
    write(source, "codepilot", tables())
    before = source.read_bytes()
    plans = tmp_path / "plans"
    plans.mkdir()
    # The original's plan file, whose digest is known.
    lines = ["---", "id: plan_mitp2o00_abc123", 'title: "Add login"', "type: implementation"]
    lines += [f"{name}: 2025-12-06T10:00:00.000Z" for name in ("createdAt", "updatedAt")]
    lines += ["sessionId: null", "tags: a, b", "---", "", "# Plan", "", "1. Do it"]
    (plans / "add-login.md").write_text("\n".join(lines))
    digest = "c2cbe58a491ff416eee3f3d52a5440b1c551bb02dda99d3d137987b9ef789d2c"
    assert sha256((plans / "add-login.md").read_bytes()).hexdigest() == digest
    done = pattern("import", "codepilot", str(source), "--plans", str(plans), "-c", "home", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["added"] == {"sessions": 3, "messages": 6, "plans": 1}
    again = pattern("import", "codepilot", str(source), "--plans", str(plans), "-c", "home", "--json")
    assert (again.code, again.json["added"]) == (0, {})
    assert again.json["present"] == done.json["added"]
    assert (source.read_bytes(), [one.name for one in plans.iterdir()]) == (before, ["add-login.md"])
    written = pattern("export", "codepilot", "-o", str(out), "--plans", str(tmp_path / "new"), "-c", "home")
    assert (written.code, "plans: 1" in written.out) == (0, True), written.err
    assert read(out).tables == repaired()
    assert (tmp_path / "new" / "add-login.md").read_bytes() == (plans / "add-login.md").read_bytes()
    (plans / "add-login.md").write_text("other")
    (plans / "..md").write_text("hidden")
    changed = pattern("import", "codepilot", str(source), "--plans", str(plans), "-c", "home")
    assert changed.code == 3 and "add-login.md is another one here" in changed.out and "plans: " in changed.out
    other = tmp_path / "delta.db"
    write(other, "v1", GOLDEN)
    assert pattern("import", "codepilot", str(other), "-c", "home").code == 2
    assert pattern("import", "delta", str(source), "--workspace", "shop", "-c", "home").code == 2


def test_a_constellation_becomes_a_folder_for_people(home: Pattern, data_dir: Path, tmp_path: Path) -> None:
    home("agent", "create", "Ada", "-c", "home", "--provider", "embedded", "--description", "The other one")
    home("group", "create", "desk", "-c", "home", "--pattern", "round_robin", "--members", "ada,Ada")
    home("memory", "append", "human", "Ruth lives in Lisbon.\n# Not a heading", "-c", "home", "-a", "ada")
    home("chat", "Hello", "-c", "home", "-a", "ada")
    session = home("session", "create", "../A trip to Rome?", "-c", "home", "-a", "ada", "--json").json
    home("chat", "To Rome!", "-c", "home", "-a", "ada", "--session", session["id"])
    home("archive", "add", "The boat is blue.", "-c", "home", "-a", "ada")
    home("task", "add", "Water the beds", "-c", "home", "-a", "ada")
    home("folder", "create", "notes", "-c", "home")
    plans = tmp_path / "plans"
    plans.mkdir()
    for name in ("a b.md", "a-b.md"):
        (plans / name).write_text(name)
    home("folder", "add", "notes", str(plans), "-c", "home")
    [database] = data_dir.glob("constellations/*/pattern.db")
    with closing(open_connection(database)) as connection:
        parts = json.dumps([{"type": "image", "digest": two * 32, "media_type": "image/png"} for two in ("ab", "cd")])
        png = (bytes([0xAB] * 32), b"\x89PNG\r\n\x1a\n", NOW)
        connection.execute("INSERT INTO blob VALUES (?1, 'raw', length(?2), ?2, ?3)", png)
        connection.execute("UPDATE messages SET parts = ? WHERE content = 'To Rome!'", (parts,))
    book = tmp_path / "book"
    done = home("export", "markdown", "-c", "home", "-o", str(book), "--json")
    missing = f"images/{'cd' * 32}.png: "
    assert (done.code, done.err, done.json["file"]) == (3, "", str(book))
    assert [line.startswith(missing) for line in done.json["skipped"]] == [True]
    found = {str(path.relative_to(book)) for path in book.rglob("*") if path.is_file()}
    [month] = [path for path in found if "Main" in path]
    assert found == {
        *("README.md", "calendar.ics", "groups/desk.md", "agents/Ada.md", "agents/ada-2.md", month),
        *("agents/ada-2/A-trip-to-Rome-.md", f"images/{'ab' * 32}.png"),
        *("files/notes/a-b.md", "files/notes/a-b-2.md"),
    }
    for page in book.rglob("*.md"):
        if "files" not in page.parts:
            for link in re.findall(r"\]\(([^)]*)\)", page.read_text()):
                assert (page.parent / unquote(link)).is_file(), (page, link)
    ada = (book / "agents" / "ada-2.md").read_text()
    assert ada.startswith("# ada\n")
    assert "### human\n\n> Ruth lives in Lisbon.\n> # Not a heading" in ada
    assert "> The boat is blue." in ada
    assert "**user**" in (book / month).read_text() and "> Hello" in (book / month).read_text()
    assert "![an image](../../images/" in (book / "agents/ada-2/A-trip-to-Rome-.md").read_text()
    assert "- Water the beds (pending)" in (book / "README.md").read_text()
    again = home("export", "markdown", "-c", "home", "-o", str(book), "--overwrite")
    assert again.code != 0 and not [path for path in tmp_path.iterdir() if path.name.endswith(".unfinished")]


def test_formats_of_another_kind_are_refused(home: Pattern, tmp_path: Path) -> None:
    for kind, form in (("agent", "v1"), ("delta", "letta"), ("markdown", "v4")):
        refused = home("export", kind, "--name", "ada", "--format", form, "-c", "home", "-o", str(tmp_path / "no"))
        assert (refused.code, f"KIND {kind} has no --format {form}" in refused.err) == (2, True), refused.err


def test_conversations_of_chatgpt_become_sessions(home: Pattern, tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([chatgpt(node("q", "root"), node("a", "q", "assistant"), current_node="a"), claude()]))
    done = home("history", "import", str(file), "-a", "ada", "-c", "home")
    assert done.out.startswith("Imported for ada (sessions: 1, new messages: 2, there already: 0).")
    file.write_text(json.dumps([chatgpt(node("q", "root"), node("b", "q", "assistant")), {"mapping": 7}]))
    again = home("history", "import", str(file), "-a", "ada", "-c", "home", "--json")
    assert (again.code, again.json["imported"], again.json["present"]) == (3, 1, 1)
    assert again.json["left_out"] == {"conversations that cannot be read": 1}
    [session] = home("session", "list", "-a", "ada", "-c", "home", "--json").json
    assert (session["title"], session["origin"]) == ("Boats", "chatgpt")
    rows = home("history", "show", "-a", "ada", "-c", "home", "--session", session["id"], "--json").json
    assert [row["content"] for row in rows] == ["q!", "a!", "b!"]


def test_a_project_that_one_side_keeps_out_of_prompts_is_kept_out_by_both(pattern: Pattern, tmp_path: Path) -> None:
    pattern("constellation", "create", "home")
    places = {name: tmp_path / "src" / name for name in ("shop", "till", "repo")}
    for place in places.values():
        place.mkdir(parents=True)
    (places["repo"] / ".git/objects").mkdir(parents=True)
    (places["repo"] / ".git/HEAD").write_text("ref: refs/heads/main\n")
    file, settings = tmp_path / "memory/decisions.jsonl", tmp_path / "memory/settings.json"
    for name in ("shop", "till"):
        assert pattern("workspace", "add-root", name, str(places[name]), "-c", "home").code == 0

    def synchronised(place: str) -> tuple[bool, bool]:
        done = pattern("decisions", "sync", str(file), "--workspace", place, "-c", "home", "--json")
        assert done.code == 0, done.err
        return done.json["in_prompts"], pattern("workspace", "show", place, "-c", "home", "--json").json["in_prompts"]

    assert synchronised("shop") == (True, True)
    below = str(places["shop"] / "part")
    settings.write_text(json.dumps({"disabledProjects": [below], "own": 1}))
    assert synchronised("shop") == (True, True), "only the folder itself counts"
    settings.write_text(json.dumps({"disabledProjects": [below, str(places["shop"])], "own": 1}))
    assert synchronised("shop") == (False, False)
    assert synchronised("till") == (True, True)
    assert synchronised(str(places["repo"])) == (True, True)
    for name in ("till", "repo"):
        assert pattern("workspace", "prompts", name, "off", "-c", "home").code == 0
        assert synchronised(name) == (False, False)
    listed = [str(places["repo"]), str(places["shop"]), below, str(places["till"])]
    assert json.loads(settings.read_text()) == {"disabledProjects": listed, "own": 1}
    before = settings.read_bytes()
    assert synchronised("till") == (False, False) and settings.read_bytes() == before
    # Newer versions know a project by its id.
    assert pattern("workspace", "alias", "till", "lodestone", "prj_1", "-c", "home").code == 0
    assert pattern("workspace", "prompts", "till", "on", "-c", "home").code == 0
    settings.write_text(json.dumps({"disabledProjects": [], "disabledProjectIds": ["prj_1"]}))
    assert synchronised("till") == (False, False)
    settings.write_text("{}")
    assert synchronised("till") == (False, False)
    assert json.loads(settings.read_text()) == {
        "disabledProjects": [str(places["till"])],
        "disabledProjectIds": ["prj_1"],
    }


def test_case_202_a_clash_of_names_writes_nothing(home: Pattern, data_dir: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "ada.car")
    assert home("agent", "create", "ben", "-c", "home", "--provider", "embedded").code == 0
    assert home("export", "agent", "--name", "ada", "-c", "home", "-o", file).code == 0
    [database] = data_dir.glob("constellations/*/pattern.db")
    before = stored(database)
    refused = home("import", "--from", file, "-c", "home")
    assert (refused.code, "agent 'ada'" in refused.err) == (1, True)
    assert stored(database) == before
    assert home("import", "--from", file, "-c", "home", "--rename").code == 0
    assert stored(database) != before
