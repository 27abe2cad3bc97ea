"""Archives of the original system, versions 1 to 3, become databases of ours; what is damaged is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import dag_cbor
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from multiformats import CID

from pattern_core.car import BLOCK_BYTES_MAX, ArchiveInvalid, CarReader
from pattern_core.ids import message_id
from pattern_core.legacy.archive import Old, read_old, version_in
from pattern_core.legacy.convert import Decision, store
from pattern_core.memory.document import BlockDocument, DocumentDamaged
from pattern_core.messages import parts_from_json
from pattern_core.portable import read, verify
from pattern_db import backup
from pattern_db.connection import fetch_all, open_connection
from pattern_db.errors import DatabaseError
from pattern_db.tables import block_checkpoints
from tests.pattern_core.legacy.theirs import (
    AT,
    FIRST,
    Theirs,
    document_of,
    entry_of,
    group_of,
    member_of,
    old_agent,
    old_export,
    old_memory,
    old_message,
    share_of,
    summary_of,
)

NOW = "2026-02-03T04:05:06.007Z"
PEER = 77


class Made:
    """What an archive became: a database, and the decisions about it."""

    def __init__(self, archive: Path) -> None:
        _, old = read(archive, archive.with_suffix(".none"), now=NOW)
        assert isinstance(old, Old)
        self.old = old
        self.path = archive.with_suffix(".db")
        self.path.unlink(missing_ok=True)
        self.decisions: list[Decision] = store(self.path, old, now=NOW, peer=PEER)
        with closing(open_connection(self.path)) as connection:
            assert backup.check_integrity(connection) == []

    def rows(self, sql: str, *values: Any) -> list[Any]:
        with closing(open_connection(self.path)) as connection:
            return fetch_all(connection, sql, values)

    def text_of(self, label: str) -> str:
        """The text of a block's document, opened from its bytes."""
        ((block, shown),) = self.rows("SELECT id, content_preview FROM memory_blocks WHERE label = ?", label)
        with closing(open_connection(self.path)) as connection:
            checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(connection, block)
        assert checkpoint is not None
        assert updates == []
        from_bytes = BlockDocument.load(checkpoint.snapshot if checkpoint.encoding == "raw" else None, peer=1)
        if checkpoint.encoding == "raw":
            assert from_bytes.state().get("content", "") == shown
        return str(shown)


def agent_archive(folder: Path, fill: Callable[[Theirs], dict[str, Any]], **record: Any) -> Path:
    """An archive of version 3 with the agent `Ada`."""
    theirs = Theirs()
    data = theirs.node(theirs.agent("agent_a", "Ada", record=record, **fill(theirs)))
    return theirs.write(folder / "theirs.car", theirs.manifest("Agent", data))


def test_case_188_an_agent_with_all_that_is_its_own(tmp_path: Path) -> None:
    def fill(theirs: Theirs) -> dict[str, Any]:
        return {
            "message_chunk_cids": theirs.messages("agent_a", [f"message {number}" for number in range(20)]),
            "memory_block_cids": [theirs.block(f"mem_{n}", "agent_a", f"block{n}", f"text {n} 🌍") for n in range(3)],
            "archival_entry_cids": [
                entry_of(theirs, "e1", "agent_a", "one"),
                entry_of(theirs, "e2", "agent_a", "2", "e1"),
            ],
            "archive_summary_cids": [
                summary_of(theirs, "s1", "agent_a", "first"),
                summary_of(theirs, "s2", "agent_a", "second", "s1"),
            ],
        }

    archive = agent_archive(tmp_path, fill)
    manifest = verify(archive)[0]
    assert (manifest.version, manifest.kind) == (3, "agent")
    assert verify(archive)[0].rows == {
        "agents": 1, "memory_blocks": 3, "messages": 20, "archival_entries": 2, "archive_summaries": 2
    }  # fmt: skip
    made = Made(archive)
    ((name, prompt, provider, config, created),) = made.rows(
        "SELECT name, system_prompt, model_provider, config, created_at FROM agents"
    )
    assert (name, prompt, provider, created) == ("Ada", "You are Ada.", "anthropic", "2025-11-21T22:24:40.123Z")
    assert json.loads(config) == {"temperature": 0.5}
    assert [one["decision"] for one in made.decisions] == [
        "settings were left out: odd", "tools were left out: recall"
    ]  # fmt: skip
    said = made.rows("SELECT content, position, id, batch_id, sequence_in_batch FROM messages ORDER BY position")
    assert said == [
        (f"message {n}", f"{FIRST + n:019}", message_id(f"{FIRST + n:019}"), f"{FIRST:019}", n) for n in range(20)
    ]
    assert [made.text_of(f"block{n}") for n in range(3)] == [f"text {n} 🌍" for n in range(3)]
    first, second = made.rows("SELECT id, content, parent_entry_id FROM archival_entries ORDER BY row")
    assert (first[1:], second[1:]) == (("one", None), ("2", first[0]))
    summaries = made.rows("SELECT summary, start_position, previous_summary_id, id FROM archive_summaries ORDER BY row")
    assert [one[:2] for one in summaries] == [(words, f"{FIRST:019}") for words in ("first", "second")]
    assert summaries[1][2] == summaries[0][3]


