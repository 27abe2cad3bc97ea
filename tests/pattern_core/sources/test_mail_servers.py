"""Mail with servers of others: dovecot and aiosmtpd, where they are installed."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import socket
from collections.abc import AsyncIterator
from email import message_from_bytes, policy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.sources.source import Arrivals, Outgoing
from pattern_core.testing.mail_server import PASSWORD, USER, MailServer
from tests.pattern_core.sources.test_mail import ANNA, KIND, account, polls
from tests.support import until

CONFIGURATION = """
protocols = imap
listen = 127.0.0.1
base_dir = {folder}/run
state_dir = {folder}/state
log_path = {folder}/log
default_internal_user = {user}
default_internal_group = {group}
default_login_user = {user}
first_valid_uid = 1
first_valid_gid = 1
ssl = no
mail_location = maildir:{folder}/mails
passdb {{
  driver = passwd-file
  args = scheme=PLAIN username_format=%u {folder}/passwords
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={folder}/home
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service anvil {{
  chroot =
}}
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Dovecot:
    """A running dovecot with one inbox, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.imap_port = free_port()
        self.smtp_port = self.imap_port  # which this test does not use
        self._count = 0

    def put(self, mail: bytes) -> None:
        """Deliver a mail, as the mail server of a machine does."""
        self._count += 1
        place = self.folder / "mails" / "tmp" / f"{self._count}.test"
        place.write_bytes(mail)
        shutil.chown(place, *self.owner)
        place.rename(self.folder / "mails" / "new" / place.name)

    @property
    def owner(self) -> tuple[int, int]:
        """The user and group of the inbox: dovecot refuses to be root there."""
        entry = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        return entry.pw_uid, entry.pw_gid


@pytest.fixture
async def dovecot() -> AsyncIterator[Dovecot]:
    program = shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("dovecot is not installed; apt-get install dovecot-imapd")
    with TemporaryDirectory(dir="/tmp") as name:  # short, as the names of sockets must be
        server = Dovecot(Path(name))
        server.folder.chmod(0o755)
        uid, gid = server.owner
        for part in ("mails/new", "mails/cur", "mails/tmp", "home"):
            (server.folder / part).mkdir(parents=True)
        for made in server.folder.rglob("*"):
            shutil.chown(made, uid, gid)
        user = pwd.getpwuid(uid).pw_name
        more = {"user": user, "group": grp.getgrgid(gid).gr_name, "uid": uid, "gid": gid}
        (server.folder / "passwords").write_text(f"{USER}:{PASSWORD}\n")
        config = server.folder / "dovecot.conf"
        config.write_text(CONFIGURATION.format(folder=server.folder, port=server.imap_port, **more))
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.run_process, [program, "-F", "-c", str(config)])
            await until(lambda: (server.folder / "run" / "master.pid").exists())
            yield server
            nursery.cancel_scope.cancel()


async def test_dovecot_is_read_and_notifies_within_two_seconds(dovecot: Any) -> None:
    stand_in = MailServer()  # writes mails
    stand_in.arrives("old")
    dovecot.put(stand_in._inbox[0])
    first = await polls(dovecot)
    assert [(one.text, one.is_old) for one in first.events] == [("old", True)]
    found: list[Arrivals] = []

    async def receive(arrived: Arrivals) -> None:
        found.append(arrived)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(account(dovecot, first.cursor).call, KIND.listen, receive)
        await until(lambda: found)
        await trio.sleep(0.5)
        waits = list[float]()
        for text in ("one", "two", "three"):
            stand_in.arrives(text)
            dovecot.put(stand_in._inbox[-1])
            began = trio.current_time()
            with trio.fail_after(60):
                while [event.text for event in found[-1].events] != [text]:
                    await trio.sleep(0.01)
            waits.append(trio.current_time() - began)
        assert min(waits) < 2  # the others, when the machine has something else to do
        nursery.cancel_scope.cancel()
    assert len(list((dovecot.folder / "mails" / "cur").glob("*S"))) == 0  # nothing was marked as read


async def test_dovecot_gives_attachments_and_refuses_a_wrong_password(dovecot: Any) -> None:
    first = await polls(dovecot)
    dovecot.put(
        b"From: a@example.org\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
        b"--b\r\n\r\nSee this\r\n--b\r\nContent-Disposition: attachment; filename=plan.pdf\r\n"
        b"Content-Transfer-Encoding: base64\r\n\r\nQUJD\r\n--b--\r\n"
    )
    [event] = (await polls(dovecot, first.cursor)).events
    assert await account(dovecot).call(KIND.download, event.files[0].ref) == b"ABC"
    validity, rest = event.files[0].ref.split(" ", 1)
    with pytest.raises(InvalidInput, match="another number"):
        await account(dovecot).call(KIND.download, f"{int(validity) + 1} {rest}")
    with pytest.raises(PermissionDenied, match="is the password right"):
        await account(dovecot, password="another one").call(KIND.poll)


class Accepting:
    """Keeps what aiosmtpd accepts."""

    def __init__(self) -> None:
        self.mails: list[tuple[str, list[str], bytes]] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - its name there
        self.mails.append((envelope.mail_from, envelope.rcpt_tos, envelope.content))
        return "250 queued"


@pytest.mark.filterwarnings("ignore:Requiring AUTH", "ignore:Session.login_data")  # of its own
async def test_aiosmtpd_accepts_what_is_sent() -> None:
    controllers = pytest.importorskip("aiosmtpd.controller", reason="aiosmtpd is not installed (extra `mail`)")
    smtp = pytest.importorskip("aiosmtpd.smtp", reason="as above")
    accepting = Accepting()

    def knows(_server: Any, _session: Any, _envelope: Any, _mechanism: str, given: Any) -> Any:
        is_right = given == smtp.LoginPassword(USER.encode(), PASSWORD.encode())
        return smtp.AuthResult(success=is_right, handled=False)

    where = MailServer()
    where.imap_port = where.smtp_port = free_port()
    more = {"authenticator": knows, "auth_required": True, "auth_require_tls": False}
    controller = controllers.Controller(accepting, hostname="127.0.0.1", port=where.smtp_port, **more)
    await trio.to_thread.run_sync(controller.start)
    try:
        said = Outgoing(text=". a dot\n.\nGr\u00fc\u00dfe", reply_to="x <m1@example.org> Plan", file="plan.txt")
        await KIND.send(account(where), f"{ANNA} <m1@example.org>", said, "say_1", b"ABC")
        with pytest.raises(PermissionDenied, match="does not accept the password"):
            await KIND.send(account(where, password="wrong"), f"{ANNA} <m1@x>", said, "say_2")
    finally:
        await trio.to_thread.run_sync(controller.stop)
    [(author, to, raw)] = accepting.mails
    mail = message_from_bytes(raw, policy=policy.default)
    assert (author, to, mail["In-Reply-To"]) == (USER, [ANNA], "<m1@example.org>")
    body: Any = mail.get_body()
    assert body.get_content().replace("\r\n", "\n").startswith(". a dot\n.\nGr\u00fc\u00dfe\n")
    assert [part.get_content() for part in mail.iter_attachments()] == [b"ABC"]
