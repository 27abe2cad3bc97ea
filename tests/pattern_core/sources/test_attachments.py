"""Files in chats: those that people send, within bounds, and those that an agent sends; and who is shown them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from pattern_core.errors import Unavailable
from pattern_core.files.access import AgentFiles
from pattern_core.sources import intake
from pattern_core.sources.source import FILE_BYTES_MAX, FILES_MAX, SourceEvent, SourceFile, bytes_of, multipart
from pattern_core.testing.model import calls, says
from pattern_core.testing.wire import WireRequest
from pattern_core.tools.builtin import BUILTIN
from pattern_core.web.download import Download
from pattern_db.enums import FolderAccess, PersonStatus
from pattern_db.tables import files
from tests.pattern_core.sources.rig import ANNA, Talking, talking
from tests.support import last_words, rows, until

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01"


async def shown(one: Talking, number: int) -> str:
    """What the model was asked in its question with this number, from 0."""
    await until(lambda: len(one.world.provider.requests) > number)
    return last_words(one.world.provider.requests[number])


async def kept(one: Talking) -> list[tuple[object, ...]]:
    """All files of all folders: their folders' names and their own, and their bytes."""
    sql = "SELECT f.name, n.name, content FROM folder_files n JOIN folders f ON f.id = folder_id ORDER BY n.rowid"
    return await one.world.database.read(rows, sql)


async def test_files_that_came_are_in_a_folder_of_their_chat_and_refused_ones_are_named() -> None:
    async with talking() as one:
        await one.lets_in()
        one.server.sends("../plan.md", b"# The plan\nWater the roses.", caption="Look")
        one.server.sends("plan.md", b"# Another plan")
        one.server.sends("song.mp3", b"ID3")
        one.server.sends("big.txt", b"a" * (FILE_BYTES_MAX + 1))
        one.server.sends("", PNG)
        asked = await shown(one, 0)
        [(folder, first, content), (_, second, _)] = await kept(one)
        assert (first, second, content) == ("plan.md", "plan-2.md", b"# The plan\nWater the roses.")
        assert f"Look\n[file {folder}/plan.md]\n[file {folder}/plan-2.md]\n[the file song.mp3 was not kept" in asked
        assert f"[the file big.txt was not kept: it has more than {FILE_BYTES_MAX} bytes" in asked
        assert "[image photo.jpg]" in asked
        stored = await one.world.database.read(rows, "SELECT count(*) FROM blob")
        assert stored == [(1,)]


async def test_a_file_that_cannot_be_downloaded_for_a_while_does_not_hold_up_its_message_for_ever() -> None:
    async with talking() as one:
        await one.lets_in()
        one.server.says("See this", document={"file_id": "gone", "file_name": "a.txt"})
        assert "[the file a.txt was not kept: " in await shown(one, 0)
        one.server.unable = 9
        one.server.sends("b.txt", b"b")
        while one.server.unable > 6:
            await one.world.database.write(lambda c: c.execute("UPDATE outbox SET next_at = created_at").fetchall())
            one.world.constellation.outbox.changed()
            await trio.sleep(0.01)
        assert "[the file b.txt was not kept: " in await shown(one, 1)


async def test_a_chat_keeps_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "CHAT_FILES_MAX", 1)
    async with talking() as one:
        await one.lets_in()
        one.server.sends("a.txt", b"a")
        one.server.sends("b.txt", b"b")
        assert "[the file b.txt was not kept: too many files" in await shown(one, 0)
        assert len(await kept(one)) == 1


async def test_what_one_person_sent_is_found_in_no_other_chat_but_by_a_partner() -> None:
    look = calls("file", {"op": "grep", "pattern": "roses"})
    find = calls("file", {"op": "search", "query": "roses"}, call_id="c2")
    script = [says("Thanks."), look, says("No."), find, says("No."), look, says("Yes.")]
    async with talking(*script, tools=BUILTIN) as one:
        for person, status in ((ANNA, PersonStatus.ALLOWED), ("2", PersonStatus.ALLOWED), ("3", PersonStatus.PARTNER)):
            await one.lets_in(status, person)
        one.server.sends("a.txt", b"Water the roses.")
        await one.sent(1)
        for number, author in enumerate((2, 2, 3)):
            one.server.says("What of roses?", author=author)
            await one.sent(2 + number)
        results = [str(one.world.provider.requests[number].messages[-1]) for number in (2, 4, 6)]
        assert ["Water the roses" in result for result in results] == [False, False, True]


