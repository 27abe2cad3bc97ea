"""A small server of blocks for tests: versions, conditions and refusals as the real one has them, and ways to fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2

from pattern_server.cli.command import Home
from pattern_server.cli.memory_files import OWN, Mirror, MirrorEvent
from tests.pattern_server.cli.conftest import Answer, api_of, as_json

ADA = {"id": "agent_ada", "name": "ada", "status": "active"}


@dataclass(slots=True, kw_only=True)
class Kept:
    """One block with all that it ever said; its version counts from 0."""

    id: str
    label: str
    texts: list[Any]
    owner: str = "agent_ada"
    schema: object = "Text"
    damaged: str | None = None

    @property
    def now(self) -> Any:
        """What it says."""
        return self.texts[-1]

    def told(self, version: int | None = None) -> dict[str, object]:
        """The block as the API shows it."""
        at = len(self.texts) - 1 if version is None else version
        value = self.texts[at]
        return {
            "id": self.id,
            "agent_id": self.owner,
            "label": self.label,
            "content": value if isinstance(value, str) else json.dumps(value),
            "value": value,
            "schema": self.schema,
            "version": at,
            "damaged": self.damaged,
        }


@dataclass(slots=True)
class Shelf:
    """Blocks of agents, answered over HTTP. `before_put` runs when a change arrives, before its condition is looked at;
    `dies` breaks the connection after the next change was made, or (`dies_early`) before.
    """

    agents: list[dict[str, str]] = field(default_factory=lambda: [ADA])
    blocks: list[Kept] = field(default_factory=list)
    before_put: Callable[[], None] | None = None
    dies: bool = False
    dies_early: bool = False
    limit: int = 1000
    puts: int = 0
    made: int = 0
    has_past: bool = True
    is_ill: bool = False

    def add(self, label: str, *texts: Any, **more: Any) -> Kept:
        """Put a block on the shelf."""
        self.made += 1
        kept = Kept(id=f"mem_{self.made}", label=label, texts=list(texts), **more)
        self.blocks.append(kept)
        return kept

    def home(self) -> Home:
        """The shelf through the API's client."""
        return Home(api_of(self.answer), "home")

    def answer(self, request: httpx2.Request) -> Answer:
        """Answer one request."""
        parts = [unquote(part) for part in urlsplit(str(request.url)).path.split("/")[5:]]
        match request.method, parts:
            case "GET", ["agents"]:
                return as_json({"items": self.agents, "next_cursor": None})
            case "GET", ["agents", name]:
                found = [one for one in self.agents if name in (one["id"], one["name"])]
                return as_json(found[0]) if found else _refused(404, "there is no such agent")
            case "GET", ["agents", agent, "memory"]:
                mine = [one.told() for one in self.blocks if one.owner == agent]
                return as_json({"items": mine, "next_cursor": None})
            case method, ["agents", agent, "memory", label]:
                return self._block(method, agent, label, request)
        return _refused(404, "there is no such path")

    def _block(self, method: str, agent: str, label: str, request: httpx2.Request) -> Answer:
        if method != "GET" and self.before_put is not None:
            hook, self.before_put = self.before_put, None
            hook()
        kept = next((one for one in self.blocks if (one.owner, one.label) == (agent, label)), None)
        if method == "GET":
            wanted = request.url.params.get("version")
            if kept is None or (wanted and not (self.has_past and int(wanted) < len(kept.texts))):
                return _refused(404, "there is no such block")
            return as_json(kept.told(int(wanted) if wanted else None))
        expected = request.headers.get("if-match")
        if expected and (kept is None or expected != f'"{len(kept.texts) - 1}"'):
            return _refused(412, "it is at another version")
        if "if-none-match" in request.headers and kept is not None:
            return _refused(412, "there is one already")
        return self._change(kept, agent, label, request)

    def _change(self, kept: Kept | None, agent: str, label: str, request: httpx2.Request) -> Answer:
        self._maybe_die("dies_early")
        if self.is_ill:
            return _refused(503, "the server is ill")
        self.puts += 1
        body = json.loads(request.content)
        value = body["value"] if "value" in body else body["content"]
        if len(str(value)) > self.limit:
            return _refused(400, f"the block holds {self.limit} characters, and this is longer")
        if kept is None:
            kept = self.add(label, value, owner=agent)
        elif kept.now != value:
            kept.texts.append(value)
        self._maybe_die("dies")
        return as_json(kept.told())

    def _maybe_die(self, when: str) -> None:
        if getattr(self, when):
            setattr(self, when, False)
            raise httpx2.ReadError("the server was killed")


def _refused(status: int, detail: str) -> Answer:
    return as_json({"detail": detail, "code": "refused"}, status)


@dataclass(slots=True)
class Desk:
    """A folder mirrored from a shelf, and what the mirror told."""

    root: Path
    shelf: Shelf
    told: list[MirrorEvent] = field(default_factory=list)
    is_dry: bool = False
    mirror: Mirror | None = None

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again from what is on the disk, as after a crash."""
        self.mirror = Mirror(self.root, "con_1", self.told.append, is_dry=self.is_dry)

    async def round(self, *names: str) -> Mirror:
        """One round, and the mirror after it; what it told is in `told`."""
        assert self.mirror is not None
        self.told.clear()
        await self.mirror.round(self.shelf.home(), names)
        return self.mirror

    def path(self, name: str) -> Path:
        """A file of ada's."""
        return self.root / "ada" / name

    def text(self, name: str) -> str:
        """What a file of ada's says."""
        return self.path(name).read_text()

    def others(self) -> set[str]:
        """All files that are not mirrored blocks' own, but for the mirror's notes."""
        found = (file.relative_to(self.root).as_posix() for file in self.root.rglob("*") if file.is_file())
        return {path for path in found if not path.startswith(f"{OWN}/") and path.endswith(".txt")}

    def did(self) -> list[tuple[str, str]]:
        """What was told: paths and deeds."""
        return [(event.path, event.did) for event in self.told]
