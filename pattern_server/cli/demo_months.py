"""The tour's stations about agents that run for months: consent that outlives a crash, budgets, small windows."""

from __future__ import annotations

import trio

from pattern_server.cli.approvals import what_is_asked
from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.demo_tour import Tour, claim, exchange
from pattern_server.cli.why import headline, row

CODE = "the code of the garden gate is 4711."
WINDOW = 4_000
DAYS = 60
FIRST_DAY = "On the first day we planted a quince behind the greenhouse."
QUESTION = "What did we plant behind the greenhouse?"
BUDGET_TOKENS = 500
WAIT_S = 20.0
LOOK_EVERY_S = 0.05
PARTS_SHOWN = 5

_HOME = path("constellations", "home")
_AGENTS = path("constellations", "home", "agents")
_APPROVALS = path("constellations", "home", "approvals")


async def ask_for_consent(tour: Tour) -> None:
    """A call waits for a person; nobody answers yet."""
    tour.title("6. A call that waits for your consent")
    rule = {"tool": "block_edit", "type": "requires_consent"}
    agent = {"name": "cleo", "model_provider": "embedded", "memory": [{"label": "human", "content": ""}]}
    async with tour.child.api() as api:
        await api.call("POST", _AGENTS, body={**agent, "tool_rules": [rule]})
        body = {"content": f"Remember that {CODE}"}
        turn = await api.call("POST", f"{_AGENTS}/cleo/messages", body=body)
    claim(turn["status"] == "waiting", f"the turn waits for a person (it is {turn['status']})")
    tour.say(f"you> {body['content']}")
    tour.say("cleo wants to call block_edit, for which a rule wants your consent. Her turn waits, as rows on the disk")


async def consent_at_last(tour: Tour) -> None:
    """What was asked before the server died is agreed to now, and done once."""
    async with tour.child.api() as api:
        (question,) = (await api.get(_APPROVALS, status="pending"))["items"]
        tour.say(f"✓ what cleo asked is still open: {what_is_asked(question['request'])}")
        await api.call("POST", f"{_APPROVALS}/{question['id']}", body={"decision": "approve"})
        await _until(api, question["request"]["turn_id"], "completed")
        content = (await api.get(f"{_AGENTS}/cleo/memory/human"))["content"]
    claim(content.lower().count(CODE) == 1, f"what was agreed to after the kill is done once (memory: {content!r})")
    tour.say("pattern approvals approve …: the call ran, once, and her turn went on to its end")


async def keep_limits(tour: Tour) -> None:
    """A budget is kept before anything is spent, and every prompt can be explained."""
    tour.title("8. A budget that is kept beforehand, and a prompt that explains itself")
    async with tour.child.api() as api:
        budget = {"scope": "agent", "agent": "cleo", "period": "day", "unit": "tokens"}
        spent = (await _usage(api, "cleo"))["input_tokens"]
        made = await api.call("PUT", f"{_HOME}/budgets", body={**budget, "amount": spent + BUDGET_TOKENS})
        tour.say(f"pattern budget set -c home --agent cleo --per day --tokens {made['amount']}")
        turn = await api.call("POST", f"{_AGENTS}/cleo/messages", body={"content": "What is the code of the gate?"})
        claim(turn["status"] == "limit", f"a call that might pass a budget is not made (it ended as {turn['status']})")
        claim((await _usage(api, "cleo"))["input_tokens"] == spent, "a call that was not made costs nothing")
        tour.say(f"cleo's next turn ends as {turn['status']}: {turn['error']['message']}")
        await api.call("DELETE", f"{_HOME}/budgets/{made['id']}")
        turn = await api.call("POST", f"{_AGENTS}/cleo/messages", body={"content": "What is the code of the gate?"})
        claim(turn["status"] == "completed", "without the budget the turn completes")
        (step, *_) = (await api.get(f"{_HOME}/turns/{turn['turn_id']}/prompt"))["steps"]
    tour.say(f"without it she answers, and pattern why {turn['turn_id']} -c home tells what she was shown:")
    tour.say(headline(step))
    for part in map(row, step["parts"][:PARTS_SHOWN]):
        tour.say(f"│ {part['part']:<22} {part['tokens'] or 0:>5} tokens  {part['why']}")
    claim(any(part["name"] == "human" for part in step["parts"]), "a prompt's explanation names the blocks in it")


async def outgrow_a_window(tour: Tour) -> None:
    """A conversation that no longer fits leaves the prompt and stays in the history and in search."""
    tour.title(f"9. A long conversation in a window of {WINDOW:,} tokens")
    agent = {
        "name": "dora",
        "model_provider": "embedded",
        "enabled_tools": ["search"],
        "memory": [],
        "config": {"context_window": WINDOW, "max_output_tokens": 500},
    }
    days = [FIRST_DAY, *(f"On day {day} we weeded, watered and wrote down {day + 100} seedlings." for day in _days())]
    said = [
        {"role": role, "content": words, "created_at": f"2024-03-{1 + day // 24:02d}T{day % 24:02d}:00:0{second}.000Z"}
        for day, text in enumerate(days)
        for second, (role, words) in enumerate((("user", f"Diary: {text}"), ("assistant", "Noted. " * 10 + text)))
    ]
    async with tour.child.api() as api:
        await api.call("POST", _AGENTS, body=agent)
        await api.call("POST", f"{_AGENTS}/dora/history", body={"messages": said})
        tour.say(f"pattern history import -c home -a dora: {len(said)} messages of a diary, more than fits")
        answer = await exchange(tour, api, QUESTION, agent="dora")
        claim("quince" in answer, "what left the prompt is still found")
        kept = (await api.get(f"{_AGENTS}/dora/summaries"))["items"]
        claim(kept, "what left the prompt is noted in a summary")
        (turn,) = (await api.get(f"{_HOME}/usage", by="turn", agent="dora"))["items"]
        steps = (await api.get(f"{_HOME}/turns/{turn['key']}/prompt"))["steps"]
        largest = max(step["tokens"] for step in steps)
        claim(largest <= WINDOW, f"no prompt is longer than the window (one had {largest} tokens)")
        history = await api.pages(f"{_AGENTS}/dora/messages")
        asked = {"query": "quince greenhouse", "kinds": ["message"], "agents": ["dora"]}
        hits = (await api.call("POST", f"{_HOME}/search", body=asked))["hits"]
    here = {message["content"] for message in history}
    claim(any(hit["content"] == said[0]["content"] for hit in hits), "what was archived is found by search")
    claim(all(message["content"] in here for message in said), "no message is lost")
    archived = sum(one["message_count"] for one in kept)
    tour.say(
        f"{archived} messages left her prompt, which had at most {largest:,} tokens; all are in the history and found"
    )


def _days() -> range:
    return range(2, DAYS + 1)


async def _until(api: Api, turn_id: str, status: str) -> Json:
    """The turn once it has this status.

    Raises:
        ClaimFailed: it has not within `WAIT_S`.
    """
    turn: Json = {"status": "unknown"}
    with trio.move_on_after(WAIT_S):
        while turn["status"] != status:
            turn = await api.get(f"{_HOME}/turns/{turn_id}")
            await trio.sleep(LOOK_EVERY_S)
    claim(turn["status"] == status, f"the turn becomes {status} (it is {turn['status']})")
    return turn


async def _usage(api: Api, agent: str) -> Json:
    total: Json = (await api.get(f"{_HOME}/usage", agent=agent))["total"]
    return total
