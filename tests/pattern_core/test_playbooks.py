"""Delia's playbooks in and out: byte by byte, each bullet once, none lost. P-numbers are of Delia's analysis."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings

from pattern_core.delia import Delia, export_folder, import_folder
from pattern_core.delta_files import FileImport
from pattern_core.errors import InvalidInput
from pattern_core.playbooks import (
    bullet_of,
    changed,
    check,
    current,
    dumped,
    made,
    opened,
    read,
    shown,
    without_secrets,
)
from pattern_core.untrusted import MASK
from pattern_db.connection import fetch_all
from pattern_db.enums import GuidanceState, GuidanceVerdict
from pattern_db.tables.guidance import GuidanceRow
from tests.pattern_core.test_delta import SECRET
from tests.pattern_db.tables.test_guidance import row
from tests.support import USER, running

PROPOSED, ACTIVE, ARCHIVED, MERGED = GuidanceState
NOW = "2026-01-31T12:00:00.000Z"
EXAMPLES = 2 * settings().max_examples  # PATTERN_TEST_EXAMPLES=1000: 2,000 files
GOLDEN = """{
  "schema_version": 2,
  "task_type": "coding",
  "updated_at": "2025-12-23T12:00:00.000000",
  "bullets": [
    {
      "content": "Use explicit timeouts \\u2192 never block the loop",
      "id": "strat-0a1b2c3d",
      "section": "general_strategies",
      "helpful_count": 3,
      "harmful_count": 1,
      "created_at": "2025-12-22T18:40:31.224016",
      "last_used": null,
      "source_task": "coding",
      "source": "learned",
      "utility_score": 0.75
    }
  ]
}"""
EMPTY = GOLDEN[: GOLDEN.index("[")] + "[]\n}"
SEEDS = {
    "id": "strat-1",
    "content": "Use pathlib.Path over os.path",
    "section": "code_standards",
    "helpful_count": 5,
    "harmful_count": 0,
    "created_at": "2025-12-22T00:00:00",
    "last_used": "2025-12-23T00:00:00",
    "source_task": "coding",
    "source": "learned",
}
PATH = "playbooks/coding.json"


def of(*bullets: Any, version: int = 2, **more: Any) -> str:
    header = {"schema_version": version, "task_type": "coding", "updated_at": "2025-12-23T12:00:00.000000", **more}
    return dumped([*bullets] if version == 1 else {**header, "bullets": [*bullets]})


class Shop(Delia):
    async def take(self, *files: str | tuple[str, str], **given: Any) -> FileImport:
        named = dict(one if isinstance(one, tuple) else (PATH, one) for one in files)
        return await import_folder(self, named, **given)

    async def give(self, path: str = PATH) -> str:
        return (await export_folder(self))[path]

    async def rows(self) -> dict[str, GuidanceRow]:
        return {
            one.content: one for one in await self.constellation.guidance.select(self.workspace, tuple(GuidanceState))
        }


@asynccontextmanager
async def shop() -> AsyncIterator[Shop]:
    async with running() as world:
        workspace = await world.constellation.workspaces.ensure("shop", author=USER)
        yield Shop(world.constellation, workspace.id, USER, "static")


def counts(done: FileImport) -> tuple[int, int, int]:
    return done.added.total(), done.updated.total(), done.present.total()


@pytest.mark.parametrize(
    ("text", "size", "digest"),
    [
        (GOLDEN, 480, "f7a520337853be60c690d0ee841ecb3a11c2258db1992ac8f44ff0483abaddc0"),
        (EMPTY, 113, "eb1c4765c15f148e6ec55e71eb92b53e4e78551423910463bda9c46705a2285e"),
    ],
)
async def test_p14_the_golden_files_come_out_as_they_went_in_and_twice_changes_nothing(
    text: str, size: int, digest: str
) -> None:
    assert (len(text), hashlib.sha256(text.encode()).hexdigest()) == (size, digest)
    assert dumped(json.loads(text)) == text
    async with shop() as here:
        many = int(text == GOLDEN)
        assert counts(await here.take(text)) == (many, 0, 0)
        for _ in range(2):
            assert await here.give() == text
            before = await here.constellation.database.read(fetch_all, "SELECT * FROM external_refs")
            assert counts(await here.take(text)) == (0, 0, many)
            assert await here.constellation.database.read(fetch_all, "SELECT * FROM external_refs") == before
        log = await here.constellation.database.read(fetch_all, "SELECT audit_log ->> '$.system' FROM migration_audit")
        assert log == [("delia",)] * many


def test_p1_to_p6_bullets_are_read() -> None:
    one = bullet_of(SEEDS, "coding")
    assert (one.helpful_count, one.harmful_count, one.section) == (5, 0, "code_standards")  # P1
    assert one.last_used == "2025-12-23T00:00:00.000Z"
    old = bullet_of({"content": "Use pathlib", "created": "2025-01-01T00:00:00", "use_count": 4}, "coding")  # P4
    assert (old.created_at, old.helpful_count, old.source) == ("2025-01-01T00:00:00.000Z", 4, "learned")
    assert old.id.startswith("strat-") and len(old.id) == 14
    assert bullet_of({**SEEDS, "utility_score": 0.99, "helpful_count": 0}, "coding").helpful_count == 0  # P5
    assert bullet_of({**SEEDS, "helpful_count": "3"}, "coding").helpful_count == 3  # P6


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"content": None}, "content: field required"),  # P10
        ({"source": "imported"}, "source: input should be 'seed', "),  # P12
        ({"helpful_count": -1}, "helpful_count: input should be greater than or equal to 0"),  # P13
        ({"harmful_count": 2**40}, "harmful_count: input should be less"),
        ({"content": 7}, "content: input should be a valid string"),
        ({"content": " \n"}, "content: string should match"),
        ({"content": "\ud800"}, "content: .*unicode"),
        ({"id": ["x"]}, "id: input should be a valid string"),
        ({"helpful_count": True}, "helpful_count: input should be a valid integer"),
    ],
)
async def test_p10_to_p13_an_invalid_bullet_is_reported_and_kept_and_the_others_are_read(
    fields: dict[str, Any], reason: str
) -> None:
    bad, other = {**SEEDS, **fields}, {"content": "Run make check", "id": "b"}
    with pytest.raises(InvalidInput, match=reason):
        bullet_of(bad, "coding")
    text = of(bad, other)
    async with shop() as here:
        done = await here.take(text)
        if "unicode" in reason:  # no database can store it
            assert (counts(done), len(done.skipped)) == ((1, 0, 0), 1)
            return
        assert (counts(done), done.skipped[0].startswith(f"{PATH}[0]: {reason}")) == ((1, 0, 0), True)
        assert await here.give() == text
        [only] = (await here.rows()).values()
        await here.constellation.guidance.rate({only.id: GuidanceVerdict.HELPFUL}, author=USER, turn="t")  # P11
        found = json.loads(await here.give())["bullets"]
        assert (found[0], found[1]["helpful_count"], len(found)) == (bad, 1, 2)


async def test_p2_p3_p8_version_1_is_read_and_version_2_is_written_in_the_same_order() -> None:
    old = {"content": "Use pathlib", "created": "2025-01-01T00:00:00", "use_count": 4, "foo": [1]}
    text = of(old, {"id": "x"}, SEEDS, version=1)
    assert (opened(text).version, opened(dumped({"bullets": [SEEDS]})).version) == (1, 1)  # P2, P8
    async with shop() as here:
        done = await here.take(text)
        assert (counts(done), done.skipped) == ((2, 0, 0), [f"{PATH}[1]: content: field required"])
        first = await here.give()
        document = json.loads(first)
        assert document["schema_version"] == 2
        assert [one.get("content") for one in document["bullets"]] == ["Use pathlib", None, SEEDS["content"]]
        assert list(document["bullets"][0]) == [*json.loads(GOLDEN)["bullets"][0], "foo"]  # P7
        assert document["bullets"][0] | {"id": ""} == {
            "content": "Use pathlib",
            "id": "",
            "section": "general_strategies",
            "helpful_count": 4,
            "harmful_count": 0,
            "created_at": "2025-01-01T00:00:00",
            "last_used": None,
            "source_task": None,
            "source": "learned",
            "utility_score": 1.0,
            "foo": [1],
        }
        assert document["bullets"][1] == {"id": "x"}
        assert counts(await here.take(text)) == (0, 0, 2)
        assert await here.give() == first


async def test_p7_p9_unknown_keys_stay_and_newer_versions_are_refused() -> None:
    text = of({**SEEDS, "foo": {"a": 1}}, version=2, extra=[1])
    async with shop() as here:
        await here.take(text)
        assert await here.give() == text
        [only] = (await here.rows()).values()
        await here.constellation.guidance.rate({only.id: GuidanceVerdict.HARMFUL}, author=USER)
        document = json.loads(await here.give())
        assert (document["extra"], document["bullets"][0]["foo"]) == ([1], {"a": 1})
        newer = of({**SEEDS, "id": "n", "content": "Of a newer program"}, version=9)
        done = await here.take(("playbooks/git.json", newer))
        assert (counts(done), "newer than 2" in done.skipped[0]) == ((0, 0, 0), True)
        assert counts(await here.take(("playbooks/git.json", newer), is_forced=True)) == (1, 0, 0)


async def test_imported_guidance_is_a_proposal_unless_it_is_trusted_and_secrets_are_left_out() -> None:
    async with shop() as here:
        done = await here.take(GOLDEN, is_dry=True)
        assert (counts(done), await here.rows()) == ((1, 0, 0), {})
        text = of({**SEEDS, "content": f"Never log password={SECRET}", "note": f"api_key={SECRET}"})
        done = await here.take(text)
        [only] = (await here.rows()).values()
        assert (only.state, only.created_at) == (PROPOSED, "2025-12-22T00:00:00.000Z")
        assert (done.skipped, MASK in only.content) == ([f"{PATH}: its secrets"], True)
        assert SECRET not in str(await here.constellation.database.read(fetch_all, "SELECT raw FROM external_refs"))
        assert SECRET not in await here.give()
        assert counts(await here.take(text)) == (0, 0, 1)
        await here.take(("playbooks/git.json", GOLDEN), is_trusted=True)
        assert [one.state for one in await here.constellation.guidance.select(here.workspace, task_types=["git"])] == [
            ACTIVE
        ]


async def test_a_change_in_the_file_is_followed_and_one_on_both_sides_is_a_conflict() -> None:
    async with shop() as here:
        await here.take(of(SEEDS, {**SEEDS, "id": "b", "content": "Run make check"}))
        newer = of(
            {**SEEDS, "helpful_count": 7, "content": "Use pathlib.Path"}, {**SEEDS, "id": "b", "content": "Run all"}
        )
        ours = (await here.rows())["Run make check"]
        await here.constellation.guidance.rate({ours.id: GuidanceVerdict.HARMFUL}, author=USER, turn="t")
        for _ in range(2):
            done = await here.take(newer)
            assert done.conflicts == [f"{PATH}[1]: {ours.id} was changed in the file, and here"]
        rows = await here.rows()
        assert (rows["Use pathlib.Path"].helpful, rows["Run make check"].harmful) == (7, 1)
        found = json.loads(await here.give())["bullets"]
        assert [(one["content"], one["harmful_count"]) for one in found] == [
            ("Use pathlib.Path", 0),
            ("Run make check", 1),
        ]
        # What an export wrote can be imported, and changes nothing.
        assert counts(await here.take(await here.give())) == (0, 0, 2)
        # What the file has lost stays here.
        done = await here.take(of({**SEEDS, "helpful_count": 7, "content": "Use pathlib.Path"}))
        assert (counts(done), len(json.loads(await here.give())["bullets"])) == ((0, 0, 1), 2)


async def test_what_is_archived_is_left_out_and_what_was_made_here_is_added() -> None:
    async with shop() as here:
        await here.take(of(SEEDS, {**SEEDS, "id": "b", "content": "Run make check"}))
        rows = await here.rows()
        await here.constellation.guidance.decide(rows["Run make check"].id, ARCHIVED, author=USER)
        await here.take(("playbooks/git.json", of({**SEEDS, "content": "Sign your commits"})), is_trusted=True)
        exported = await export_folder(here)
        assert [one["content"] for one in json.loads(exported[PATH])["bullets"]] == [SEEDS["content"]]
        # It was made here, in the eyes of a workspace that does not know the file.
        [signed] = await here.constellation.guidance.select(here.workspace, task_types=["git"])
        bullet = made(signed)
        assert list(bullet) == list(json.loads(GOLDEN)["bullets"][0])
        assert bullet_of(bullet, "git").compared == shown(signed)
        with pytest.raises(InvalidInput, match="is not the path"):
            read("playbooks/../x.json", b"")
        with pytest.raises(InvalidInput, match="not UTF-8"):
            read(PATH, b"\xff")


async def test_what_was_deleted_here_stays_away_and_a_change_of_it_in_the_file_is_a_conflict() -> None:
    other = {**SEEDS, "id": "b", "content": "Run make check"}
    async with shop() as here:
        await here.take(of(SEEDS, other))
        gone = (await here.rows())["Run make check"].id
        await here.constellation.guidance.delete(gone, author=USER)
        assert await here.give() == of(SEEDS, updated_at="2026-01-01T00:00:00.000000")
        assert counts(await here.take(of(SEEDS, other))) == (0, 0, 2)
        done = await here.take(of(SEEDS, {**other, "content": "Run all checks"}))
        assert done.conflicts == [f"{PATH}[1]: {gone} was changed in the file, and deleted here"]
        assert [*await here.rows()] == [SEEDS["content"]]


async def test_profiles_and_memories_are_files_that_come_out_as_they_went_in() -> None:
    core, plan = ("profiles/core.md", "# Core\r\nNever block.\n"), ("memories/plan.md", "# Plan\n")
    async with shop() as here:
        assert counts(await here.take(plan, core, ("memories/../x.md", "x"), is_dry=True)) == (2, 0, 0)
        assert await here.documents() == {}
        done = await here.take(plan, core, ("memories/../x.md", "x"), ("memories/.x.md", "x"))
        assert (counts(done), len(done.skipped)) == ((2, 0, 0), 2)
        assert await export_folder(here) == dict([core, plan])
        assert [*await here.documents()] == ["profiles/core.md", "memories/plan.md"]
        assert counts(await here.take(plan, core)) == (0, 0, 2)
        assert counts(await here.take((plan[0], "# Plan 2\n"))) == (0, 1, 0)
        await here.put("memories/plan.md", f"ours, password={SECRET}")
        done = await here.take((plan[0], "# Plan 3\n"))
        assert (counts(done), done.conflicts) == (
            (0, 0, 0),
            ["memories/plan.md: it was changed in the file, and here"],
        )
        folder, text = (await here.documents())["memories/plan.md"]
        assert (MASK in text, [one.name for one in await here.constellation.folders.all()]) == (True, ["shop-delia"])
        await here.constellation.folders.delete(folder)
        assert await here.documents() == {}
        await here.put("memories/plan.md", "again")
        assert [*await here.documents()] == ["memories/plan.md"]
        for path in ("memories/../../x.md", "playbooks/coding.json", "memories/x.txt"):
            with pytest.raises(InvalidInput, match="is not the path"):
                await here.put(path, "x")


def files(*playbooks: tuple[str, str], **more: bytes) -> dict[str, bytes]:
    there = {"profiles/core.md": b"# Core\n", "memories/plan.md": b"# Plan\n"}
    return {**there, **{f"playbooks/{name}.json": text.encode() for name, text in playbooks}, **more}


def test_p44_p45_a_sound_folder_passes_and_lengths_are_warned_of() -> None:
    done = check(files(("coding", GOLDEN)), NOW)
    assert (done.bullets, done.errors, done.warnings) == (1, [], [])
    assert done.files == ["playbooks/coding.json (1 bullets)", "profiles/ (1 files)", "memories/ (1 files)"]
    short, long = {**SEEDS, "content": "x" * 4}, {**SEEDS, "id": "b", "content": "y" * 501}
    done = check(files(("coding", of(short, long))), NOW)
    assert done.errors == []
    assert done.warnings == [
        "coding.json[0]: Content too short (4 chars)",
        "coding.json[1]: Content too long (501 chars)",
    ]


def test_p46_a_fix_keeps_what_it_does_not_understand_and_is_idempotent() -> None:
    old = {"content": "Use pathlib.Path", "created": "2025-01-01T00:00:00", "use_count": 4}
    before = files(("coding", of({"id": "x"}, old, version=1)), ("git", of({"content": "Sign your commits"})))
    plain = check(before, NOW)
    assert plain.errors == [
        "coding.json[0]: content: field required",
        "coding.json[1]: id: field required",
        "git.json[0]: id: field required",
    ]
    assert plain.warnings == ["Schema migration needed: 1 files at v1 (current: v2)"] and plain.fixed == {}
    done = check(before, NOW, is_fixed=True)
    assert (done.errors, done.warnings) == ([plain.errors[0], plain.errors[2]], [])
    assert [*done.fixed] == ["playbooks/coding.json"]
    bullets = json.loads(done.fixed["playbooks/coding.json"])["bullets"]
    assert bullets[0] == {"id": "x"} and bullets[1]["helpful_count"] == 4
    again = check({**before, **{path: text.encode() for path, text in done.fixed.items()}}, NOW, is_fixed=True)
    assert (again.fixed, again.errors) == ({}, done.errors)
    assert current({"id": "x"}, "coding") == {"id": "x"}


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        (b"{", ["coding.json: Invalid JSON - Expecting property name"]),
        (b"7", ["coding.json: Unknown format (expected array or object)"]),
        (b'{"bullets": 7}', ["coding.json: Unknown format"]),
        (b"\xff", ["coding.json: not UTF-8"]),
        (b"[NaN]", ["coding.json: Invalid JSON - NaN is not a JSON number"]),
        (b"[" * 9_999, ["coding.json: Invalid JSON"]),
        (of(SEEDS, version=3).encode(), ["coding.json: Schema version 3 is newer than 2"]),
        (of(SEEDS, {**SEEDS, "content": "Another one, too"}).encode(), ["coding.json[1]: id: the same as of [0]"]),
        (of(7, "x", [], None).encode(), [f"coding.json[{n}]: not an object" for n in range(4)]),
    ],
)
def test_errors_are_found_and_no_fix_changes_such_a_file(text: bytes, errors: list[str]) -> None:
    done = check({**files(), PATH: text}, NOW, is_fixed=True)
    assert len(done.errors) == len(errors)
    assert all(one.startswith(begin) for one, begin in zip(done.errors, errors, strict=True)), done.errors
    assert done.fixed == {}


def test_warnings_name_what_is_odd() -> None:
    texts = ["Be careful", "Use tabs in Makefiles", "USE tabs  in makefiles", "Never use tabs in Makefiles", "z" * 200]
    odd = {"created_at": "soon", "utility_score": 2}
    bullets = [{**SEEDS, "id": str(n), "content": text} for n, text in enumerate(texts)]
    done = check({PATH: of({**bullets[0], **odd}, *bullets[1:]).encode(), "profiles/\xfc.txt": b"x"}, NOW)
    [error] = done.errors
    assert error.startswith("profiles/\xfc.txt: 'profiles/\xfc.txt' is not the path")
    assert [one.removeprefix("coding.json") for one in done.warnings] == [
        "[0]: it is vague; name a thing, such as `Use pathlib.Path over os.path`",
        "[0]: Content of an unusual length (10 chars); 15 to 300 are usual",
        "[0]: created_at: not a time of ISO 8601",
        "[0]: utility_score: not a number from 0 to 1",
        "[2]: the same content as [1]",
        "[3]: contradicts [1]",
        "No memories directory found",
    ]  # fmt: skip


def test_secrets_are_masked_wherever_they_are() -> None:
    assert without_secrets([{"a": f"api_key={SECRET}"}, 7, None]) == [{"a": f"api_key={MASK}"}, 7, None]


def test_a_bullet_changes_in_place() -> None:
    raw = json.loads(GOLDEN)["bullets"][0]
    same = replace(row("a"), content=raw["content"], section=raw["section"], helpful=3, harmful=1)
    assert changed(raw, "coding", same) is raw
    found = changed(raw, "coding", replace(same, helpful=5, last_used_at=NOW))
    assert list(found) == list(raw)
    assert (found["helpful_count"], found["utility_score"], found["last_used"]) == (
        5,
        5 / 6,
        "2026-01-31T12:00:00.000000",
    )


async def test_no_readable_bullet_is_lost_and_import_and_export_agree_whatever_a_file_has() -> None:
    """Mutated files: what can be read is in the export, and a second import changes nothing."""
    rng = random.Random(7)
    odd: tuple[Any, ...] = (
        None,
        True,
        -1,
        7,
        "x",
        "",
        "\0",
        [],
        {},
        "2025-01-01",
        {"a": [1]},
        "learned",
        2**70,
        0.5,
        "\ud800",
    )
    async with shop() as first:
        for number in range(EXAMPLES):
            workspace = await first.constellation.workspaces.ensure(f"shop-{number // 10}", author=USER)
            here = replace(first, workspace=workspace.id)
            bullets: list[Any] = [
                {**SEEDS, "id": f"b{n}", "content": f"Advice {number}.{n} on a thing"} for n in range(3)
            ]
            for _ in range(rng.randint(0, 3)):
                one = rng.choice(bullets)
                if not isinstance(one, dict) or rng.random() < 0.1:
                    bullets[rng.randrange(len(bullets))] = rng.choice(odd)
                elif rng.random() < 0.3:
                    one.pop(rng.choice([*one]), None)
                else:
                    one[rng.choice([*SEEDS, "foo"])] = rng.choice(odd)
            text = of(*bullets, version=rng.choice((1, 2, 2)))
            if rng.random() < 0.1:
                at = rng.randrange(len(text))
                text = text[:at] + rng.choice(("", "{", "\\", "\x00", '"')) + text[at + 1 :]
            path = f"playbooks/t{number}.json"
            done = await here.take((path, text))
            again = await here.take((path, text))
            assert (again.added, again.updated, again.conflicts) == ({}, {}, [])
            if not done.added.total():
                continue
            came, given = opened(text), opened(await here.give(path))
            assert len(came.bullets) == len(given.bullets)
            for raw, out in zip(came.bullets, given.bullets, strict=True):
                try:
                    bullet = bullet_of(raw, f"t{number}")
                except InvalidInput:
                    assert out == raw or "\ud800" in str(raw)
                    continue
                assert bullet_of(out, f"t{number}") == bullet
            if came.version == 2 and "\ud800" not in str(came.bullets):
                assert await here.give(path) == text
