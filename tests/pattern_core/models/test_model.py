from __future__ import annotations

from pattern_core.models.model import ToolSpec


def test_the_digest_of_a_tool_stands_for_all_that_the_model_sees() -> None:
    def spec(**changes: object) -> ToolSpec:
        given: dict[str, object] = {"name": "n", "description": "d", "parameters": {"a": 1, "b": 2}, **changes}
        return ToolSpec(**given)  # type: ignore[arg-type]  # the values are what the fields want

    assert spec().digest == spec(parameters={"b": 2, "a": 1}).digest
    assert len(spec().digest) == 16
    others = [spec(name="x"), spec(description="x"), spec(parameters={"a": 1})]
    assert len({spec().digest, *(other.digest for other in others)}) == 4
