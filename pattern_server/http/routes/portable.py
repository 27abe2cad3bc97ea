"""Archives: constellations, agents and groups as files for other servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import trio
from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import BeforeValidator, Field

from pattern_core.errors import InvalidInput
from pattern_core.legacy.review import Action, Resolution
from pattern_core.portable import VERSION, ArchiveImport, Format, Kind, Manifest, list_imports, verify
from pattern_db.merging import Policy
from pattern_server import portable
from pattern_server.constellations import Copy
from pattern_server.http.bodies import PagedTexts, RequestModel, answer_of, fields_with, file_here, page_of, streamed
from pattern_server.http.routes.constellations import CONSTELLATION, answer_made
from pattern_server.http.routing import MayAdminister, MayWrite, Router, Server, ToRead

router = Router(prefix="/constellations", tags=["constellations"])

MANIFEST = answer_of(Manifest, "format version root kind name exported_at schema_version rows blocks bytes cut")
REPORT = answer_of(
    ArchiveImport,
    "id imported_at source_file source_format source_version issues_found issues_resolved audit_log",
    source_format=str | None,
    source_version=Annotated[int | None, BeforeValidator(lambda stored: stored or None)],
)
EXPORT = answer_of(Copy, "path size sha256", "Export", manifest=MANIFEST)
CHECKED = answer_of(Manifest, " ".join(MANIFEST.model_fields), "CheckedArchive", report=REPORT | None)
IMPORTED = answer_of(CONSTELLATION, " ".join(CONSTELLATION.model_fields), "Imported", report=REPORT, is_replay=bool)
_CAR = "application/vnd.ipld.car"
_FILE: dict[int | str, Any] = {200: {"content": {_CAR: {"schema": {"type": "string", "format": "binary"}}}}}


class ExportRequest(RequestModel):
    """What to export: the whole constellation, or the agent or group with this name or id."""

    kind: Kind = "constellation"
    name: str | None = None
    format: Format = "car"
    version: Literal[3, 4] = 4


class IssueResolution(RequestModel):
    """A decision about an issue of an archive of version 1 or 2."""

    issue_id: str
    action: Action
    target_agent: str | None = None
    target: str | None = None
    new_content: str | None = None
    parts: Sequence[str] = ()


class ImportRequest(RequestModel):
    """The archive, by its path on the server's machine; and the name of the new constellation, by default the archive's
    own, or the `constellation` (id or name) that it joins. `resolutions` decide about issues that a check lists.
    """

    file: str
    name: str | None = None
    constellation: str | None = None
    policy: Policy = "refuse"
    resolutions: Sequence[IssueResolution] = ()

    def asked(self) -> portable.ImportSpec:
        """Return what is to be imported."""
        if self.constellation is not None and self.name is not None:
            raise InvalidInput("`name` is that of a new constellation; send it or `constellation`, not both")
        return portable.ImportSpec(
            file=file_here(self.file),
            name=self.name,
            into=self.constellation,
            policy=self.policy,
            resolutions=[Resolution(**one.model_dump()) for one in self.resolutions],
        )


class MergeRequest(RequestModel):
    """The constellation that joins (id or name). A `dry_run` changes nothing."""

    source: str = Field(alias="from")
    dry_run: bool = False


@router.post("/{c}/export", status_code=201, response_model=EXPORT)
async def export(c: str, body: ExportRequest, server: Server, caller: MayWrite) -> object:
    """Export an archive.

    Write an archive of the constellation, or of an agent or group with its members, into the constellation's folder
    `exports`, while it works. Keys, tokens, consent and what turns did step by step stay behind. Version 3 is for the
    original system, the format `letta` an agent file of Letta; `cut` counts what these have no records for.
    """
    if (body.kind == "constellation") != (body.name is None):
        raise InvalidInput("`name` names the agent or group; leave it out for the whole constellation, else send it")
    version = body.version if body.format == "car" else None
    copy, manifest = await portable.export(server.constellations, caller, c, body.kind, body.name, version)
    return fields_with(copy, manifest=manifest)


@router.get("/{c}/exports/{file}", response_class=StreamingResponse, responses=_FILE)
async def download(c: str, file: str, server: Server, caller: MayWrite) -> StreamingResponse:
    """Download an archive.

    Return an archive that was exported before, by the name of its file.
    """
    path = await portable.exported(server.constellations, caller, c, file)
    return streamed(path, _CAR if path.suffix == portable.SUFFIX else "application/json")


@router.post("/import", status_code=201, response_model=IMPORTED)
async def import_archive(body: ImportRequest, server: Server, caller: MayAdminister, response: Response) -> object:
    """Import an archive.

    Create a constellation from an archive on the server's machine, or let what is in it join a constellation that
    exists and is not busy: all of it, or nothing. Its schedules are paused. The same archive again changes nothing.
    `policy` decides about names that are in use: `refuse` the import, `rename` what arrives, or `merge` it with what is
    there. Agent files of Letta are imported, too. Only for administrators.
    """
    done = await portable.import_archive(server.constellations, caller, body.asked())
    assert done.constellation is not None
    return {**answer_made(server, done.constellation, response), "report": done.report, "is_replay": done.is_replay}


@router.post("/import/check", response_model=CHECKED)
async def check_archive(body: ImportRequest, server: Server, caller: MayAdminister) -> Any:
    """Check an archive.

    Read the whole archive and return what it says of itself; and what an import into `constellation` would do, or of an
    archive of version 1 to 3, with its issues. Nothing is imported. Only for administrators.
    """
    asked = body.asked()
    manifest, _ = await trio.to_thread.run_sync(verify, asked.file)
    report = None
    if asked.into is not None or manifest.version != VERSION:
        report = (await portable.import_archive(server.constellations, caller, asked, dry_run=True)).report
    return fields_with(manifest, report=report)


@router.post("/{c}/merge", response_model=IMPORTED)
async def merge(c: str, body: MergeRequest, server: Server, caller: MayWrite, response: Response) -> object:
    """Merge another constellation into this one, such as a fork of it; the other stays as it is.

    Messages, entries of the archive and all else that only the other has join at their places; what both have stays as
    it is here. A memory block that both have from before a fork gets the versions of both, with their authors; others
    with a label that is in use get a new one. Merging the same again changes nothing. This one must not be busy.
    """
    done = await portable.merge_constellations(server.constellations, caller, body.source, c, dry_run=body.dry_run)
    assert done.constellation is not None
    return {**answer_made(server, done.constellation, response), "report": done.report, "is_replay": done.is_replay}


@router.get("/{c}/imports", response_model=page_of(REPORT))
async def imports(home: ToRead, paging: PagedTexts) -> object:
    """List the archives that were imported, newest first, with what was decided."""
    found = await home.constellation.database.read(list_imports, paging.one_more, before=paging.after)
    return paging.cut(found, lambda row: row.id)
