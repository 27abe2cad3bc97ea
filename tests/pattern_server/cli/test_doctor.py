"""`pattern doctor`: it finds what is wrong, and changes nothing."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core.ids import SystemClock, now_text
from pattern_db.connection import Connection, opened_at
from pattern_db.enums import DeliveryStatus, PersonStatus
from pattern_db.files import DataDirLock
from pattern_db.tables import outbox, sources
from pattern_db.tables.outbox import OutboxRow
from pattern_db.tables.sources import PersonRow, SourceRow
from pattern_server.backups import STATE_NAME
from pattern_server.cli.doctor import examine
from pattern_server.config import Config, load
from tests.pattern_server.cli.conftest import Pattern


def findings(pattern: Pattern) -> dict[str, tuple[str, str]]:
    return {row["check"]: (row["state"], row["message"]) for row in _rows(pattern)}


def _rows(pattern: Pattern) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = pattern("doctor", "--json").json
    return rows


def test_a_sound_installation(home: Pattern, data_dir: Path) -> None:
    ran = home("doctor")
    assert ran.code == 0, ran.out
    assert "No problems found." in ran.out
    found = findings(home)
    assert found["data"] == ("ok", f"{data_dir}, set by --data-dir")
    assert found["databases"][0] == "ok"
    assert found["databases"][1].startswith("2 of 2 can be opened at this version")
    messages = [row["message"] for row in _rows(home) if row["check"] == "embeddings"]
    assert any("is available (64 dimensions)" in message for message in messages)
    assert found["server"][0] == "note"
    assert found["models"][0] == "note"


def test_before_the_first_start(pattern: Pattern, data_dir: Path) -> None:
    found = findings(pattern)
    assert found["data"][0] == "note"
    assert f"no data directory yet at {data_dir}" in found["data"][1]
    assert found["databases"][0] == "note"
    assert not data_dir.exists(), "a doctor changes nothing"


def test_a_folder_that_is_none(data_dir: Path) -> None:
    data_dir.write_text("a file")
    found = {finding.check: finding for finding in examine(load(data_dir=data_dir))}
    assert found["data"].state == "problem"
    assert "--data-dir" in found["data"].message
    assert "databases" not in found, "there is nothing to look into"


def test_a_damaged_database(home: Pattern, data_dir: Path) -> None:
    (file,) = data_dir.glob("constellations/*/pattern.db")
    file.write_bytes(b"no database at all" * 1000)
    ran = home("doctor")
    assert ran.code == 1
    assert "Problems found: 1." in ran.out


def test_an_orphan_is_reported(home: Pattern, data_dir: Path) -> None:
    orphan = data_dir / "constellations" / "left-over"
    orphan.mkdir()
    (orphan / "pattern.db").write_bytes(b"")
    notes = [row["message"] for row in _rows(home) if row["check"] == "databases"]
    assert any("left-over" in note and "pattern restore" in note for note in notes)


def test_a_server_that_does_not_answer(home: Pattern, data_dir: Path) -> None:
    said = {"pid": os.getpid(), "url": "http://127.0.0.1:1", "started_at": "", "token": "t"}
    (data_dir / "server.json").write_text(json.dumps(said))
    with DataDirLock.acquire(data_dir):
        assert findings(home)["server"][0] == "problem"


def test_a_folder_in_use(home: Pattern, data_dir: Path) -> None:
    with DataDirLock.acquire(data_dir):
        state, message = findings(home)["server"]
    assert state == "note"
    assert str(os.getpid()) in message


def test_a_full_disk_and_few_descriptors(home: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1024

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    found = findings(home)
    assert found["disk"][0] == "problem"
    assert "ulimit" in found["open files"][1]


def test_embeddings_that_cannot_be_made(home: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATTERN_EMBEDDINGS__PROVIDER", "none")
    assert findings(home)["embeddings"][0] == "note"
    monkeypatch.setenv("PATTERN_EMBEDDINGS__PROVIDER", "compatible")
    state, message = findings(home)["embeddings"]
    assert state == "problem"
    assert "words alone" in message
    assert "base_url" in message
    assert home("doctor").code == 1


def test_another_model_and_texts_that_wait(home: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATTERN_EMBEDDINGS__PROVIDER", "none")
    assert home("memory", "append", "human", "Ruth lives in Lisbon.", "-c", "home", "-a", "ada").code == 0
    monkeypatch.setenv("PATTERN_EMBEDDINGS__PROVIDER", "deterministic")
    assert "texts embedded: 0 of 1" in findings(home)["embeddings"][1]
    assert home("embeddings", "status", "-c", "home", "--wait").code == 0
    assert findings(home)["embeddings"][0] == "ok"
    monkeypatch.setenv("PATTERN_EMBEDDINGS__DIMENSIONS", "32")
    state, message = findings(home)["embeddings"]
    assert state == "note"
    assert "pattern embeddings switch -c home" in message


def test_a_folder_that_went_away(home: Pattern, tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    assert home("folder", "create", "papers", "--path", str(tmp_path / "papers"), "-c", "home").code == 0
    assert "folders" not in findings(home)
    (tmp_path / "papers").rmdir()
    home("folder", "index", "papers", "-c", "home")
    state, message = findings(home)["folders"]
    assert state == "problem"
    assert "pattern folder index papers -c home" in message


def test_a_remote_folder_without_its_secret(home: Pattern) -> None:
    address = "s3://papers?secret=LOST"
    made = home("folder", "create", "papers", "--remote", address, "-c", "home")
    assert (made.code, "[sources.secrets.LOST]" in made.err) == (1, True), made
    state, message = findings(home)["folders"]
    assert (state, "papers of home could not be read" in message) == ("problem", True)
    assert "add [sources.secrets.LOST]" in message
    assert "pattern folder index papers -c home" in message


NOW = "2026-11-30T00:00:00.000Z"
SECRETS = """[sources.secrets.bot]
value = "12345:a-token"
[sources.secrets.empty]
env = "PATTERN_TEST_NOT_SET"
"""


def about_sources(home: Pattern, data_dir: Path, store: Callable[[Connection], None]) -> list[tuple[str, str]]:
    """What is found of a constellation's sources after something was stored."""
    (file,) = data_dir.glob("constellations/*/pattern.db")
    (data_dir.parent / "pattern.toml").write_text(SECRETS)
    with opened_at(file) as connection, connection:
        store(connection)
    return [(row["state"], row["message"]) for row in _rows(home) if row["check"] == "sources"]


