"""The tools that come with Pattern: one line each."""

from __future__ import annotations

from pattern_core.tools.builtin.archive import archive
from pattern_core.tools.builtin.assignment import assign, claim
from pattern_core.tools.builtin.block import block
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_core.tools.builtin.calculator import calculator
from pattern_core.tools.builtin.emergency_halt import emergency_halt
from pattern_core.tools.builtin.event_create import event_create
from pattern_core.tools.builtin.event_list import event_list
from pattern_core.tools.builtin.event_update import event_update
from pattern_core.tools.builtin.file import file
from pattern_core.tools.builtin.file_save import file_save
from pattern_core.tools.builtin.handoff import handoff
from pattern_core.tools.builtin.notable import notable
from pattern_core.tools.builtin.recall import recall
from pattern_core.tools.builtin.remember import remember
from pattern_core.tools.builtin.result import result
from pattern_core.tools.builtin.search import search
from pattern_core.tools.builtin.send_message import send_message
from pattern_core.tools.builtin.shell import shell
from pattern_core.tools.builtin.state_get import state_get
from pattern_core.tools.builtin.state_set import state_set
from pattern_core.tools.builtin.task import task_create, task_list, task_update
from pattern_core.tools.builtin.tell import tell
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
)