def group_archive(folder: Path, *, thin: bool) -> Path:
    theirs = Theirs()
    record = group_of("group_g", "team", pattern_type="supervisor", pattern_config={"leader_id": "agent_a"})
    if thin:
        data: Any = {"group": record, "member_agent_ids": ["agent_a", "agent_b"]}
    else:
        exports = [
            theirs.agent(
                f"agent_{letter}", name, message_chunk_cids=theirs.messages(f"agent_{letter}", ["hello"] * 9, id=None)
            )
            for letter, name in (("a", "Ada"), ("b", "Ben"))
        ]
        data = {
            "group": record,
            "members": [
                member_of("group_g", "agent_a", {"type": "supervisor"}),
                member_of("group_g", "agent_b", {"type": "specialist", "domain": "tea"}),
            ],
            "agent_exports": exports,
            "shared_memory_cids": [theirs.block("mem_s", "group_g", "plan", "ours")],
            "shared_attachment_exports": [share_of("mem_s", "agent_b", "append")],
        }
    return theirs.write(folder / "theirs.car", theirs.manifest("Group", theirs.node(data)))


def test_case_189_a_whole_group_and_a_thin_one(tmp_path: Path) -> None:
    made = Made(group_archive(tmp_path, thin=False))
    (ada,), (ben,) = made.rows("SELECT id FROM agents ORDER BY name")
    assert made.rows("SELECT role, domain, agent_id FROM group_members ORDER BY ordinal") == [
        ("supervisor", None, ada), ("specialist", "tea", ben)
    ]  # fmt: skip
    ((group, config),) = made.rows("SELECT id, pattern_config FROM agent_groups")
    assert json.loads(config) == {"leader_id": ada}
    assert made.rows("SELECT count(*), count(DISTINCT position) FROM messages") == [(18, 18)]
    assert made.rows("SELECT agent_id FROM memory_blocks") == [(group,)]
    assert made.rows("SELECT permission FROM shared_block_agents") == [("append",)]

    thin = Made(group_archive(tmp_path, thin=True))
    assert thin.rows("SELECT count(*) FROM agents") == [(0,)]
    assert [one["decision"] for one in thin.decisions] == [
        "members that are not in the archive were left out: agent_a, agent_b"
    ]


