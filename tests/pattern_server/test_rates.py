"""How often clients may do something: each name has its own bucket, and there are only so many names."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
import trio

from pattern_core.errors import Overloaded
from pattern_server import rates
from pattern_server.rates import Rate, RequestRates
from pattern_server.sections import HttpConfig
from tests.pattern_server.http.test_app import is_problem
from tests.pattern_server.place import API, Place, config_for, serving

SLOW = {"rate_per_address": 0.3, "rate_per_token": 0.5, "rate_per_user": 0.9, "rate_per_constellation": 0.4}


async def refused_after(client: httpx2.AsyncClient, path: str) -> int:
    """How many requests are answered before one is refused."""
    for number in range(100):
        answer = await client.get(path)
        if answer.status_code == 429:
            assert is_problem(answer, 429, "overloaded")
            assert 1 <= int(answer.headers["retry-after"]) <= 3
            return number
        assert answer.status_code == 200, answer.text
    raise AssertionError("no request was refused")


async def test_uses_come_back_one_by_one(autojump_clock: object) -> None:
    attempts = Rate(3, 10.0, "attempts")
    for _ in range(3):
        attempts.use("ann")
    with pytest.raises(Overloaded, match="too many attempts; try again in 10 s") as refused:
        attempts.use("ann")
    assert refused.value.details == {"retry_after_s": 10}
    attempts.use("bob")
    await trio.sleep(10)
    attempts.use("ann")
    with pytest.raises(Overloaded):
        attempts.use("ann")
    attempts.forget("ann")
    attempts.use("ann")


async def test_what_cannot_be_refused_is_paid_back(autojump_clock: object) -> None:
    assert Rate.per_second(0.01, "events").spend("ann", 2) == 100
    events = Rate(3, 10.0, "events")
    assert [events.spend("ann", 2), events.spend("ann", 2), events.spend("bob", 5)] == [0, 10, 20]
    with pytest.raises(Overloaded):
        events.use("ann")
    await trio.sleep(20)
    events.use("ann")


async def test_only_so_many_names_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "KNOWN_MAX", 2)
    attempts = Rate(1, 10.0, "attempts")
    for name in ("a", "b", "c", "a"):
        attempts.use(name)
    with pytest.raises(Overloaded):
        attempts.use("c")


async def test_neighbours_in_an_ipv6_network_are_one_address(autojump_clock: object) -> None:
    of_clients = RequestRates(HttpConfig(rate_per_address=0.2))
    for number in range(2):
        of_clients.use_address(f"2001:db8::{number:x}")
    with pytest.raises(Overloaded):
        of_clients.use_address("2001:db8::ffff")
    of_clients.use_address("2001:db8:0:1::1")
    assert [rates.network_of(one) for one in ("192.0.2.1", "::1", "")] == ["192.0.2.1", "::/64", ""]


@pytest.fixture
async def slow(alone: Path) -> object:
    """A server that allows few requests."""
    async with serving(config_for(alone, http=SLOW)) as place:
        yield place


async def test_a_token_a_user_and_an_address_have_rates_of_their_own(slow: Place) -> None:
    first, second = await slow.client("ann", "read"), await slow.client("ann", "write")
    async with httpx2.AsyncClient(base_url=slow.url + API, trust_env=False) as stranger:
        assert await refused_after(first, "/me") == 5
        assert await refused_after(second, "/me") == 4, "both tokens are of one user, who has 9"
        bob = await slow.client("bob", "read")
        for number in range(10):  # wrong tokens and public pages are counted together, those with a token are not
            wrong = {"authorization": f"Bearer wrong{number}"}
            answer = await stranger.get("/me", headers=wrong) if number % 2 else await stranger.get("/../../healthz")
            assert answer.status_code == ((401 if number % 2 else 200) if number < 3 else 429)
        assert (await bob.get("/me")).status_code == 200


async def test_a_constellation_has_one_rate_under_all_its_names(alone: Path) -> None:
    async with serving(config_for(alone, http={"rate_per_constellation": 0.4})) as place:
        ann = await place.client("ann", "write")
        made = (await ann.post("/constellations", json={"name": "home"})).json()
        await ann.post("/constellations", json={"name": "other"})
        assert await refused_after(ann, "/constellations/home/agents") == 5  # the first one was not known by its id
        assert await refused_after(place.admin, f"/constellations/{made['id']}/agents") == 0
        assert await refused_after(place.admin, f"/constellations/{made['id']}") == 0
        assert await refused_after(ann, "/constellations/other/agents") == 5
        assert (await ann.get("/constellations")).status_code == 200
