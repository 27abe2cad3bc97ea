"""A memory store on a real database, whose commits a test can make fail."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pattern_core.events import Draft
from pattern_core.ids import Ids, seeded_randomness
from pattern_core.limits import Limits
from pattern_core.memory.block import Attribution, NewBlock, with_schema
from pattern_core.memory.content import prompt
from pattern_core.memory.store import MemoryStore
from pattern_core.prompts.build import block_parts
from pattern_core.prompts.collect import seen_blocks
from pattern_core.testing import StoppedClock
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_db import template
from pattern_db.columns import Json
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import CONSTELLATION_OWNER, BlockType
from pattern_db.errors import Busy
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents
from pattern_db.tables.memory_blocks import BlockRow
from tests.pattern_db.conftest import make_agent

NOW = "2026-11-21T22:24:40.123Z"
ADA, BOB, ALL = "agt_ada", "agt_bob", CONSTELLATION_OWNER
BY_ADA, BY_BOB, BY_USER = (Attribution(author=author) for author in ("agent:agt_ada", "agent:agt_bob", "user:usr_1"))


def constellation() -> Connection:
    """A constellation's database in memory with the agents ada and bob."""
    connection = template.in_memory(migrations_of("constellation"), now=NOW)
    add_agents(connection)
    return connection


def add_agents(connection: Connection) -> None:
    for name in ("ada", "bob"):
        agents.create(connection, make_agent(name))


@dataclass
class Rig:
    """`events` are those of committed units of work, in order. `fails` makes the next commits fail."""

    database: Database
    hot_max: int = 256
    seed: int = 0
    limits: Limits = field(default_factory=lambda: Limits(block_chars_max=2_000_000))
    fails: bool = False
    events: list[Draft] = field(default_factory=list)
    clock: StoppedClock = field(default_factory=lambda: StoppedClock(1_795_000_000_000))

    def __post_init__(self) -> None:
        randomness = seeded_randomness(self.seed)
        self.storage = Storage(
            database=self.database, commit=self.commit, clock=self.clock, ids=Ids(self.clock, randomness)
        )
        limits = replace(self.limits, open_documents_max=self.hot_max)
        self.store = MemoryStore(self.storage, randomness=randomness, limits=limits)

    async def commit(self, work: UnitOfWork) -> None:
        """What the journal does with a unit of work that belongs to no turn."""
        committed = False
        try:
            await self.database.write(self._run, work)
            committed = True
            self.events += work.drafts
        finally:
            work.settle(committed=committed)

    def _run(self, connection: Connection, work: UnitOfWork) -> None:
        work.run(connection)
        if self.fails:
            raise Busy("the test wants it")

    async def block(self, content: str = "", *, owner: str = ADA, label: str = "notes", **fields: object) -> str:
        """Make a block and return its id."""
        new = NewBlock(label=label, content=content, **fields)  # type: ignore[arg-type]  # the tests know the fields
        return (await self.store.create(owner, new, by=BY_USER)).id

    async def value(self, label: str = "notes") -> Json:
        """What ADA's block holds, as JSON."""
        return await self.store.value_of(await self.store.view(ADA, label))

    async def content(self, owner: str = ADA, label: str = "notes") -> str:
        """What the store shows."""
        return (await self.store.view(owner, label)).content


async def prompt_blocks(store: MemoryStore, agent_id: str) -> list[str]:
    """The blocks as a prompt of the agent shows them."""
    return [part.text for part in block_parts(await seen_blocks(store, agent_id, ""))]


def block_row(**fields: object) -> BlockRow:
    """A block `notes` of ada's, with the fields that a test is about; `schema` is stored in its metadata."""
    schema = fields.pop("schema", None)
    usual = {
        "id": "mem_1",
        "agent_id": ADA,
        "label": "notes",
        "description": "",
        "block_type": BlockType.CORE,
        "created_at": NOW,
        "updated_at": NOW,
        "metadata": None if schema is None else with_schema({}, schema),  # type: ignore[arg-type]  # a schema
    }
    return BlockRow(**(usual | fields))  # type: ignore[arg-type]  # the tests know the fields


def shown_block(content: str = "", **fields: object) -> str:
    """What the prompt shows of such a block."""
    return prompt(block_row(content_preview=content, **fields))
