"""What an agent asks a person in the middle of a conversation: the question, and the answer typed right there."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import trio

from pattern_server.cli.approvals import what_is_asked
from pattern_server.cli.client import Api, Json, ServerFailed, path
from pattern_server.cli.output import Output

PROMPT = "Agree? [y]es, [n]o (a reason may follow), [a]lways, [l]ater: "
TRIES = 3


class Questions:
    """The open questions of turns in one constellation; asked at the terminal if `is_live`, else only told."""

    def __init__(self, api: Api, output: Output, constellation: str, *, is_live: bool) -> None:
        self._api = api
        self._output = output
        self._constellation = constellation
        self._where = path("constellations", constellation, "approvals")
        self._is_live = is_live

    async def of_turn(self, turn_id: str) -> list[str]:
        """The ids of the open questions that a turn asked, oldest first."""
        rows = await self._api.pages(self._where, status="pending")
        return [one["id"] for one in reversed(rows) if turn_of(one["request"]) == turn_id]

    async def put(self, ids: Iterable[str]) -> bool:
        """Put questions to the person, or say how to answer them; whether all of them are answered now."""
        answers = [await self._put_one(one) for one in ids]
        return all(answers)

    async def _put_one(self, approval_id: str) -> bool:
        approval = await self._api.get(f"{self._where}/{approval_id}")
        if approval["status"] != "pending":  # answered from elsewhere in this moment
            return True
        self._output.note(f"? {what_is_asked(approval['request'])}")
        if self._is_live:
            for _ in range(TRIES):
                line = await trio.to_thread.run_sync(partial(self._output.ask, PROMPT), abandon_on_cancel=True)
                body = None if line is None else answer_of(line)
                if body is None:
                    break
                if body and await self._answer(approval_id, body):
                    return True
        self._output.note(f"Answer with: pattern approvals approve {approval_id} -c {self._constellation}, or deny.")
        return False

    async def _answer(self, approval_id: str, body: Json) -> bool:
        try:
            await self._api.call("POST", f"{self._where}/{approval_id}", body=body)
        except ServerFailed as error:
            self._output.error(error.message)
            return False
        return True


def turn_of(request: Json) -> str | None:
    """The turn in which something was asked; a question about memory has it in its cause."""
    found = request.get("turn_id") or (request.get("cause") or {}).get("turn")
    return None if found is None else str(found)


def answer_of(line: str) -> Json | None:
    """The decision that a typed line stands for: the body of the API's answer, {} if it is none, None for later."""
    word, _, rest = line.strip().partition(" ")
    match word.lower():
        case "y" | "yes":
            return {"decision": "approve"}
        case "a" | "always":
            return {"decision": "approve", "scope": "always"}
        case "n" | "no":
            return {"decision": "deny", **({"reason": rest.strip()} if rest.strip() else {})}
        case "" | "l" | "later":
            return None
        case _:
            return {}
