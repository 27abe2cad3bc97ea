from __future__ import annotations
from typing import Any
import httpx2
import pytest
from pattern_core.testing.model import ScriptedProvider, calls, says
from tests.pattern_server.place import Place


async def test_smoke(home: Place, scripted: ScriptedProvider) -> None:
    scripted._script = iter([calls("recall", {"op": "search", "query": "x"}, text="Reading."), says("Done.")])
    async with httpx2.AsyncClient(base_url=home.url, headers=dict(home.admin.headers), trust_env=False) as client:
        a = await client.post("/api/chat", json={"message": "hello"})
        print(a.status_code, a.text, a.headers)
        s = a.json()["sessionId"]
        for path in (f"/api/stream/{s}", f"/api/session/{s}", f"/api/session/{s}/messages", "/api/sessions", "/api/session/x", "/api/session/x/messages", "/api/stream/x", "/api/sessions?limit=abc"):
            a = await client.get(path)
            print(path, a.status_code, a.text)
        for path in (f"/api/stop/{s}", "/api/stop/x", "/api/chat/x"):
            a = await client.post(path, json={"message": ""} )
            print(path, a.status_code, a.text)
    assert 0
