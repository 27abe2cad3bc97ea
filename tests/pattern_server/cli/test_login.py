"""Signing in on the command line: here, and on a server anywhere."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from pattern_core.errors import InvalidInput
from pattern_server.cli.client import address_of, keep_login, logins, running_server
from tests.pattern_server.cli.conftest import Pattern, serving

SECRET = "correct horse battery"


@pytest.fixture
def ann(pattern: Pattern) -> Pattern:
    """A data directory with the user ann, who has a password."""
    assert pattern("user", "add", "ann").code == 0
    assert pattern("user", "passwd", "ann", stdin=f"{SECRET}\n").code == 0
    return pattern


def _file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "pattern" / "logins.json"


def test_later_commands_act_for_who_signed_in(ann: Pattern, data_dir: Path, tmp_path: Path) -> None:
    wrong = ann("login", "ann", stdin="wrong horse\n")
    assert (wrong.code, "is wrong" in wrong.err) == (1, True)
    assert ann("login", "ann").code == 2  # nothing was piped in
    assert not _file(tmp_path).exists()
    assert ann("login", "ann", stdin=f"{SECRET}\n").out == f"Signed in to {data_dir} as ann.\n"
    assert stat.S_IMODE(_file(tmp_path).stat().st_mode) == 0o600
    assert SECRET not in _file(tmp_path).read_text()
    assert ann("constellation", "create", "anns").code == 0
    assert "scope admin" in ann("user", "list").err
    # The sign-in was used once; what stays is a token with its expiry.
    (token,) = (row for row in ann("token", "list", "--json").json if row["revoked_at"] is None)
    assert token["name"].startswith("pattern login on ")
    assert token["expires_at"] is not None
    assert ann("user", "passwd", "ann", stdin=f"{SECRET}\nanother horse\n").code == 0
    assert ann("logout").code == 0
    assert logins() == {}
    rows = ann("token", "list", "--user", "ann", "--json").json
    assert {row["revoked_at"] is None for row in rows} == {False}
    assert ann("logout").code == 1
    assert [row["username"] for row in ann("user", "list", "--json").json] == ["admin", "ann"]


def test_a_login_that_was_revoked_elsewhere_is_said_and_forgotten(ann: Pattern) -> None:
    assert ann("login", "ann", stdin=f"{SECRET}\n").code == 0
    (place,) = logins()
    token = ann("token", "list", "--json").json[-1]["id"]
    assert ann("token", "revoke", token).code == 0
    refused = ann("constellation", "list")
    assert (refused.code, "revoked" in refused.err) == (1, True)  # and not done as an administrator
    assert ann("logout", "--json").json == {"place": place}
    assert ann("constellation", "list").code == 0


def test_a_server_anywhere(ann: Pattern, data_dir: Path, tmp_path: Path) -> None:
    with serving(data_dir, tmp_path):
        found = running_server(data_dir)
        assert found is not None
        server = ("--server", found.url)
        assert "pattern login NAME" in ann("constellation", "list", *server).err
        assert ann("login", "ann", *server, stdin=f"{SECRET}\n").code == 0
        assert ann("constellation", "create", "anns", "--server", f"{found.url}/").code == 0
        assert [row["name"] for row in ann("constellation", "list", *server, "--json").json] == ["anns"]
        assert ann("user", "list").code == 0  # on the data directory, no one is signed in
        assert ann("logout", *server).code == 0
        assert ann("constellation", "list", *server).code == 2


def test_logins_are_kept_by_place(data_dir: Path, tmp_path: Path) -> None:
    keep_login("https://a", "pat_a")
    keep_login("https://b", "pat_b")
    keep_login("https://a", None)
    assert logins() == {"https://b": "pat_b"}
    for damaged in ("", "[1]", '"text"', "{"):
        _file(tmp_path).write_text(damaged)
        assert logins() == {}
    keep_login("https://c", "pat_c")
    assert json.loads(_file(tmp_path).read_text()) == {"https://c": "pat_c"}


@pytest.mark.parametrize("url", ["nas", "ftp://nas", "http://nas:1", "https://"])
def test_no_password_leaves_for_such_an_address(url: str) -> None:
    with pytest.raises(InvalidInput):
        address_of(url)


def test_an_address_has_one_spelling() -> None:
    assert address_of("https://NAS:8470/") == address_of("https://nas:8470") == "https://nas:8470"