def constellation_archive(folder: Path) -> Path:
    theirs = Theirs()
    exports = {}
    for letter, name in (("a", "Ada"), ("b", "Ben"), ("c", "Cleo")):
        said = theirs.messages(f"agent_{letter}", ["one", "two", "three", "four", "five"])
        blocks = [theirs.block(f"mem_{letter}", f"agent_{letter}", "human", f"{name}'s")]
        agent = theirs.agent(f"agent_{letter}", name, message_chunk_cids=said, memory_block_cids=blocks)
        exports[f"agent_{letter}"] = theirs.node(agent)
    orphan = theirs.block("mem_o", "_constellation_", "rules", "Be kind.")
    thin = [
        {
            "group": group_of("g1", "pair"), "members": [member_of("g1", "agent_a"), member_of("g1", "agent_b")],
            "agent_cids": [exports["agent_a"], exports["agent_b"]], "shared_memory_cids": [orphan],
            "shared_attachment_exports": [share_of("mem_a", "agent_b", "read_only")],
        },
        {
            "group": group_of("g2", "one"), "members": [member_of("g2", "agent_c")], "agent_cids": [exports["agent_c"]],
            "shared_memory_cids": [], "shared_attachment_exports": [],
        },
    ]  # fmt: skip
    data = {
        "version": 3, "owner_id": "user_1", "exported_at": AT, "agent_exports": exports, "group_exports": thin,
        "standalone_agent_cids": [],
        "all_memory_block_cids": [orphan, theirs.block("mem_x", "owner_1", "lost", "found")],
        "shared_attachments": [share_of("mem_a", "agent_b", "read_only"), share_of("mem_a", "agent_c", "read_write")],
    }  # fmt: skip
    return theirs.write(folder / "theirs.car", theirs.manifest("Constellation", theirs.node(data)))


def test_cases_190_and_191_a_constellation_with_groups_and_shared_blocks(tmp_path: Path) -> None:
    made = Made(constellation_archive(tmp_path))
    counted = {
        table: made.rows(f"SELECT count(*) FROM {table}")[0][0] for table in ("agents", "messages", "group_members")
    }
    assert counted == {"agents": 3, "messages": 15, "group_members": 3}
    assert made.rows(
        "SELECT name, permission FROM shared_block_agents AS s JOIN agents ON agents.id = s.agent_id ORDER BY name"
    ) == [("Ben", "read_only"), ("Cleo", "read_write")]
    assert made.rows("SELECT label, agent_id FROM memory_blocks WHERE agent_id = '_constellation_' ORDER BY label") == [
        ("lost", "_constellation_"), ("rules", "_constellation_")
    ]  # fmt: skip
    assert [one["decision"] for one in made.decisions if one["name"] == "lost"] == [
        "its owner is not in the archive; it is the constellation's now"
    ]


@pytest.mark.parametrize(
    ("version", "error"), [(5, "version 5, which is newer"), (0, "no version"), ("3", "no version")]
)
def test_case_192_other_versions_are_refused_by_their_number(tmp_path: Path, version: Any, error: str) -> None:
    theirs = Theirs()
    data = theirs.node(theirs.agent("agent_a", "Ada"))
    archive = theirs.write(tmp_path / "theirs.car", theirs.manifest("Agent", data, version))
    with pytest.raises(ArchiveInvalid, match=error):
        verify(archive)


def test_case_193_a_large_document_in_linked_pieces_survives(tmp_path: Path) -> None:
    rng = random.Random(5)
    text = "".join(chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(600_000))

    document = document_of(text)

    def fill(theirs: Theirs) -> dict[str, Any]:
        assert len(theirs.snapshot(document)) > 1
        return {"memory_block_cids": [theirs.block("mem_l", "agent_a", "large", text, document, char_limit=10**6)]}

    made = Made(agent_archive(tmp_path, fill))
    assert made.rows("SELECT content_preview FROM memory_blocks") == [(text,)]
    assert made.old.documents == {"mem_l": document}


def test_case_194_many_messages_in_chunks_arrive_each(tmp_path: Path) -> None:
    words = [f"message {number}" for number in range(2500)]
    made = Made(agent_archive(tmp_path, lambda theirs: {"message_chunk_cids": theirs.messages("agent_a", words)}))
    assert [one for (one,) in made.rows("SELECT content FROM messages ORDER BY position")] == words


