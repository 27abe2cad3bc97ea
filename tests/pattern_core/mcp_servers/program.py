"""An MCP server that behaves as its habits say, also badly: `python -I -S program.py LOG [HABIT…]`.

A line in LOG for what it hears besides calls: `cancelled`, `initialized`. Habits: `slow` answers nothing at all at
the start, `odd` lists tools that make no sense beside its own, `rude` does not end when its input ends, `mute` reads
nothing after the start, `noisy` writes garbage between its messages, `broken` ends at once, `paged` lists its tools in
pages, `endless` in pages without end, `crowded` in a list that is far too long, `listless` lists them once only,
`shouting` floods its standard error, `pid` notes its number. It has resources if there is a file LOG.json with texts by
address; one that is null is refused, one that is a list is bytes.

It stands in for a program by other people: the standard library only, and none of our code.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

_TOOLS: dict[str, dict[str, object]] = {
    "echo": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "environment": {"type": "object"},
    "fail": {"type": "object"},
    "hang": {"type": "object"},
    "die": {"type": "object"},
    "flood": {"type": "object"},
    "burst": {"type": "object"},
    "halves": {"type": "object"},
    "deep": {"type": "object"},
    "stray": {"type": "object"},
    "leave_child": {"type": "object"},
    "grow": {"type": "object"},
    "odd.name/with a very long tail that no vendor would ever take as it is": {"type": "object"},
}


class _Program:
    def __init__(self, log: Path, habits: set[str]) -> None:
        self._log = log
        self._habits = habits
        self._tools = dict(_TOOLS)
        self._is_listed = False

    def run(self) -> None:
        """Answer until the input ends."""
        if "broken" in self._habits:
            sys.stderr.write("Traceback: no key was given\n")
            return
        if "pid" in self._habits:
            self._note(str(os.getpid()))
        if "shouting" in self._habits:
            Thread(target=self._shout, daemon=True).start()
        if "rude" in self._habits:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for line in sys.stdin:
            message = json.loads(line)
            if "slow" not in self._habits:
                self._hear(message)
        while "rude" in self._habits:
            time.sleep(60)

    def _shout(self) -> None:
        while True:
            sys.stderr.write("y" * 65_536)

    def _hear(self, message: Mapping[str, object]) -> None:
        method = str(message.get("method"))
        params = message.get("params")
        given = params if isinstance(params, dict) else {}
        if "id" not in message:
            self._note(method.rpartition("/")[2])
            return
        match method:
            case "initialize":
                server = {"name": "program", "version": "1"}
                found = {
                    "protocolVersion": given["protocolVersion"],
                    "capabilities": {"tools": {}, **({"resources": {}} if self._resources() else {})},
                    "serverInfo": server,
                }
                self._answer(message, found)
            case "tools/list" if "listless" in self._habits and self._is_listed:
                self._note("listless")
            case "tools/list":
                self._is_listed = True
                self._answer(message, self._listed(given.get("cursor")))
            case "resources/list":
                self._answer(message, self._pages(given.get("cursor")))
            case "resources/read" if (text := self._resources()[given["uri"]]) is not None:
                about = {"text": text} if isinstance(text, str) else {"blob": "".join(text)}
                self._answer(message, {"contents": [{"uri": given["uri"], **about}]})
            case "tools/call":
                self._call(message, str(given["name"]), given.get("arguments") or {}, given.get("_meta"))
            case _:
                self._say({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})

    def _resources(self) -> dict[str, Any]:
        place = self._log.with_name(f"{self._log.name}.json")
        return dict(json.loads(place.read_text())) if place.exists() else {}

    def _pages(self, cursor: object) -> dict[str, object]:
        """Resources, a hundred on each page."""
        known, start = list(self._resources()), int(str(cursor or 0))
        following = {"nextCursor": str(start + 100)} if start + 100 < len(known) else {}
        return {"resources": [{"uri": uri, "name": "it"} for uri in known[start : start + 100]], **following}

    def _listed(self, cursor: object) -> dict[str, object]:
        names = list(self._tools)
        hints: dict[str, object] = {"readOnlyHint": True}
        tools: list[dict[str, object]] = [
            {"name": name, "description": f"Does {name}.", "inputSchema": self._tools[name]} for name in names
        ]
        tools[0]["annotations"] = hints
        if "crowded" in self._habits:
            return {
                "tools": [{**tools[0], "name": f"t{number}", "description": "d" * 2_000} for number in range(3_000)]
            }
        if "endless" in self._habits:
            return {"tools": tools, "nextCursor": "again"}
        if "odd" in self._habits:
            odd: list[Any] = [
                5,
                {"inputSchema": {}},
                {"name": "no_schema"},
                {"name": "words", "inputSchema": "words"},
                {"name": "loop", "inputSchema": {"$ref": "#"}, "description": 5, "title": "A loop", "annotations": 1},
            ]
            return {"tools": [*odd, *tools]}
        if "paged" not in self._habits:
            return {"tools": tools}
        start = int(str(cursor or 0))
        following = {"nextCursor": str(start + 4)} if start + 4 < len(tools) else {}
        return {"tools": tools[start : start + 4], **following}

    def _call(self, message: Mapping[str, object], tool: str, arguments: Mapping[str, object], meta: object) -> None:
        match tool:
            case "echo":
                text = f"{arguments['text']} {json.dumps(meta)}" if meta else str(arguments["text"])
                self._answer(message, {"content": [{"type": "text", "text": text}]})
            case "environment":
                self._answer(message, {"content": [], "structuredContent": dict(os.environ)})
            case "fail":
                self._answer(message, {"content": [{"type": "text", "text": "the disk is full"}], "isError": True})
            case "hang":
                self._note("hangs")
            case "die":
                sys.stderr.write("Fatal: out of luck\n")
                os._exit(3)
            case "flood":
                sys.stdout.write("x" * 20_000_000)
            case "burst":
                for number in range(300):
                    self._say({"method": "notifications/message", "params": {"level": "info", "data": number}})
                self._answer(message, {"content": [{"type": "text", "text": "all said"}]})
            case "stray":
                self._say({"id": 99_999, "result": {}})
                self._answer(message, {"content": [{"type": "text", "text": "asked for"}]})
            case "halves":
                words = "a \ud800 b \U0001f600 c \\ud800 d \udc00A"
                self._answer(message, {"content": [{"type": "text", "text": words}]})
            case "deep":
                nested: list[Any] = []
                for _ in range(900):
                    nested = [nested]
                self._answer(message, {"content": [], "structuredContent": {"deep": nested}})
            case "leave_child":
                child = subprocess.Popen(["sleep", "600"], start_new_session=True)
                self._answer(message, {"content": [{"type": "text", "text": str(child.pid)}]})
            case "grow":
                self._tools["grown"] = {"type": "object"}
                self._answer(message, {"content": [{"type": "text", "text": "grown"}]})
            case _:
                self._say({"id": message["id"], "error": {"code": -32602, "message": f"no tool {tool}"}})
        if "mute" in self._habits:
            time.sleep(600)

    def _answer(self, message: Mapping[str, object], result: Mapping[str, object]) -> None:
        self._say({"id": message["id"], "result": result})

    def _say(self, message: Mapping[str, object]) -> None:
        if "noisy" in self._habits:
            sys.stdout.write("Listening on stdio…\n\n{]\n")
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def _note(self, words: str) -> None:
        with self._log.open("a") as log:
            log.write(words + "\n")


if __name__ == "__main__":
    _Program(Path(sys.argv[1]), set(sys.argv[2:])).run()
