"""The tour's stations about memory: whose change it was, consent, and finding things by what they mean."""

from __future__ import annotations

import trio

from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.demo_tour import Tour, claim, exchange

VECTORS_WAIT_S = 20.0  # a model that is installed is loaded meanwhile, on a slow machine too
LOOK_EVERY_S = 0.1
SHOWN_CHARS = 74
HITS = 2

YOURS = "The spare key is under the third flower pot."
HERS = "Remember that the cat is called Fig."
RULE = "Remember that the children may stay up until nine."
KEPT = "Winter 2024: a frozen pipe burst in the cellar; the plumber Ines Duarte mended it within an hour."
FILE = "boiler.md"
MANUAL = """# The boiler

The pressure should be between 1.0 and 1.5 bar. If it drops, open the blue valve slowly.

Once a year the burner is cleaned.
"""
# The first shares words with what it is to find, the second none.
BY_WORDS, BY_MEANING = "frozen pipe", "flooded basement"

_AGENT = path("constellations", "home", "agents", "ada")
_HUMAN = f"{_AGENT}/memory/human"
_SEARCH = path("constellations", "home", "search")
_APPROVALS = path("constellations", "home", "approvals")
_FOLDERS = path("constellations", "home", "folders")


async def explain(tour: Tour) -> None:
    """Two authors change one block, and one of them changes their mind."""
    tour.title("3. Every change has an author and a cause, and can be taken back alone")
    async with tour.child.api() as api:
        before = await api.get(_HUMAN)
        written = {"content": f"{before['content']}{YOURS}\n", "base_version": before["version"]}
        await api.call("PUT", _HUMAN, body=written)
        tour.say(f"you write into the block:  {YOURS}")
        await exchange(tour, api, HERS)
        undone = await api.call("POST", f"{_HUMAN}/undo", body={})
        tour.say("pattern memory undo human -c home -a ada: your line goes, what ada wrote after it stays")
        content = undone["block"]["content"]
        claim(YOURS not in content, "an undone line is gone")
        claim("Fig" in content, "undoing one author's change leaves the other's")
        versions = (await api.get(f"{_HUMAN}/history", limit=3))["items"]
        lines = (await api.get(f"{_HUMAN}/blame"))["lines"]
    for one in versions:
        author = str(one["author"]).partition(":")[0]
        tour.say(f"│ version {one['version']}  by {author:<5}  {str(one['summary'])[:50]}")
    claim([one["kind"] for one in versions] == ["undo", "edit", "edit"], "the undo is a new version; nothing is erased")
    (line,) = [one for one in lines if "Fig" in one["text"]]
    claim(line["author"].startswith("agent:") and line["cause"].get("turn"), "a line names its author and its turn")
    tour.say(f"the line about Fig is ada's, version {line['version']}, from the turn {line['cause']['turn']}")


async def consent(tour: Tour) -> None:
    """An agent that may change a block only if a person agrees."""
    tour.title("4. What an agent may not do alone, it asks for")
    async with tour.child.api() as api:
        block = {"label": "rules", "content": "", "permission": "human", "description": "The rules of this house."}
        body = {"name": "bob", "model_provider": "embedded", "memory": [block]}
        await api.call("POST", path("constellations", "home", "agents"), body=body)
        rules = path("constellations", "home", "agents", "bob", "memory", "rules")
        await exchange(tour, api, RULE, agent="bob")
        claim((await api.get(rules))["content"] == "", "nothing changes before a person agreed")
        (asked,) = (await api.get(_APPROVALS, status="pending"))["items"]
        wish = f"bob wants to {asked['request']['operation']} in the block {asked['request']['label']}"
        tour.say(f"pattern approvals list -c home: {wish}")
        await api.call("POST", f"{_APPROVALS}/{asked['id']}", body={"decision": "approve"})
        changed = await api.get(rules)
        claim(changed["content"].count("until nine") == 1, "what was agreed to is done, once")
        waiting = (await api.get(_APPROVALS, status="pending"))["items"]
        claim(not waiting, "an answered question is not asked again")
    tour.say("pattern approvals approve …: done, exactly once, with your name in the block's history")
    tour.say(f"│ {changed['content'].strip()}")


async def find(tour: Tour) -> None:
    """Archive, a file, and one search over everything, by meaning where there is a model for it."""
    tour.title("5. It finds what was said, kept and filed")
    async with tour.child.api() as api:
        await api.call("POST", f"{_AGENT}/archival", body={"content": KEPT, "tags": ["house"]})
        await api.call("POST", _FOLDERS, body={"name": "manuals", "description": "How things in the house work."})
        await api.put_bytes(f"{_FOLDERS}/manuals/files/{FILE}", MANUAL.encode())
        await api.call("POST", f"{_FOLDERS}/manuals/attachments", body={"agent": "ada"})
        tour.say(f"put into ada's archive: a note about a pipe; into a folder that she may read: {FILE}")
        answer = await exchange(tour, api, "What should the pressure of the boiler be?")
        claim("1.5 bar" in answer, "the agent answers from the file")
        hits = (await _search(tour, api, "walnuts"))["hits"]
        claim(any("allergic to walnuts" in hit["content"] for hit in hits), "the search finds the walnuts")
        hits = (await _search(tour, api, BY_WORDS))["hits"]
        claim("Ines Duarte" in hits[0]["content"], "the search finds what was archived")
        await _find_by_meaning(tour, api)


async def _find_by_meaning(tour: Tour, api: Api) -> None:
    state = await _embedded(api)
    if state["state"] == "unavailable":
        tour.say(f"by words alone, since there is no model for meaning here: {state['reason']}")
        return
    tour.say(f"and by meaning ({state['model']}), with no word in common:")
    answer = await _search(tour, api, BY_MEANING)
    if answer["notice"]:
        tour.say(answer["notice"])
        return
    claim("Ines Duarte" in answer["hits"][0]["content"], f"{BY_MEANING!r} finds the burst pipe")


async def _search(tour: Tour, api: Api, query: str) -> Json:
    answer: Json = await api.call("POST", _SEARCH, body={"query": query, "limit": HITS})
    tour.say(f"pattern search -c home {query!r}")
    for hit in answer["hits"]:
        text = " ".join(str(hit["content"]).split())
        tour.say(f"{hit['score']:5.2f}  {hit['kind']:<9} {text[:SHOWN_CHARS]}")
    return answer


async def _embedded(api: Api) -> Json:
    """How far texts have become vectors, once all have or it is known that they will not soon."""
    where = path("constellations", "home", "embeddings")
    state: Json = await api.get(where)
    with trio.move_on_after(VECTORS_WAIT_S):
        while state["state"] != "unavailable" and state["done"] < state["total"]:
            await trio.sleep(LOOK_EVERY_S)
            state = await api.get(where)
    return state
