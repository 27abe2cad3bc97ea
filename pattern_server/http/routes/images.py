"""The images that messages show."""

from __future__ import annotations

from fastapi import Response

from pattern_core.images import read
from pattern_server.http.routing import MayRead, Router, Server

router = Router(prefix="/constellations/{c}/images", tags=["messages"])

# What a digest names never changes. The bytes come from people, so a browser is to do nothing with them but show them.
_HEADERS = {"cache-control": "private, max-age=31536000, immutable", "content-security-policy": "default-src 'none'"}


@router.get("/{digest}", response_class=Response)
async def show(c: str, digest: str, server: Server, caller: MayRead) -> Response:
    """The bytes of an image; its `digest` stands in the `parts` of the message that shows it."""
    async with server.constellations.use(caller, c) as constellation:
        image = await constellation.database.read(read, digest)
    return Response(image.data, media_type=image.media_type, headers=_HEADERS)
