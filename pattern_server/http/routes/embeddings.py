"""How far texts have become vectors, and going over to another model."""

from __future__ import annotations

from pattern_core.embeddings.embedding_queue import Progress, VectorIndex
from pattern_server.http.bodies import answer_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/embeddings", tags=["embeddings"])

_INDEX = answer_of(VectorIndex, "provider model dimension fingerprint created_at completed_at")
# Search answers from `active`; `building` takes its place.
PROGRESS = answer_of(
    Progress,
    "state reason done total skipped refusals model switch_needed configured active building",
    active=_INDEX | None,
    building=_INDEX | None,
)


@router.get("", response_model=PROGRESS)
async def status(home: ToRead) -> Progress:
    """How many texts have vectors, of which model, and what holds it up."""
    return await home.constellation.embeddings.progress()


@router.post("/switch", response_model=PROGRESS, status_code=202)
async def switch(home: ToWrite) -> Progress:
    """Embed every text by the configured model; search uses the old vectors until the new ones are complete."""
    await home.constellation.embeddings.start_switch()
    return await home.constellation.embeddings.progress()


@router.delete("/switch", response_model=PROGRESS)
async def cancel(home: ToWrite) -> Progress:
    """Give up a switch that is under way; the old vectors stay."""
    await home.constellation.embeddings.cancel_switch()
    return await home.constellation.embeddings.progress()


@router.post("/rebuild", response_model=PROGRESS, status_code=202)
async def rebuild(home: ToWrite) -> Progress:
    """Look at every text again, and embed those whose vectors are not up to date."""
    await home.constellation.embeddings.rebuild()
    return await home.constellation.embeddings.progress()
