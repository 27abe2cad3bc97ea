"""Questions to people over HTTP: listed, answered once, and then done."""

from __future__ import annotations

from pattern_core.memory.edits.edit import AppendText
from tests.pattern_server.place import Place

HERE = "/constellations/home/approvals"


async def asked(place: Place, *texts: str) -> list[str]:
    """An agent that wants to add each text to a block of its partner's; the ids of the questions, newest first."""
    c = await place.constellation()
    await place.admin.patch("/constellations/home/agents/ada/memory/human", json={"permission": "partner"})
    async with place.parts.state.supervisor.use(c) as constellation:
        ada = await constellation.roster.get("ada")
        for text in texts:
            edit = AppendText(text=text)
            await constellation.memory.edit(ada.id, "human", edit, author=f"agent:{ada.id}")
    return [row["id"] for row in (await place.admin.get(HERE)).json()["items"]]


async def test_a_yes_changes_the_block_once(place: Place) -> None:
    [question] = await asked(place, "Likes tea.")
    shown = (await place.admin.get(f"{HERE}/{question}")).json()
    assert (shown["kind"], shown["status"], shown["audience"]) == ("memory", "pending", "partner")
    assert shown["request"]["edit"]["text"] == "Likes tea."
    answer = await place.admin.post(f"{HERE}/{question}", json={"decision": "approve", "scope": "once"})
    assert (answer.status_code, answer.json()["status"]) == (200, "approved")
    assert answer.json()["decided_by"].startswith("user:")
    block = (await place.admin.get("/constellations/home/agents/ada/memory/human")).json()
    assert block["content"] == "Likes tea."
    again = await place.admin.post(f"{HERE}/{question}", json={"decision": "deny"})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert (await place.admin.get(HERE)).json()["items"] == []


async def test_lists_by_status_and_pages(place: Place) -> None:
    newest, _middle, oldest = await asked(place, "a", "b", "c")
    await place.admin.post(f"{HERE}/{newest}", json={"decision": "deny"})
    page = (await place.admin.get(HERE, params={"limit": 1, "status": "all"})).json()
    assert [row["status"] for row in page["items"]] == ["denied"]
    rest = (await place.admin.get(HERE, params={"status": "all", "cursor": page["next_cursor"]})).json()
    assert [row["id"] for row in rest["items"]][-1] == oldest
    assert [row["status"] for row in (await place.admin.get(HERE, params={"status": "denied"})).json()["items"]] == [
        "denied"
    ]


async def test_what_is_no_answer_is_refused(place: Place) -> None:
    [question] = await asked(place, "a")
    for body in ({}, {"decision": "maybe"}, {"decision": "approve", "scope": "forever"}):
        assert (await place.admin.post(f"{HERE}/{question}", json=body)).status_code == 422
    assert (await place.admin.post(f"{HERE}/apr_nowhere", json={"decision": "deny"})).status_code == 404
