"""Where services post their events. Each request proves with a signature or a token that it is from its service."""

from __future__ import annotations

from fastapi import Request
from pydantic import BaseModel

from pattern_server.http.routing import Router

router = Router(base="", prefix="/hooks", tags=["sources"])


class HookAnswer(BaseModel):
    """Whether the event is new; one that was known is not delivered again."""

    new: bool


@router.post("/{account}", status_code=202)
async def receive(account: str, request: Request) -> HookAnswer:
    """Receive an event of a source of the kind `webhook`; it is stored before the answer is sent."""
    return HookAnswer(new=request.state.new)  # the border has proved and stored it