TOLD: list[tuple[dict[str, Any], str, str]] = [
    ({"error": "Telegram does not know this token; copy it again", "failing_since": NOW}, "problem", "copy it again"),
    ({"error": "the service is away", "failing_since": NOW}, "problem", f"fails since {NOW}: the service is away"),
    ({"config": {"token": "gone"}}, "problem", "add [sources.secrets.gone]"),
    ({"config": {"token": "empty"}}, "problem", "set what [sources.secrets.empty] names"),
    ({"config": {"token": "gone"}, "enabled": False}, "note", "add [sources.secrets.gone]"),
    ({"enabled": False}, "note", "pattern source resume phone -c home"),
    ({"source_type": "webhook", "config": {"secret": "bot"}}, "note", "post to /hooks"),
    ({"source_type": "carrier"}, "problem", "does not know: update Pattern"),
]


@pytest.mark.parametrize(("fields", "state", "words"), TOLD)
def test_what_is_wrong_with_an_account(
    home: Pattern, data_dir: Path, fields: dict[str, Any], state: str, words: str
) -> None:
    given = {"source_type": "telegram", "config": {"token": "bot"}, **fields}
    row = SourceRow(id="src_1", name="phone", created_at=NOW, updated_at=NOW, **given)
    found = about_sources(home, data_dir, lambda connection: sources.create(connection, row))
    assert (state, True) in [(one, words in message) for one, message in found]
    assert "12345:" not in str(found)


