from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.embeddings.local.models import BATCH_TEXTS_MAX, WIDTH, batches, padded


@given(st.lists(st.integers(0, 600), max_size=40), st.sampled_from([64, 256, 2_048]))
def test_texts_are_read_with_those_of_their_own_width(lengths: list[int], tokens_max: int) -> None:
    found = batches(lengths, tokens_max=tokens_max)
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        widths = {padded(lengths[index]) for index in batch}
        assert len(widths) == 1 and len(batch) <= BATCH_TEXTS_MAX
        assert len(batch) == 1 or widths.pop() * len(batch) <= tokens_max


def test_widths() -> None:
    assert [padded(length) for length in (0, 1, WIDTH, WIDTH + 1)] == [WIDTH, WIDTH, WIDTH, 2 * WIDTH]
