"""What small models write instead of what they mean: changed where one thing can be meant, else refused."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.messages import ToolCall, ToolResult
from pattern_core.models.model import ModelReply, Usage
from pattern_core.testing import calls, says
from pattern_core.tools.arguments import InvalidArguments, arguments_of, coerced, object_in, operations_in
from pattern_core.tools.builtin import BUILTIN
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import ToolContext, tool
from pattern_db.enums import EffectClass
from tests.support import rows, running


@tool(effect=EffectClass.PURE)
async def paint(
    context: ToolContext,
    op: Literal["wash", "stroke"],
    colours: list[str] | None = None,
    width: int = 1,
    share: float | None = None,
    wet: bool = False,
    layers: list[int] | None = None,
) -> str:
    """Paint."""
    return f"{op} {colours} {width} {share} {wet} {layers}"


@tool(effect=EffectClass.PURE)
async def look(context: ToolContext, words: str) -> str:
    """Look."""
    return f"Saw {words}"


MEANT = [
    ("5", {"width": 5}, {"width": "5"}),
    ("5.0", {"width": 5}, {"width": 5.0}),
    ("a share", {"share": 0.5}, {"share": "0.5"}),
    ("truth", {"wet": True}, {"wet": "True"}),
    ("null", {}, {"width": None, "colours": None}),
    ("a list in a string", {"colours": ["red"]}, {"colours": '["red"]'}),
    ("numbers in a list", {"layers": [1, 2]}, {"layers": ["1", "2"]}),
    ("numbers in a list in a string", {"layers": [1, 2]}, {"layers": '["1", 2]'}),
    ("another case", {"op": "wash"}, {"op": "Wash"}),
]
NOT_CERTAIN: list[dict[str, Any]] = [
    {"width": "five"},
    {"width": 5.5},
    {"width": "5 px"},
    {"width": "1" * 5_000},
    {"wet": "yes"},
    {"wet": 1},
    {"share": "nan"},
    {"colours": "red, blue"},
    {"colours": '{"red": 1}'},
    {"layers": "[1" + "0" * 5_000 + "]"},
    {"op": None},
    {"op": "scrub"},
]


@pytest.mark.parametrize(("meant", "said"), [pair[1:] for pair in MEANT], ids=[pair[0] for pair in MEANT])
def test_a_value_in_another_form_is_taken_for_what_it_is(meant: dict[str, Any], said: dict[str, Any]) -> None:
    assert coerced(said, paint.parameters) == meant


@pytest.mark.parametrize("said", NOT_CERTAIN, ids=repr)
def test_what_is_not_certain_stays_as_it_is(said: dict[str, Any]) -> None:
    assert coerced(said, paint.parameters) == said


def test_text_may_be_a_number_and_null_may_be_meant() -> None:
    assert coerced({"words": 42}, look.parameters) == {"words": "42"}
    assert coerced({"words": True}, look.parameters) == {"words": True}
    assert coerced({"words": None}, look.parameters) == {"words": None}  # it is required, so this is a mistake
    schema = {"properties": {"a": {"type": ["string", "null"]}, "b": {"type": "null"}, "c": {}, "d": True}}
    everything = {"a": None, "b": None, "c": None, "d": None, "e": None}
    assert coerced(everything, schema) == everything


@pytest.mark.parametrize(
    "schema",
    [{}, {"properties": 1}, {"properties": {"a": {"type": "string", "enum": 1}}, "required": True}, {"properties": []}],
)
def test_a_foreign_servers_schema_may_be_anything(schema: dict[str, Any]) -> None:
    assert coerced({"a": "x"}, schema) == {"a": "x"}
    assert operations_in(schema) == []
    assert operations_in({"properties": {"op": {"enum": [["x"], "y"]}}}) == ["y"]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (json.dumps('{"a": "x"}'), {"a": "x"}),
        ('{"a": ["x", {"b": "]"}', {"a": ["x", {"b": "]"}]}),
        ('{"a": "x"', {"a": "x"}),
        ('{"a": true ', {"a": True}),
        ('{"a": "x', None),
        ('{"a": "x\\"', None),
        ('{"a"', None),
        ('{"a": 12', None),  # maybe 120
        ('{"a": "x"}}', None),
        ('["a"', None),
        ('"x"', None),
        ("a = 5", None),
        ("", None),
        ("{" * 100_000 + '"a"', None),
        ('{"a": "\\ud800"', None),
        ('"{\\"a\\": NaN}"', None),
        (json.dumps('{"a": ' + "[" * 64 + "]" * 64 + "}"), None),  # stored, it could not be served
    ],
)
def test_an_object_that_lacks_its_last_brackets(text: str, meant: dict[str, object] | None) -> None:
    assert object_in(text, is_whole=True) == meant
    if not text.startswith('"'):
        assert object_in(text, is_whole=False) is None


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.text(), lambda one: st.lists(one))))
def test_brackets_are_added_and_nothing_else(value: dict[str, object]) -> None:
    text = json.dumps(value)
    assert object_in(json.dumps(text), is_whole=True) == value
    cut = text.rstrip("]}")
    assert object_in(cut, is_whole=True) in (value, None)


@given(st.dictionaries(st.sampled_from(["op", "width", "x"]), st.recursive(st.text() | st.floats(), st.lists)))
def test_coercing_twice_changes_nothing(said: dict[str, object]) -> None:
    once = coerced(said, paint.parameters)
    assert repr(coerced(once, paint.parameters)) == repr(once)


def meant(name: str, arguments: dict[str, object], *offered: str) -> tuple[str, object]:
    call = ToolCall(call_id="c", tool=name, arguments=arguments)
    found = ToolRegistry([*BUILTIN, paint]).meant(call, offered or ("calculator", "recall", "file"), is_whole=True)
    return found.tool, found.arguments


@pytest.mark.parametrize(
    "name", ["Calculator", "functions.calculator", "tools/CALCULATOR", " calculator", "a:b.calculator"]
)
def test_a_name_in_another_form_is_that_tools(name: str) -> None:
    assert meant(name, {"expression": 2}) == ("calculator", {"expression": "2"})


def test_an_operation_names_its_tool_where_no_other_has_it() -> None:
    assert meant("insert", {"content": "x"}) == ("recall", {"op": "insert", "content": "x"})
    assert meant("functions.grep", {"pattern": "x"}) == ("file", {"op": "grep", "pattern": "x"})
    assert meant("append", {"path": "x"}) == ("file", {"op": "append", "path": "x"})
    for unclear in ("append", "replace"):
        assert meant(unclear, {}, "file", "block_edit") == (unclear, {})
    assert meant("insert", {"op": "get"}) == ("insert", {"op": "get"})


def test_what_was_not_offered_is_not_meant() -> None:
    assert meant("Shell", {}) == ("Shell", {})
    assert meant("shell", {"timeout": "5"}) == ("shell", {"timeout": 5.0})  # it is refused under its own name
    assert meant("calculator", {"expression": 1}, "gone") == ("calculator", {"expression": "1"})
    assert meant("calculators", {}) == ("calculators", {})


async def test_a_call_is_shown_stored_and_run_as_it_was_meant() -> None:
    loose = {"op": "WASH", "width": "5", "colours": '["red"]', "share": None}
    script = [calls("Paint", loose), calls("stroke", {"layers": ["1"]}), says("done")]
    async with running(script, tools=[paint]) as it:
        await it.agent()
        assert (await it.say("Go")).status == "completed"
        seen = it.provider.requests[-1].messages
        stored = await it.database.read(
            rows, "SELECT tool_name, tool_args FROM messages WHERE role = 'tool' ORDER BY position"
        )
    asked = [call for message in seen for call in message.tool_calls]
    assert [(call.tool, call.arguments) for call in asked] == [
        ("paint", {"op": "wash", "width": 5, "colours": ["red"]}),
        ("paint", {"op": "stroke", "layers": [1]}),
    ]
    assert [(name, json.loads(str(args))) for name, args in stored] == [(call.tool, call.arguments) for call in asked]
    results = [part.content for message in seen for part in message.parts if isinstance(part, ToolResult)]
    assert "wash ['red'] 5 None False None" in results[0] and "stroke None 1 None False [1]" in results[1]


async def test_broken_json_runs_only_if_the_answer_is_whole() -> None:
    def broken(finish: Any) -> ModelReply:
        call = ToolCall(call_id=f"c_{finish}", tool="look", invalid='{"words": "x"')
        return ModelReply(parts=(call,), finish_reason=finish, usage=Usage(input_tokens=1, output_tokens=1))

    async with running([broken("length"), broken("tool_calls"), says("done")], tools=[look]) as it:
        await it.agent()
        await it.say("Go")
        stored = await it.database.read(rows, "SELECT status FROM effect ORDER BY step")
    assert stored == [("error",), ("done",)]


def test_the_check_itself_guesses_nothing() -> None:
    _schema, check = arguments_of(look.run)
    with pytest.raises(InvalidArguments, match="`words` must be text, not 42"):
        check({"words": 42})
