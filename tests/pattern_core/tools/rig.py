"""Tools called as a turn calls them: checked arguments, one unit of work per call, committed with its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from pattern_core.calendars import Calendar
from pattern_core.errors import NotFound
from pattern_core.ids import message_id
from pattern_core.memory.block import Attribution, agent_author
from pattern_core.memory.revisions import Revisions
from pattern_core.memory.sharing import Sharing
from pattern_core.search import SearchRequest, SearchResult, search
from pattern_core.shared_state import SharedState
from pattern_core.tasks import Tasks
from pattern_core.timers import Timers
from pattern_core.tools.tool import Tool, Toolbox, ToolContext
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import iso
from pattern_db.enums import BatchType, Role
from pattern_db.tables import messages
from pattern_db.tables.messages import MessageRow
from tests.pattern_core.memory.rig import ADA, Rig

if TYPE_CHECKING:
    from pattern_core.halt import Halt
    from pattern_core.handoffs import Handoffs
    from pattern_core.shell.shell import Shell
    from pattern_core.web.web import Web


@dataclass
class ToolRig:
    """`delivered` are the messages for agents, as (target, content). Tests of what reaches outside set its service."""

    rig: Rig
    agent_id: str = ADA
    batch_id: str = "9000000000000000000"
    delivered: list[tuple[str, str]] = field(default_factory=list)
    web: Web | None = None
    shell: Shell | None = None
    halt: Halt | None = None
    session_id: str | None = None

    def __post_init__(self) -> None:
        self.ids = self.rig.storage.ids
        blocks = self.rig.store.blocks
        self.sharing = Sharing(blocks)
        self.revisions = Revisions(blocks)

    async def call(self, tool: Tool, **arguments: object) -> Any:
        """Call the tool and commit; nothing is committed if it raises."""
        work = UnitOfWork()
        try:
            result = await tool.call(self.context(work), arguments)
        except BaseException:
            work.settle(committed=False)
            raise
        await self.rig.commit(work)
        return result

    def context(self, work: UnitOfWork) -> ToolContext:
        cause = {"message": message_id(self.batch_id), "turn": "turn_1", "call": "call_1"}
        return ToolContext(
            agent_id=self.agent_id,
            agent_name=self.agent_id.removeprefix("agt_"),
            turn_id="turn_1",
            batch_id=self.batch_id,
            batch_type=BatchType.USER_REQUEST,
            session_id=self.session_id,
            call_id="call_1",
            by=Attribution(author=agent_author(self.agent_id), cause=cause),
            idempotency_key="key",
            work=work,
            deliver=self.deliver,
            toolbox=self.toolbox,
        )

    @property
    def toolbox(self) -> Toolbox:
        return Toolbox(
            storage=self.rig.storage,
            memory=self.rig.store,
            sharing=self.sharing,
            revisions=self.revisions,
            tasks=Tasks(self.rig.storage, Timers(self.rig.storage)),
            calendar=Calendar(self.rig.storage, Timers(self.rig.storage)),
            search=self.search,
            halt=cast("Halt", self.halt),  # only tests of emergency_halt need one, and set it
            state=SharedState(self.rig.storage),
            handoffs=cast("Handoffs", None),  # only a constellation's agents hand notes on
            assignments=cast("Any", None),  # as above
            record=cast("Any", None),  # as above
            web=self.web,
            shell=self.shell,
        )

    async def search(self, request: SearchRequest) -> SearchResult:
        return await search(self.rig.database, request)

    async def deliver(self, work: UnitOfWork, target: str, content: str, *, needs_response: bool | None = None) -> str:
        if target == "nobody":
            raise NotFound("there is no agent 'nobody'")
        work.when_settled(lambda committed: self.delivered.append((target, content)) if committed else None)
        return "turn_2"

    async def said(self, content: str, *, role: Role = Role.USER, agent_id: str = ADA, **fields: object) -> str:
        """Store a message of the past and return its id."""
        position = self.ids.position()
        row = MessageRow(
            id=f"msg_{position}",
            agent_id=agent_id,
            position=position,
            role=role,
            content=content,
            created_at=iso(self.rig.clock.now_ms()),
            **fields,  # type: ignore[arg-type]  # the tests know the fields
        )
        await self.rig.database.write(messages.append, [row])
        return row.id
