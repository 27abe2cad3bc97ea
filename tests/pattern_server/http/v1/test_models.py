"""Embeddings as OpenAI's own client asks for them. Which models there are is in `test_chat.py`."""

from __future__ import annotations

import math

import openai
import pytest

from tests.pattern_server.http.v1.test_chat import client_of
from tests.pattern_server.place import Place


async def test_texts_are_embedded_in_both_encodings_and_cut_to_length_one(place: Place) -> None:
    embedder = place.parts.state.runtime.embedders.configured
    info = await embedder.info()
    texts = [f"tea {number}" for number in range(40)]  # more than the model embeds at once
    # The client's type of a vector does not allow the encoding that it asks for itself.
    async with client_of(place, _strict_response_validation=False) as client:
        packed = await client.embeddings.create(model=info.model, input=texts)  # base64, unless it is told otherwise
        plain = await client.embeddings.create(model=info.model, input=texts, encoding_format="float")
        assert [one.index for one in plain.data] == list(range(40))
        for one, other in zip(packed.data, plain.data, strict=True):
            assert len(one.embedding) == info.dimension and one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert plain.data[0].embedding != plain.data[1].embedding
        [cut] = (await client.embeddings.create(model=info.model, input="tea 0", dimensions=8)).data
        assert len(cut.embedding) == 8 and math.hypot(*cut.embedding) == pytest.approx(1, abs=1e-5)
        whole = plain.data[0].embedding[:8]
        scale = math.hypot(*whole)
        assert cut.embedding == pytest.approx([number / scale for number in whole], abs=1e-5)
        for more in (
            {"model": "other"},
            {"input": [[1, 2]]},
            {"input": ["tea", ""]},
            {"dimensions": info.dimension + 1},
        ):
            with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
                await client.embeddings.create(**{"model": info.model, "input": "tea", **more})
