"""How far texts have become vectors, and going over to another model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from pattern_core.embeddings.embedding_queue import EmbeddingQueue, Progress
from pattern_db.enums import SearchKind
from pattern_server.http.bodies import Told
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/embeddings", tags=["embeddings"])


class ModelTold(Told):
    """What makes vectors. Those of different fingerprints are never compared."""

    provider: str
    model: str
    dimension: int
    fingerprint: str


class IndexTold(ModelTold):
    """All vectors of one model; `completed_at` is when every text had one for the first time."""

    created_at: str
    completed_at: str | None


class RefusalTold(Told):
    """A text that the model refuses to embed, at least in part, and its reason. Words find it all the same."""

    kind: SearchKind
    ref: str
    reason: str


class EmbeddingsTold(Told):
    """How far embedding has got: `done` of `total` texts. Search answers from `active`; `building` takes its place.

    `waiting`: the model does not answer and is asked again. `unavailable`: something must be installed, configured or
    decided first. `reason` says what. `skipped` of those that are done were refused by the model; `refusals` are the
    first of them.
    """

    state: Literal["idle", "working", "waiting", "unavailable"]
    reason: str | None
    done: int
    total: int
    skipped: int
    refusals: list[RefusalTold]
    model: str | None
    switch_needed: bool
    configured: ModelTold | None
    active: IndexTold | None
    building: IndexTold | None


@router.get("", response_model=EmbeddingsTold)
async def status(c: str, server: Server, caller: MayRead) -> Progress:
    """How many texts have vectors, of which model, and what holds it up."""
    async with server.constellations.use(caller, c) as constellation:
        return await constellation.embeddings.progress()


@router.post("/switch", response_model=EmbeddingsTold, status_code=202)
async def switch(c: str, server: Server, caller: MayWrite) -> Progress:
    """Embed every text by the configured model. Search goes on with the old vectors until the new ones are complete."""
    async with server.constellations.use(caller, c) as constellation:
        return await _after(constellation.embeddings, constellation.embeddings.start_switch)


@router.delete("/switch", response_model=EmbeddingsTold)
async def cancel(c: str, server: Server, caller: MayWrite) -> Progress:
    """Give up a switch that is under way; the old vectors stay."""
    async with server.constellations.use(caller, c) as constellation:
        return await _after(constellation.embeddings, constellation.embeddings.cancel_switch)


@router.post("/rebuild", response_model=EmbeddingsTold, status_code=202)
async def rebuild(c: str, server: Server, caller: MayWrite) -> Progress:
    """Look at every text again, and embed those whose vectors are not up to date."""
    async with server.constellations.use(caller, c) as constellation:
        return await _after(constellation.embeddings, constellation.embeddings.rebuild)


async def _after(queue: EmbeddingQueue, act: Callable[[], Awaitable[object]]) -> Progress:
    await act()
    return await queue.progress()
