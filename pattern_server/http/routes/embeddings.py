"""Progress of embeddings, and switching to another embedding model."""

from __future__ import annotations

from pattern_core.embeddings.embedding_queue import Progress, VectorIndex
from pattern_server.http.bodies import answer_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/embeddings", tags=["embeddings"])

_INDEX = answer_of(VectorIndex, "provider model dimension fingerprint created_at completed_at", "EmbeddingIndex")
# Search uses `active`; `building` will replace it.
PROGRESS = answer_of(
    Progress,
    "state reason done total skipped refusals model switch_needed configured active building",
    "EmbeddingProgress",
    active=_INDEX | None,
    building=_INDEX | None,
)


@router.get("", response_model=PROGRESS)
async def get(home: ToRead) -> Progress:
    """Show the progress of embeddings: how many texts have vectors, of which model, and why work is delayed."""
    return await home.constellation.embeddings.progress()


@router.post("/switch", response_model=PROGRESS, status_code=202)
async def start_switch(home: ToWrite) -> Progress:
    """Switch to the configured model: embed every text; until then, search uses the old vectors."""
    await home.constellation.embeddings.start_switch()
    return await home.constellation.embeddings.progress()


@router.delete("/switch", response_model=PROGRESS)
async def cancel_switch(home: ToWrite) -> Progress:
    """Cancel a switch to another embedding model; the old vectors stay in use."""
    await home.constellation.embeddings.cancel_switch()
    return await home.constellation.embeddings.progress()


@router.post("/rebuild", response_model=PROGRESS, status_code=202)
async def rebuild(home: ToWrite) -> Progress:
    """Rebuild embeddings: check every text again, and embed those with missing or outdated vectors."""
    return await home.constellation.embeddings.rebuild()