def test_case_195_ids_and_batches_become_valid_and_keep_their_order(tmp_path: Path) -> None:
    odd = {"position": lambda number: f"uuid-{9 - number}", "batch_id": lambda number: f"batch-{number // 5}"}
    times = {"created_at": lambda number: f"2025-11-21T22:24:{number:02}Z"}
    words = [f"message {number}" for number in range(10)]

    def fill(theirs: Theirs) -> dict[str, Any]:
        return {"message_chunk_cids": theirs.messages("agent_a", words, 4, **odd, **times)}

    archive = agent_archive(tmp_path, fill)
    made = Made(archive)
    found = made.rows("SELECT content, position, batch_id, id FROM messages ORDER BY position")
    assert [row[0] for row in found] == words
    assert {row[2] for row in found[:5]} == {found[0][1]}
    assert {row[2] for row in found[5:]} == {found[5][1]}
    assert all(row[1].isdigit() and len(row[1]) == 19 and row[3] == f"msg_{row[1]}" for row in found)
    ((agent,),) = made.rows("SELECT id FROM agents")
    assert agent != "agent_a"
    assert Made(archive).rows("SELECT id FROM agents") == [(agent,)]  # the same for the same archive


def test_case_196_the_newest_text_arrives_where_the_document_is_older(tmp_path: Path) -> None:
    def fill(theirs: Theirs) -> dict[str, Any]:
        return {
            "memory_block_cids": [
                theirs.block("m1", "agent_a", "edited", "the newest text", document_of("as it was created")),
                theirs.block("m2", "agent_a", "cut", "the begin", document_of("the beginning of a shown text")),
                theirs.block("m3", "agent_a", "bare", "only shown", b""),
            ]
        }

    made = Made(agent_archive(tmp_path, fill))
    assert made.text_of("edited") == "the newest text"
    assert made.text_of("cut") == "the beginning of a shown text"
    assert made.text_of("bare") == "only shown"
    assert [one["name"] for one in made.decisions if one["kind"] == "memory block"] == ["edited"]
    assert made.rows("SELECT kind, changed_by FROM memory_block_history") == [("create", "system")] * 3


def test_case_201_every_changed_or_missing_byte_is_noticed(tmp_path: Path) -> None:
    archive = agent_archive(tmp_path, lambda theirs: {"message_chunk_cids": theirs.messages("agent_a", ["hello"])})
    content = archive.read_bytes()
    rng = random.Random(3)
    for number in range(300):
        at = rng.randrange(len(content))
        flipped = content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
        archive.write_bytes(content[:at] if number % 2 else flipped)
        with pytest.raises(ArchiveInvalid):
            verify(archive)


def test_contents_of_every_kind_are_readable(tmp_path: Path) -> None:
    image = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
    contents: list[Any] = [
        "plain",
        ("assistant", {"ToolCalls": [{"call_id": "c1", "fn_name": "look", "fn_arguments": {"at": "sky"}}]}),
        ("tool", {"ToolResponses": [{"call_id": "c1", "content": "blue", "is_error": None}]}),
        ("user", {"Parts": [
            {"Text": "see"},
            {"Image": {"content_type": "image/png", "source": {"Base64": image}}},
            {"Image": {"content_type": "image/png", "source": {"Url": "https://example.org/a.png"}}},
        ]}),
        ("assistant", {"Blocks": [
            {"type": "thinking", "text": "hm", "signature": "x"}, {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "So."}, {"type": "tool_use", "id": "c2", "name": "look", "input": {}},
        ]}),
        ("user", {"Blocks": [{"ToolResult": {"tool_use_id": "c2", "content": ["a"], "is_error": True}}]}),
        ("assistant", {"Hologram": 7}),
    ]  # fmt: skip
    made = Made(agent_archive(tmp_path, lambda theirs: {"message_chunk_cids": theirs.messages("agent_a", contents)}))
    found = made.rows("SELECT role, content, tool_name, parts FROM messages ORDER BY position")
    assert [row[:3] for row in found] == [
        ("user", "plain", None),
        ("assistant", None, None),
        ("tool", "blue", "look"),
        ("user", "see", None),
        ("assistant", "So.", None),
        ("tool", '["a"]', "look"),
        ("assistant", '{"Hologram":7}', None),
    ]
    kinds = [[part["type"] for part in json.loads(row[3])] for row in found if row[3]]
    assert kinds == [["tool_call"], ["text", "image", "image"], ["reasoning", "text", "tool_call"]]
    assert made.rows("SELECT count(*) FROM blob") == [(1,)]
    assert any("cannot be read" in one["decision"] for one in made.decisions)


