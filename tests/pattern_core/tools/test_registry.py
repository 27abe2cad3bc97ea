"""The table of builtin tools, as models, operators and recovery see it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from pattern_core.errors import NotFound
from pattern_core.models.model import ModelFacts, ToolProfile
from pattern_core.models.tokens import estimate_tools
from pattern_core.tools.builtin import BUILTIN
from pattern_core.tools.registry import ToolRegistry, suited
from pattern_core.tools.tool import Tool, ToolContext, ToolSettings, tool
from pattern_core.web.policy import WebSettings
from pattern_db.enums import EffectClass


@tool(effect=EffectClass.PURE)
async def look(context: ToolContext) -> str:
    """Look."""
    return ""


@tool(effect=EffectClass.PURE)
async def listen(context: ToolContext, where: str) -> str:
    """Listen."""
    return where


def test_what_is_not_there_is_answered_with_what_is() -> None:
    registry = ToolRegistry([look, listen])
    for name, enabled, there in (("smell", ["look", "listen"], "look, listen"), ("look", [], "none")):
        with pytest.raises(NotFound, match=f"no tool '{name}'; your tools: {there}"):
            registry.get(name, enabled)


def test_specs_keep_the_registrys_order_and_pass_over_unknown_names() -> None:
    registry = ToolRegistry([look, listen])
    specs = registry.specs(["listen", "gone", "look"])
    assert [spec.name for spec in specs] == ["look", "listen"]
    assert specs[1].description == "Listen."
    assert specs[1].parameters == listen.parameters
    assert registry.specs(["look"])[0] is specs[0]


def test_the_reader_of_long_results_is_an_enabled_tool() -> None:
    registry = ToolRegistry([look, replace(listen, reads_results=True)])
    assert (registry.reader(["look"]), registry.reader(["look", "listen"])) == (None, "listen")


def foreign(name: str) -> Tool:
    return replace(listen, name=name)


def test_foreign_tools_come_after_our_own_and_go_again() -> None:
    registry = ToolRegistry([look])
    registry.replace("b", [foreign("b__y"), foreign("b__x")])
    registry.replace("a", [foreign("a__z")])
    assert registry.names == ("look", "a__z", "b__x", "b__y")
    registry.replace("b", [foreign("b__x")])
    assert [spec.name for spec in registry.specs(["b__*", "look"])] == ["look", "b__x"]
    assert registry.get("b__x", ["b__*"]).name == "b__x"
    with pytest.raises(NotFound, match="no tool 'a__z'; your tools: b__x"):
        registry.get("a__z", ["b__*"])
    with pytest.raises(NotFound):
        registry.get("b__y", ["b__*", "b__y"])


def test_names_of_a_server_that_has_not_answered_yet_are_accepted() -> None:
    registry = ToolRegistry([look])
    assert not registry.accepts("b__x")
    registry.replace("b", ())
    assert all(registry.accepts(name) for name in ("look", "b__x", "b__*"))
    assert not any(registry.accepts(name) for name in ("listen", "b__", "b", "c__x"))


def test_a_server_cannot_take_anothers_name() -> None:
    registry = ToolRegistry([look])
    for tools in ([foreign("look")], [foreign("a__x")], [foreign("b__x"), foreign("b__x")]):
        with pytest.raises(ValueError, match="cannot be a tool of the server b"):
            registry.replace("b", tools)
    assert registry.names == ("look",)
    with pytest.raises(ValueError, match="two tools named look"):
        ToolRegistry([look, look])


def test_names_and_attributes() -> None:
    # Add a new tool here: what it may do is decided on purpose.
    assert [
        (tool.name, tool.effect, tool.returns_untrusted_text, " ".join(sorted(tool.profiles)), tool.reads_results)
        for tool in BUILTIN
    ] == [
        ("block", EffectClass.LOCAL, False, "auto full", False),
        ("block_edit", EffectClass.LOCAL, False, "auto full", False),
        ("recall", EffectClass.LOCAL, True, "auto full", False),
        ("remember", EffectClass.LOCAL, False, "auto small", False),
        ("search", EffectClass.PURE, True, "auto full small", False),
        ("archive", EffectClass.LOCAL, False, "auto small", False),
        ("send_message", EffectClass.LOCAL, False, "auto full", False),
        ("tell", EffectClass.LOCAL, False, "auto small", False),
        ("file", EffectClass.LOCAL, True, "auto full", False),
        ("calculator", EffectClass.LOCAL, False, "auto full small", False),
        ("result", EffectClass.PURE, True, "auto full", True),
        ("web", EffectClass.IDEMPOTENT, True, "auto full", False),
        ("file_save", EffectClass.IDEMPOTENT, True, "", False),
        ("event_create", EffectClass.LOCAL, False, "", False),
        ("event_list", EffectClass.PURE, True, "", False),
        ("event_update", EffectClass.LOCAL, False, "", False),
        ("shell", EffectClass.UNSAFE, True, "", False),
        ("state_get", EffectClass.PURE, True, "", False),
        ("state_set", EffectClass.LOCAL, False, "", False),
        ("task_create", EffectClass.LOCAL, False, "", False),
        ("task_update", EffectClass.LOCAL, False, "", False),
        ("task_list", EffectClass.PURE, True, "", False),
        ("handoff", EffectClass.LOCAL, False, "", False),
        ("assign", EffectClass.LOCAL, False, "", False),
        ("claim", EffectClass.LOCAL, True, "", False),
        ("notable", EffectClass.LOCAL, False, "", False),
        ("emergency_halt", EffectClass.LOCAL, False, "", False),
        ("read_file", EffectClass.PURE, True, "", False),
        ("write_file", EffectClass.IDEMPOTENT, True, "", False),
        ("edit_file", EffectClass.UNSAFE, True, "", False),
        ("list_dir", EffectClass.PURE, True, "", False),
        ("run_shell", EffectClass.UNSAFE, True, "", False),
        ("git_diff", EffectClass.UNSAFE, True, "", False),
        ("git_status", EffectClass.UNSAFE, True, "", False),
        ("git_log", EffectClass.UNSAFE, True, "", False),
    ]


def test_tools_are_offered_as_the_operator_configures_them() -> None:
    everything = tuple(tool.name for tool in BUILTIN)
    plain = ToolRegistry(BUILTIN, ToolSettings())
    assert plain.names == tuple(name for name in everything if name != "web")
    assert plain.off == {"web": "web is off: the server's pattern.toml has no section [web]"}
    connected = ToolRegistry(BUILTIN, ToolSettings(web=WebSettings()))
    assert (connected.names, connected.off) == (everything, {})


def test_schemas_are_plain_enough_for_every_vendor() -> None:
    for one in BUILTIN:
        schema = json.dumps(one.spec.parameters)
        for word in ("$ref", "$defs", "anyOf", "oneOf", "exclusiveMinimum", '"null"'):
            assert word not in schema


ALL = ToolRegistry(BUILTIN, ToolSettings())


def test_the_profiles_cost_at_most_what_a_prompt_can_spare() -> None:
    small, full = ALL.specs(["small"]), ALL.specs(["full"])
    assert [spec.name for spec in small] == ["remember", "search", "archive", "tell", "calculator"]
    assert [spec.name for spec in full] == [
        tool.name for tool in BUILTIN if tool.enabled_by_default and tool.name != "web"
    ]
    # Tokenizers of small models count about an eighth more than the estimate.
    assert estimate_tools(small) <= 300
    assert estimate_tools(full) <= 1_300


def test_small_tools_have_needed_text_alone_and_few_words_with_a_request_that_they_are_for() -> None:
    for spec in ALL.specs(["small"]):
        assert len(spec.description.split()) <= 20 and re.search(r", as (?:asked in|for) `[A-Z]", spec.description)
        assert spec.parameters.keys() == {"type", "properties", "required"}
        properties, required = spec.parameters["properties"], spec.parameters["required"]
        assert isinstance(properties, dict) and list(properties) == required
        assert all(schema == {"type": "string"} for schema in properties.values())


FACTS = ModelFacts(provider="p", model="m", window=1, output_max=1)


@pytest.mark.parametrize(
    ("enabled", "window", "facts", "offered", "why"),
    [
        (["auto"], 15_999, None, "small", "the window has fewer than 16,000 tokens"),
        (["auto"], 16_000, None, "full", "the window has at least 16,000 tokens"),
        (["auto"], 128_000, "small", "small", "it is set for the model"),
        (["auto"], 4_096, "full", "full", "it is set for the model"),
        (["small"], 128_000, "full", "small", "enabled_tools names it"),
        (["full"], 4_096, None, "full", "enabled_tools names it"),
        (["search"], 4_096, "small", None, "enabled_tools names the tools"),
        ([], 4_096, None, None, "enabled_tools names the tools"),
    ],
)
def test_a_profile_is_chosen_by_hand_by_the_model_or_by_its_window(
    enabled: list[str], window: int, facts: ToolProfile | None, offered: ToolProfile | None, why: str
) -> None:
    found = suited(enabled, replace(FACTS, tool_profile=facts), window)
    assert (found.profile, found.why) == (offered, why)
    assert ALL.specs(found.enabled) == ALL.specs([offered] if offered else enabled)


def test_named_tools_are_what_they_are_and_may_stand_beside_a_profile() -> None:
    specs = {spec.name: spec for spec in ALL.specs(suited(["search", "auto", "file_save"], FACTS, 4_096).enabled)}
    assert [*specs] == ["remember", "search", "archive", "tell", "calculator", "file_save"]
    assert "domain" in str(specs["search"].parameters) and "reset" not in str(specs["calculator"].parameters)
    assert ALL.specs(["search"])[0] is specs["search"]


def test_with_auto_the_tools_of_both_profiles_run_and_those_that_were_offered_are_listed() -> None:
    for name in ("remember", "block_edit"):
        assert ALL.get(name, ["auto"]).name == name
    with pytest.raises(
        NotFound, match=r"no tool 'block_edit'; your tools: remember, search, archive, tell, calculator$"
    ):
        ALL.get("block_edit", ["small"])
    with pytest.raises(NotFound, match=r"your tools: remember, search$"):
        ALL.get("shell", ["auto"], offered=["remember", "search"])
    assert (ALL.reader(["auto"]), ALL.reader(["small"])) == ("result", None)


def test_names_for_rules_have_tools_in_the_place_of_profiles() -> None:
    registry = ToolRegistry(
        [look, replace(listen, brief="Listen."), replace(listen, name="talk", enabled_by_default=True)]
    )
    assert registry.named(["auto", "b__*"]) == ("listen", "talk", "b__*")
    assert registry.named(["look", "small", "gone"]) == ("look", "listen", "gone")
    assert all(registry.accepts(name) for name in ("auto", "small", "full"))
