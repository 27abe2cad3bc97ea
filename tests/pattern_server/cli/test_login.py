"""Signing in on the command line: here, and on a server anywhere."""

from __future__ import annotations

import json
import stat
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from socket import socket
from threading import Thread

import httpx2
import pytest
import trio

from pattern_core.errors import InvalidInput
from pattern_core.ids import SystemClock
from pattern_server.cli.client import address_of, keep_login, logins, running_server
from tests.pattern_server.cli.conftest import Pattern, serving
from tests.pattern_server.issuer import APP_PASSWORD, CLIENT, HANDLE, Issuer, issuing
from tests.pattern_server.issuer import SECRET as CLIENT_SECRET

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


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """A provider that runs as long as the test."""
    found, ended = Queue[Issuer](), trio.Event()
    token = Queue[trio.lowlevel.TrioToken]()

    async def run() -> None:
        async with issuing(SystemClock()) as made:
            token.put(trio.lowlevel.current_trio_token())
            found.put(made)
            await ended.wait()

    thread = Thread(target=trio.run, args=(run,))
    thread.start()
    try:
        yield found.get(timeout=30)
    finally:
        trio.from_thread.run_sync(ended.set, trio_token=token.get(timeout=30))
        thread.join()


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were opened in the browser, which follows redirections."""
    opened: list[str] = []

    def visit(url: str) -> bool:
        where = httpx2.get(url, trust_env=False).headers["location"]
        opened.append(where)
        for address in (where.replace("=", "=0"), where):  # another page may know the port, but not the state
            assert "close this page" in httpx2.get(address, trust_env=False).text
        return True

    monkeypatch.setattr(webbrowser, "open", visit)
    return opened


def configure(data_dir: Path, issuer: Issuer, more: str = "") -> None:
    section = f'[sign_in.home]\nissuer = "{issuer.url}"\nclient_id = "{CLIENT}"\nclient_secret_env = "AT_HOME"\n{more}'
    (data_dir / "pattern.toml").write_text(section)


def test_a_browser_signs_in(
    ann: Pattern, data_dir: Path, issuer: Issuer, visited: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AT_HOME", CLIENT_SECRET)
    configure(data_dir, issuer)
    assert f"identities at home ({issuer.url})" in ann("doctor").out
    assert ann("login").code == ann("login", "ann", "--provider", "home").code == 2
    assert "It has: home" in ann("login", "--provider", "work").err
    refused = ann("login", "--provider", "home")
    assert (refused.code, "identity link home" in refused.err) == (1, True)
    assert ann("login", "ann", stdin=f"{SECRET}\n").code == 0
    assert ann("identity", "link", "home", stdin="wrong horse\n").code == 1
    linked = ann("identity", "link", "home", stdin=f"{SECRET}\n")
    assert linked.out == f"Linked {issuer.url}#ann-at-home to ann.\n"
    assert ann("logout").code == 0
    assert ann("login", "--provider", "home").out == f"Signed in to {data_dir} as ann.\n"
    (row,) = ann("identity", "list", "--json").json
    assert (row["provider"], row["provider_id"]) == ("home", f"{issuer.url}#ann-at-home")
    assert ann("identity", "unlink", row["id"][:16]).code == 0
    assert ann("identity", "list", "--json").json == []
    assert len({where.partition("?")[0] for where in visited}) == len(visited)  # a port of each


def test_an_app_password_signs_in(ann: Pattern, data_dir: Path, issuer: Issuer) -> None:
    (data_dir / "pattern.toml").write_text(f'[sign_in.sky]\natproto_url = "{issuer.url}"\n')
    assert f"identities at sky ({issuer.url})" in ann("doctor").out
    account = f"{HANDLE}\n{APP_PASSWORD}\n"
    assert ann("login", "ann", stdin=f"{SECRET}\n").code == 0
    linked = ann("identity", "link", "sky", stdin=f"{SECRET}\n{account}")
    assert linked.out == f"Linked {issuer.url}#ann-at-home to ann.\n", linked
    assert ann("logout").code == 0
    assert ann("login", "--provider", "sky", stdin=account).out == f"Signed in to {data_dir} as ann.\n"


def test_a_provider_may_refuse(ann: Pattern, data_dir: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AT_HOME", CLIENT_SECRET)
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    configure(data_dir, issuer, f'redirect_url = "http://127.0.0.1:{port}/back"\n')

    def refuse(url: str) -> bool:
        back = httpx2.URL(httpx2.get(url, trust_env=False).headers["location"])
        assert (back.port, back.path) == (port, "/back")
        refused = {"state": back.params["state"], "error": "access_denied", "error_description": "Not today"}
        return httpx2.get(back.copy_with(params=refused), trust_env=False).is_success

    monkeypatch.setattr(webbrowser, "open", refuse)
    refused = ann("login", "--provider", "home")
    assert "provider home refused: Not today" in refused.err, refused
    assert refused.code == 1


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
