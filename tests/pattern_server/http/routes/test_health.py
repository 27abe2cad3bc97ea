"""Health, readiness, counts and the pages."""

from __future__ import annotations

import httpx2

from pattern_server.http.app import api_routes
from tests.pattern_server.place import Place


async def ask(place: Place, path: str) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as stranger:
        return await stranger.get(place.url + path)


async def test_alive_and_ready(place: Place) -> None:
    assert (await ask(place, "/healthz")).json() == {"status": "alive"}
    assert (await ask(place, "/readyz")).json() == {"status": "ready", "reasons": []}
    place.parts.state.draining.set()
    answer = await ask(place, "/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"status": "unready", "reasons": ["the server is stopping"]}
    assert (await ask(place, "/healthz")).status_code == 200


async def test_counts(place: Place) -> None:
    await place.constellation()
    await place.admin.get("/constellations/nothing")
    text = (await ask(place, "/metrics")).text
    assert 'pattern_constellations{state="awake"} 1' in text
    assert 'pattern_constellations{state="quarantined"} 0' in text
    assert 'pattern_http_responses_total{status="4xx"} 1' in text


async def test_the_description_names_every_route(place: Place) -> None:
    described = (await ask(place, "/openapi.json")).json()
    assert described["openapi"].startswith("3.")
    page = (await ask(place, "/docs")).text
    for route in api_routes():
        path = route.path.replace(":path}", "}")
        assert path in described["paths"]
        assert f"<code>{path}</code>" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "/docs" in (await ask(place, "/")).text
