from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.tools.calling import done, needed


def test_needed_takes_empty_text_but_not_nothing() -> None:
    assert needed("", "content", "append") == ""
    with pytest.raises(InvalidInput, match="the operation append needs `content`"):
        needed(None, "content", "append")


def test_answers_have_data_only_if_there_is_some() -> None:
    assert done("Pinned") == {"success": True, "message": "Pinned"}
    assert done("Stored", entry_id="x")["data"] == {"entry_id": "x"}