def old_archive(folder: Path, version: int) -> Path:
    theirs = Theirs()
    said = [old_message("agent_a", n, f"message {n}") for n in range(3)]
    said[0][1]["message_type"] = "archived"
    known = [
        old_memory("agent_a", "m1", "persona", "I am Ada."),
        old_memory("agent_a", "m2", "diary", "Long ago.", memory_type="archival"),
    ]
    record = old_agent("agent_a", "Ada", message_summary="First they met.\n\nThen they talked.")
    if version == 1:
        return theirs.write(folder / "theirs.car", theirs.node({**record, "messages": said, "memories": known}))
    export = old_export(theirs, record, said, known)
    shared = [old_memory("agent_b", "m1", "persona", "I am Ada."), old_memory("agent_b", "m3", "human", "Ruth")]
    other = old_export(theirs, old_agent("agent_b", "Ben"), [old_message("agent_b", 9, "hi")], shared)
    membership = {"id": "r", "in_id": "agent_a", "out_id": "g", "joined_at": AT, "role": "regular", "is_active": True}
    group: dict[str, Any] = {"id": "g", "name": "team", "description": "", "created_at": AT, "updated_at": AT}
    group["coordination_pattern"] = {"type": "round_robin", "skip_unavailable": True}
    pairs = [["agent_a", export], ["agent_b", other]]
    data = {
        "constellation": {"id": "c", "name": "house", "owner_id": "user_1"},
        "groups": [{"group": group, "member_agent_cids": pairs, "member_memberships": [["agent_a", membership]]}],
        "agent_export_cids": pairs,
        "agent_memberships": [],
    }
    return theirs.write(folder / "theirs.car", theirs.manifest("Constellation", theirs.node(data), 2))


def test_version_2_a_constellation_of_the_time_of_relations(tmp_path: Path) -> None:
    made = Made(old_archive(tmp_path, 2))
    assert (made.old.name, made.old.version) == ("house", 2)
    assert made.rows("SELECT name, model_provider, model_name FROM agents ORDER BY name") == [
        ("Ada", "anthropic", "claude"), ("Ben", "anthropic", "claude")
    ]  # fmt: skip
    assert made.rows("SELECT content, is_archived FROM messages WHERE content LIKE 'message%' ORDER BY position") == [
        ("message 0", 1), ("message 1", 0), ("message 2", 0)
    ]  # fmt: skip
    assert made.text_of("persona") == "I am Ada."
    assert made.rows("SELECT content, metadata FROM archival_entries") == [("Long ago.", '{"label":"diary"}')]
    assert made.rows("SELECT name, permission FROM shared_block_agents AS s JOIN agents ON agents.id = s.agent_id") == [
        ("Ben", "read_only")
    ]
    assert made.rows("SELECT summary, depth FROM archive_summaries ORDER BY row") == [
        ("First they met.", 1), ("Then they talked.", 1)
    ]  # fmt: skip
    assert made.rows("SELECT name, pattern_type, pattern_config FROM agent_groups") == [
        ("team", "round_robin", '{"skip_unavailable":true}')
    ]
    assert made.rows("SELECT count(*) FROM group_members") == [(1,)]


def test_an_agent_without_a_model_gets_the_one_that_needs_no_key(tmp_path: Path) -> None:
    made = Made(agent_archive(tmp_path, lambda theirs: {}, model_provider=None, config={}, enabled_tools=[]))
    assert made.rows("SELECT model_provider, model_name FROM agents") == [("embedded", "rules-1")]
    assert [one["decision"] for one in made.decisions] == ["it names no model; it uses embedded/rules-1"]