def test_what_is_in_doubt_and_who_waits_for_a_person(home: Pattern, data_dir: Path) -> None:
    row = SourceRow("src_1", "phone", "telegram", {"token": "bot"}, NOW, NOW)
    sound = about_sources(home, data_dir, lambda connection: sources.create(connection, row))
    assert sound == []

    def store(connection: Connection) -> None:
        dead = OutboxRow("say_1", "chat:src_1:5", "{}", NOW, NOW, status=DeliveryStatus.DEAD, unclear=2)
        outbox.add(connection, dead)
        for name, until in (("Anna\x1b[2J", "9999-01-01T00:00:00.000Z"), ("Bob", NOW)):
            person = PersonRow("src_1", name, name, PersonStatus.PENDING, NOW, code="ABCDEFGH", expires_at=until)
            sources.put_person(connection, person)

    doubt, waits = about_sources(home, data_dir, store)
    assert doubt[0] == "problem" and "1 answers; pattern source deliveries phone -c home" in doubt[1]
    assert waits[0] == "note" and "Anna" in waits[1] and "\x1b" not in waits[1] and "Bob" not in waits[1]
    assert "pattern channel approve phone CODE -c home" in waits[1] and "ABCDEFGH" not in str((doubt, waits))


def test_models_and_typing_errors(home: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret-key")
    monkeypatch.setenv("PATTERN_PROT", "8471")
    found = findings(home)
    assert found["models"][0] == "ok"
    assert "anthropic" in found["models"][1]
    assert "PATTERN_PROT" in found["settings"][1]
    assert "secret-key" not in str(found)


def test_the_file_is_named_and_a_default_provider_without_a_model(home: Pattern, tmp_path: Path) -> None:
    assert f"there is no pattern.toml in {tmp_path} or {tmp_path / 'data'}" in findings(home)["settings"][1]
    file = tmp_path / "pattern.toml"
    file.write_text('[providers.fake]\nkind = "openai"\napi_key = "k"')
    found = findings(home)
    assert f"read from {file}" in found["settings"][1]
    assert found["models"][0] == "note"
    assert "pattern model set" in found["models"][1]
    assert not any("Nothing is known" in row["message"] for row in _rows(home))
    refused = home("agent", "create", "bob", "-c", "home")
    assert (refused.code, "--model" in refused.err, "pattern model set" in refused.err) == (2, True, True)


def test_a_key_that_cannot_be_one(home: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk and more")
    problems = [row["message"] for row in _rows(home) if row["state"] == "problem"]
    assert len(problems) == 1
    assert "'openai'" in problems[0]
    assert "sk and more" not in problems[0]


def test_an_unknown_model_and_a_server_that_is_away(data_dir: Path, tmp_path: Path) -> None:
    with socket.socket() as free, socket.socket() as taken:
        for one in (free, taken):
            one.bind(("127.0.0.1", 0))
        taken.listen()
        away, here = free.getsockname()[1], taken.getsockname()[1]
        free.close()  # nobody listens there now
        file = tmp_path / "pattern.toml"
        file.write_text(
            f"""default_provider = "mine"
            default_model = "home-made"
            [providers.mine]
            kind = "openai"
            base_url = "http://127.0.0.1:{away}/v1"
            [providers.other]
            kind = "openai"
            base_url = "http://127.0.0.1:{here}/v1"
            [web]
            allow_hosts = ["example.org"]
            """
        )
        found = [(one.check, one.state, one.message) for one in examine(load(file, data_dir=data_dir))]
    models = [(state, message) for check, state, message in found if check == "models"]
    assert any(state == "note" and "8,192 tokens is assumed" in message for state, message in models)
    assert [message for state, message in models if state == "problem"] == [
        f"Cannot connect to http://127.0.0.1:{away}/v1 (provider mine). Start it or correct base_url in"
        " [providers.mine]."
    ]
    assert ("web", "ok", "agents may reach only example.org; no search engine is configured") in found


def test_models_are_looked_for_at_the_port_that_their_address_means(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: set[tuple[str, int]] = set()

    async def refuse(host: str, port: int, **_more: object) -> None:
        tried.add((host, port))
        raise ConnectionRefusedError

    monkeypatch.setattr(trio, "open_tcp_stream", refuse)
    given = {"a": "http://a.example/v1", "b": "https://b.example/v1", "c": "https://c.example:8443/v1"}
    sections = (f'[providers.{name}]\nkind = "openai"\nbase_url = "{url}"\n' for name, url in given.items())
    (tmp_path / "pattern.toml").write_text("".join(sections))
    [*examine(load(tmp_path / "pattern.toml", data_dir=data_dir))]
    assert tried == {("a.example", 80), ("b.example", 443), ("c.example", 8443)}


def test_what_keeps_mcp_servers_from_being_started(data_dir: Path, tmp_path: Path) -> None:
    def told(**servers: Mapping[str, object]) -> list[tuple[str, str]]:
        found = examine(load(data_dir=data_dir, mcp=servers))
        return [(one.state, one.message) for one in found if one.check == "mcp"]

    assert told() == []
    sound: dict[str, object] = {"command": sys.executable}
    [(state, message)] = told(notes=sound, other={"url": "http://127.0.0.1:9/mcp"})
    assert (state, message.startswith("notes, other can be started; pattern mcp test")) == ("ok", True)
    for server, words in (
        (
            {"command": "no-such-program-anywhere"},
            "there is no program no-such-program-anywhere. Correct that, or [mcp.bad]",
        ),
        ({"command": "./run", "cwd": tmp_path}, "there is no program ./run"),
        ({**sound, "cwd": tmp_path / "gone"}, "is not a directory"),
        ({**sound, "env_from": ["NO_SUCH_VARIABLE"]}, "the variable NO_SUCH_VARIABLE is not set"),
        (
            {"url": "http://127.0.0.1:9/mcp", "token_env": "NO_SUCH_VARIABLE"},
            "the variable NO_SUCH_VARIABLE is not set",
        ),
    ):
        (bad, fine) = told(bad=server, notes=sound)
        assert (bad[0], words in bad[1], fine[0]) == ("problem", True, "ok"), bad
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o700)
    assert [state for state, _ in told(notes={"command": "./run", "cwd": tmp_path})] == ["ok"]


def test_what_holds_the_commands_of_agents(data_dir: Path, tmp_path: Path) -> None:
    assert all(finding.check != "shell" for finding in examine(load(data_dir=data_dir))), "nothing is configured"
    (tmp_path / "work").mkdir()
    for roots, states in ((["work"], {"ok", "problem"}), (["work", "gone"], {"problem"})):
        shell = {"roots": [tmp_path / root for root in roots]}
        found = [finding for finding in examine(load(data_dir=data_dir, shell=shell)) if finding.check == "shell"]
        assert found[0].state in states, "ok where this system has a sandbox"
        assert found[0].message
    loose = {"roots": [tmp_path / "work"], "require_sandbox": False}
    [found_loose] = [one for one in examine(load(data_dir=data_dir, shell=loose)) if one.check == "shell"]
    assert found_loose.state in {"ok", "note"}


def test_a_small_window_is_noted_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "pattern.toml"
    begin = 'default_provider = "mine"\ndefault_model = "m"\n[providers.mine]\nkind = "openai"\n'
    for window, notes in ((4_096, 1), (8_192, 0)):
        file.write_text(f'{begin}base_url = "http://127.0.0.1:9/v1"\n[providers.mine.models.m]\nwindow = {window}')
        found = [one for one in examine(load(file, data_dir=tmp_path)) if one.check == "models" and one.state == "note"]
        assert sum("is small" in one.message for one in found) == notes
        assert not any("assumed" in one.message for one in found)


def test_who_reaches_the_server(data_dir: Path) -> None:
    def found(**settings: Any) -> tuple[str, str]:
        config = load(data_dir=data_dir, **settings)
        return next((one.state, one.message) for one in examine(config) if one.check == "exposure")

    assert found() == ("ok", "only this machine reaches 127.0.0.1")
    assert found(http={"trusted_proxies": ["127.0.0.1"]})[1].endswith("proxies with TLS: 127.0.0.1/32")
    state, message = found(host="0.0.0.0")
    assert (state, "--exposed" in message) == ("problem", True)
    assert found(host="0.0.0.0", exposed=True) == (
        "note",
        "other machines reach 0.0.0.0 without TLS, as exposed = true says",
    )
    assert found(open_loopback=True) == (
        "note",
        "programs on this machine may use chat sessions without a token, as open_loopback = true says",
    )
    assert "firewall" in found(host="0.0.0.0", http={"trusted_proxies": ["10.0.0.0/8"]})[1]


def test_a_file_with_much_free_space_is_named(home: Pattern, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pattern_db.maintenance.MUCH_FREE_BYTES", 1)
    [path] = data_dir.glob("constellations/*/pattern.db")
    with opened_at(path) as connection:
        fill = "INSERT INTO blob VALUES (randomblob(32), 'raw', 90000, randomblob(90000), ?)"
        connection.executemany(fill, [("2026-01-01T00:00:00.000Z",)] * 30)
        connection.execute("DELETE FROM blob").fetchall()
    notes = [row["message"] for row in _rows(home) if row["state"] == "note"]
    assert "home: 3 MiB of the file are free: pattern db vacuum -c home" in notes
    assert home("db", "vacuum", "-c", "home").code == 0
    assert not [row for row in _rows(home) if "db vacuum" in row["message"]]


def said(check: str, config: Config) -> list[tuple[str, str]]:
    """What is found of one kind."""
    return [(one.state, one.message) for one in examine(config) if one.check == check]


def test_when_the_last_backups_were_made(home: Pattern, data_dir: Path, tmp_path: Path) -> None:
    config = load(data_dir=data_dir, backup={"folder": tmp_path, "every_hours": 24})
    assert said("backups", config) == [("note", f"none yet; a running server makes them in {tmp_path}")]
    now = now_text(SystemClock())
    for rounds, state, words in (
        ({"began_at": now, "complete_at": now}, "ok", f"complete and verified {now}"),
        ({"began_at": now, "complete_at": "2020-01-01T00:00:00.000Z"}, "problem", "hours ago"),
        ({"began_at": now, "complete_at": now, "failed": {"con_1": "no space"}}, "problem", "con_1: no space"),
    ):
        (tmp_path / STATE_NAME).write_text(json.dumps(rounds))
        [(found, message)] = said("backups", config)
        assert (found, words in message) == (state, True), message
    off = load(data_dir=data_dir, backup={"folder": tmp_path, "enabled": False})
    assert said("backups", off) == [("note", "no backups are scheduled, as enabled = false in [backup] says")]


def test_what_others_on_the_machine_may_read_is_noted(home: Pattern, data_dir: Path) -> None:
    assert len(said("data", load(data_dir=data_dir))) == 1
    data_dir.chmod(0o755)
    assert ("note", f"{data_dir} can be read by every user of this machine: chmod 700 {data_dir}") in said(
        "data", load(data_dir=data_dir)
    )


def test_where_users_can_sign_in(home: Pattern, data_dir: Path) -> None:
    oauth = {"issuer": "https://id.example", "client_id": "us"}
    config = load(data_dir=data_dir, sign_in={
        "open": oauth, "secret": {**oauth, "client_secret": "s"}, "sky": {"atproto_url": "https://sky.example"},
    })  # fmt: skip
    without, with_secret, sky = said("sign in", config)
    assert without[0] == "note" and "open has no client_secret here" in without[1]
    assert with_secret == ("ok", "users can link and use identities at secret (https://id.example)")
    assert sky == ("ok", "users can link and use identities at sky (https://sky.example)")


def test_encryption_without_its_program_is_a_problem(home: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATTERN_BACKUP__AGE_RECIPIENT", "age1abc")
    monkeypatch.setenv("PATH", "")
    assert any("install age" in row["message"] for row in _rows(home) if row["state"] == "problem")
