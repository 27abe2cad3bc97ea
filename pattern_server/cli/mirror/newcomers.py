"""Files that no block is known for: a new Markdown file in an agent's folder becomes a block."""

from __future__ import annotations

from collections.abc import Sequence

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import check_label
from pattern_server.cli.client import ServerFailed
from pattern_server.cli.mirror.content import Form, like
from pattern_server.cli.mirror.disk import form_at
from pattern_server.cli.mirror.names import distinct_names, plain_name
from pattern_server.cli.mirror.plan import Do, Known, Local
from pattern_server.cli.mirror.remote import Owner
from pattern_server.cli.mirror.rounds import CHANGED_MEANWHILE, Desk, is_passing


async def take_new_files(desk: Desk, owners: Sequence[Owner], taken: set[str]) -> None:
    """Make blocks of the Markdown files in these owners' folders whose paths are not `taken`.

    Raises:
        ServerFailed: the server refused what any client may ask.
        ServerUnreachable: it did not answer; whatever was made is recognised in the next round.
        OSError: the disk failed.
    """
    by_name = {owner.name: owner for owner in owners}
    by_folder = {written: by_name[name] for name, written in distinct_names(by_name).items()}
    for path in desk.disk.files():
        folder, _, file = path.partition("/")
        if path not in taken and folder in by_folder and form_at(path) is Form.TEXT:
            await _take(desk, path, by_folder[folder], file.removesuffix(f".{Form.TEXT.value}"))


async def _take(desk: Desk, path: str, owner: Owner, written: str) -> None:
    local = desk.disk.read(path)
    if desk.report.has_refused(path, local) or (local.problem is None and not (local.text or "").strip()):
        return  # an empty file is one that somebody is about to fill
    try:
        label = check_label(plain_name(written) or written)
    except InvalidInput as error:
        desk.report.refuse(path, local, error.message)
        return
    if local.problem is not None:
        desk.report.refuse(path, local, local.problem)
    elif desk.rules.is_dry:
        desk.report.done(path, Do.PUSH, "a new block")
    elif desk.looks.is_at_rest(path, None, local):
        await _create(desk, path, owner, label, local)


async def _create(desk: Desk, path: str, owner: Owner, label: str, local: Local) -> None:
    text = like(local.text or "", "\n")
    try:
        made = await desk.memory.create(owner, label, text)
    except ServerFailed as error:
        if is_passing(error):
            raise
        is_new = error.status == CHANGED_MEANWHILE and label in {b.label for b in await desk.memory.blocks(owner)}
        if is_new:  # made by somebody else a moment ago: the next round sees both
            desk.looks.is_unsettled = True
        else:
            desk.report.refuse(path, local, error.message)
        return
    desk.states.put(Known(block_id=made.id, path=path, version=made.remote.version, text=text))
    desk.report.accept(path)
    desk.report.done(path, Do.PUSH, "a new block", made.remote.version)
