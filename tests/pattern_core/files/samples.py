"""Files of each format, made small and by hand, and a folder's database to read them into."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from docx import Document
from pypdf import PdfReader, PdfWriter

from pattern_core.files.disk import Walk
from pattern_core.files.folders import Folders, IndexReport, Read
from pattern_core.ids import Ids, seeded_randomness
from pattern_core.remote_files import scan_remote
from pattern_core.testing import StoppedClock
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_core.web.policy import SourceSettings
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import FolderAccess, PathType
from pattern_db.tables import files, passages
from pattern_db.tables.files import FileRow
from pattern_db.tables.folders import FolderRow
from pattern_db.tables.passages import PassageRow

ADA, BOB = "agt_ada", "agt_bob"


def pdf_of(pages: Sequence[str]) -> bytes:
    """A PDF with these pages, each a text of single lines. Source: ISO 32000-1, 7.5 (file structure), 9.4 (text)."""
    objects = ["<</Type/Catalog/Pages 2 0 R>>", ""]
    kids = []
    for text in pages:
        drawn = "".join(f"({line}) Tj T* " for line in text.split("\n")) if text else ""
        stream = f"BT /F1 12 Tf 14 TL 72 720 Td {drawn}ET"
        objects.append(f"<</Length {len(stream)}>>\nstream\n{stream}\nendstream")
        objects.append(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1<</Type/Font/Subtype/Type1"
            f"/BaseFont/Helvetica>>>>>>/Contents {len(objects)} 0 R>>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<</Type/Pages/Kids[{' '.join(kids)}]/Count {len(kids)}>>"
    data, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    tail = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<</Size {len(objects) + 1}/Root 1 0 R>>"
    return data + f"{tail}\nstartxref\n{len(data)}\n%%EOF\n".encode()


def locked(pdf: bytes) -> bytes:
    """The same PDF behind a password."""
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf)))
    writer.encrypt("secret", algorithm="RC4-128")
    target = io.BytesIO()
    writer.write(target)
    return target.getvalue()


def docx_of(*paragraphs: tuple[str, str], table: Sequence[Sequence[str]] = ()) -> bytes:
    """A Word document of (style, text), and a table after them."""
    document = Document()
    for style, text in paragraphs:
        document.add_paragraph(text, style=style)
    if table:
        made = document.add_table(rows=0, cols=len(table[0]))
        for row in table:
            for cell, text in zip(made.add_row().cells, row, strict=True):
                cell.text = text
    target = io.BytesIO()
    document.save(target)
    return target.getvalue()


def bomb(size: int) -> bytes:
    """A small archive that unfolds to `size` bytes."""
    target = io.BytesIO()
    with (
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("word/document.xml", "w", force_zip64=True) as part,
    ):
        for _ in range(size // 2**20):
            part.write(b" " * 2**20)
    return target.getvalue()


@dataclass
class Shelf:
    """Folders over a database with the agents ada and bob."""

    database: Database
    clock: StoppedClock = field(default_factory=lambda: StoppedClock(1_900_000_000_000))
    changes: int = 0  # how often passages were stored or removed
    settings: SourceSettings = field(default_factory=SourceSettings)  # what remote folders may reach

    def __post_init__(self) -> None:
        ids = Ids(self.clock, seeded_randomness(3))
        self.storage = Storage(database=self.database, commit=self._commit, clock=self.clock, ids=ids)
        self.folders = Folders(self.storage, self._scan, interval_s=1_000, on_change=self._count)

    async def _commit(self, work: UnitOfWork) -> None:
        raise AssertionError("folders store without a unit of work")

    async def _scan(self, address: str) -> tuple[Walk, Read]:
        return await scan_remote(self.settings, self.clock, address)

    def _count(self) -> None:
        self.changes += 1

    async def local(self, root: Path, name: str = "notes", access: FolderAccess | None = None) -> str:
        """A folder of a directory, attached to ada if `access` is given; its id."""
        row = await self.folders.create(name, path_type=PathType.LOCAL, embedding_model="m", path=str(root.resolve()))
        return await self._attached(row, access)

    async def virtual(self, name: str = "papers", access: FolderAccess | None = None) -> str:
        """A folder to fill, attached to ada if `access` is given; its id."""
        return await self._attached(await self.folders.create(name, embedding_model="m"), access)

    async def remote(self, address: str, name: str = "cloud", access: FolderAccess | None = None) -> str:
        """A folder of another machine, attached to ada if `access` is given; its id."""
        row = await self.folders.create(name, path_type=PathType.REMOTE, embedding_model="m", path=address)
        return await self._attached(row, access)

    async def _attached(self, row: FolderRow, access: FolderAccess | None) -> str:
        if access is not None:
            await self.folders.attach(row.id, ADA, access)
        return row.id

    async def index(self, folder: str = "notes", *, again: bool = False) -> IndexReport:
        return await self.folders.index(folder, again=again)

    async def rows(self, folder: str = "notes") -> dict[str, FileRow]:
        """The folder's files by name."""
        return {row.name: row for row in await self.folders.files(folder, limit=1_000)}

    async def passages(self, name: str, folder: str = "notes") -> list[PassageRow]:
        """The passages of a file."""
        folder_id = (await self.folders.get(folder)).id

        def read(connection: Connection) -> list[PassageRow]:
            return passages.of_file(connection, files.find(connection, folder_id, name).id)

        return await self.database.read(read)