def test_version_1_an_agent_as_the_root_with_a_block_of_any_size(tmp_path: Path) -> None:
    archive = old_archive(tmp_path, 1)
    made = Made(archive)
    with archive.open("rb") as file:
        assert read_old(CarReader(file)) == made.old
    assert verify(archive)[0].version == 1
    assert made.rows("SELECT count(*) FROM messages") == [(3,)]
    assert made.text_of("persona") == "I am Ada."
    theirs = Theirs()
    large = old_message("agent_a", 1, "x" * (BLOCK_BYTES_MAX + 5))
    chunks = [theirs.node({"messages": [large]})]
    export = {"agent": old_agent("agent_a", "Ada"), "message_chunk_cids": chunks, "memory_chunk_cids": []}
    made = Made(theirs.write(tmp_path / "large.car", theirs.node(export)))
    assert made.rows("SELECT length(content) FROM messages") == [(BLOCK_BYTES_MAX + 5,)]


@pytest.mark.parametrize("lie", ["missing", "length", "order", "twice", "kind", "shape"])
def test_what_contradicts_itself_is_refused(tmp_path: Path, lie: str) -> None:
    theirs = Theirs()
    long = random.Random(1).randbytes(1_000_000)
    cids = theirs.snapshot(long)
    lies: dict[str, dict[str, Any]] = {
        "length": {"total_snapshot_bytes": 1},
        "order": {"snapshot_chunk_cids": cids[::-1], "total_snapshot_bytes": len(long)},
    }
    block = theirs.block("m", "agent_a", "human", "", long, **lies.get(lie, {}))
    agent: Any = theirs.agent("agent_a", "Ada", memory_block_cids=[block])
    if lie == "twice":
        agent["memory_block_cids"].append(theirs.block("m", "agent_a", "other", "two"))
    if lie == "shape":
        agent["agent"] = 5
    if lie == "missing":
        del theirs.blocks[block]
    data = theirs.node(agent)
    archive = theirs.write(tmp_path / "t.car", theirs.manifest("Hologram" if lie == "kind" else "Agent", data))
    with pytest.raises(ArchiveInvalid):
        verify(archive)


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_records_that_lie_are_refused_or_imported_and_never_a_bug(tmp_path: Path, data: st.DataObject) -> None:
    """Blocks with right digests, and one field of one record with any value."""

    class Lying(Theirs):
        def node(self, value: Any) -> CID:
            if isinstance(value, dict) and "data_cid" not in value and data.draw(st.integers(0, 5)) == 0:
                value = {**value, data.draw(st.sampled_from(sorted(value))): data.draw(ODD)}
            return super().node(value)

    theirs = Lying()
    message: dict[str, Any] = {"content_json": lambda _: data.draw(ODD), "position": lambda _: data.draw(ODD)}
    cids = {
        "message_chunk_cids": theirs.messages(
            "agent_a", ["one", "two"], **(message if data.draw(st.booleans()) else {})
        ),
        "memory_block_cids": [theirs.block("m", "agent_a", "human", "words", metadata=data.draw(ODD))],
        "archival_entry_cids": [entry_of(theirs, "e", "agent_a", "entry")],
        "archive_summary_cids": [summary_of(theirs, "s", "agent_a", "summary")],
    }
    agent = theirs.agent(
        "agent_a", "Ada", record={data.draw(st.sampled_from(["config", "status", "name"])): data.draw(ODD)}
    )
    archive = theirs.write(tmp_path / "t.car", theirs.manifest("Agent", theirs.node({**agent, **cids})))
    try:
        made = Made(archive)
    except (ArchiveInvalid, DatabaseError, DocumentDamaged):
        return
    verify(archive)
    for (parts,) in made.rows("SELECT parts FROM messages WHERE parts IS NOT NULL"):
        parts_from_json(json.loads(parts))


def test_the_version_is_that_of_the_root() -> None:
    roots = [{"version": 3}, {"base_instructions": ""}, {"version": True}, {"version": "3"}, {}, 7]
    assert [version_in(root) for root in roots] == [3, 1, None, None, None, None]


def test_the_files_of_these_tests_are_dag_cbor_with_blake3(tmp_path: Path) -> None:
    """So that the reader is tried with the format, and not with a mistake of this file."""
    theirs = Theirs()
    cid = theirs.node({"a": [1, None]})
    assert (cid.version, cid.codec.name, cid.hashfun.name) == (1, "dag-cbor", "blake3")
    assert dag_cbor.decode(theirs.blocks[cid]) == {"a": [1, None]}