async def test_an_agent_sends_a_file_once_behind_its_answer() -> None:
    sends = calls("send_message", {"content": "Here it is.", "file": "papers/report.txt"})
    missing = calls("send_message", {"content": "And this.", "file": "papers/none.txt"}, call_id="c2")
    async with talking(sends, missing, says("Done."), tools=BUILTIN) as one:
        await one.lets_in()
        home = one.world.constellation
        folder = await home.folders.create("papers", embedding_model="none")
        await home.folders.attach(folder.id, (await home.roster.get("ada")).id, FolderAccess.READ)
        await home.folders.put_file("papers", "report.txt", b"All is well.")
        one.server.says("The report, please")
        await one.sent(2)
        await one.idle()
        answer, file = one.server.sent
        assert answer["text"] == "Here it is.\n\nDone." and file["document"] == b"All is well."
        assert (file["text"], file["chat_id"]) == ("<report.txt>", 1)
        assert "there is no file" in str(one.world.provider.requests[2].messages[-1])


async def test_a_file_that_is_gone_when_it_is_sent_is_named() -> None:
    sends = calls("send_message", {"content": "Here it is.", "file": "papers/report.txt"})
    async with talking(sends, says("Done."), tools=BUILTIN) as one:
        await one.lets_in()
        home = one.world.constellation
        folder = await home.folders.create("papers", embedding_model="none")
        await home.folders.attach(folder.id, (await home.roster.get("ada")).id, FolderAccess.READ)
        await home.folders.put_file("papers", "report.txt", b"All is well.")
        one.server.too_many = 1  # so that the answer waits, and the file behind it
        one.server.says("The report, please")
        await until(lambda: one.server.too_many == 0)
        await until(lambda: home.outbox.is_idle)
        await home.folders.delete_file("papers", "report.txt")
        await one.world.database.write(lambda c: c.execute("UPDATE outbox SET next_at = created_at").fetchall())
        one.channels._held_until_ms.clear()
        home.outbox.changed()
        assert (await one.sent(2))[1].startswith("[report.txt could not be sent: there is no file")


async def test_the_bytes_of_a_chat_s_folder_are_those_that_came() -> None:
    async with talking() as one:
        await one.lets_in()
        one.server.sends("a.txt", b"a\r\n")
        await one.sent(1)
        [(folder, name, _content)] = await kept(one)
        access = AgentFiles(one.world.database, (await one.world.constellation.roster.get("ada")).id)
        assert await access.data(await access.locate(f"{folder}/{name}")) == b"a\r\n"
        [attached] = await access.folders()
        assert attached.access is FolderAccess.READ_WRITE
        assert await one.world.database.read(files.count, attached.folder.id) == 1


def test_an_event_has_so_many_files_and_says_of_others_that_they_were_left_out() -> None:
    sent = [SourceFile(name=f"{number}\0.txt", ref="x") for number in range(FILES_MAX + 2)]
    bounded = SourceEvent(native="1", text="Hi", files=sent).bounded
    assert len(bounded.files) == FILES_MAX and bounded.text == "Hi\n[2 more files were left out]"
    assert bounded.files[0].name == "0␀.txt"


def test_a_form_is_what_a_server_reads() -> None:
    odd: Any = ('a "b"\r\n.txt', b"--\r\n\0\xff--")
    kind, body = multipart({"chat_id": "5", "words": "ö"}, "document", *odd)
    found = WireRequest(method="POST", path="/", headers={"content-type": kind}, body=body).form()
    assert found == {"chat_id": "5", "words": "ö", "document": ("a %22b%22%0D%0A.txt", odd[1])}


def test_an_error_page_is_no_file() -> None:
    with pytest.raises(Unavailable):
        bytes_of(Download(url="http://x", status=503))
    assert bytes_of(Download(url="http://x", status=200, body=b"x")) == b"x"
