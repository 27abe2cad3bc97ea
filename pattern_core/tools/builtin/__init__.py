"""The tools that come with Pattern."""

from __future__ import annotations

from pattern_core.tools.builtin.assignment import assign, claim
from pattern_core.tools.builtin.block import block
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_core.tools.builtin.calculator import calculator
from pattern_core.tools.builtin.coding import CODING
from pattern_core.tools.builtin.emergency_halt import emergency_halt
from pattern_core.tools.builtin.event import event_create, event_list, event_update
from pattern_core.tools.builtin.file import file, file_save
from pattern_core.tools.builtin.handoff import handoff
from pattern_core.tools.builtin.notable import notable
from pattern_core.tools.builtin.recall import recall
from pattern_core.tools.builtin.result import result
from pattern_core.tools.builtin.search import search
from pattern_core.tools.builtin.send_message import send_message
from pattern_core.tools.builtin.shell import shell
from pattern_core.tools.builtin.small import archive, remember, tell
from pattern_core.tools.builtin.state import state_get, state_set
from pattern_core.tools.builtin.task import task_create, task_list, task_update
from pattern_core.tools.builtin.web import web
from pattern_core.tools.tool import Tool

BUILTIN: tuple[Tool, ...] = (
    block,
    block_edit,
    recall,
    remember,
    search,
    archive,
    send_message,
    tell,
    file,
    calculator,
    result,
    web,
    file_save,
    event_create,
    event_list,
    event_update,
    shell,
    state_get,
    state_set,
    task_create,
    task_update,
    task_list,
    handoff,
    assign,
    claim,
    notable,
    emergency_halt,
    *CODING,
)
