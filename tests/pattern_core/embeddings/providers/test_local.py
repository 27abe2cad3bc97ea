from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import trio
import trio.testing

from pattern_core.embeddings.embedder import EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.providers.local import LocalEmbedder, LocalLimits, Turns, child_command
from pattern_core.embeddings.settings import EmbedderSettings, Purpose
from tests.pattern_core.embeddings.local import golden
from tests.pattern_core.embeddings.played_child import DIMENSION, stand_in_command

ROOT = Path(__file__).resolve().parents[4]
LIMITS = LocalLimits(rest_s=60.0, unusable_s=300.0)


@asynccontextmanager
async def played(
    plan: EmbedderSettings | None = None,
    limits: LocalLimits = LIMITS,
    command: Sequence[str] | None = None,
    *,
    is_real: bool = False,
) -> AsyncIterator[LocalEmbedder]:
    command = None if is_real else command or stand_in_command(plan)
    embedder = LocalEmbedder(plan or EmbedderSettings(), limits=limits, command=command)
    try:
        yield embedder
    finally:
        await embedder.aclose()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # There may be no parent to reap it; a zombie has ended.
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # a zombie may still have threads that end


def rested(embedder: LocalEmbedder) -> None:
    """As if the time after a failure were over."""
    embedder._rests_until = -math.inf


async def warm(embedder: LocalEmbedder) -> int:
    """Have it embed something; return the id of the child."""
    assert await works(embedder, "warm")
    assert embedder.worker.pid is not None
    return embedder.worker.pid


async def works(embedder: LocalEmbedder, text: str = "fine") -> bool:
    return await embedder.embed([text], purpose="query") == [hashed_words(text, DIMENSION)]


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


async def test_info_starts_the_child_once_and_closing_ends_it() -> None:
    async with played() as embedder:
        pids = [embedder.worker.pid]
        info = await embedder.info()
        assert (info.provider, info.model, info.dimension, info.fingerprint) == ("local", "played", 64, "ab" * 32)
        pids.append(embedder.worker.pid)
        pid = await warm(embedder)
        assert pids == [None, pid] and is_alive(pid)
    assert not is_alive(pid)
    assert "stopping" in (await refused(embedder, "a")).message


async def test_a_child_that_was_killed_is_replaced_by_the_next_question() -> None:
    async with played() as embedder:
        pid = await warm(embedder)
        kill(pid)
        assert await works(embedder, "b")
        assert embedder.worker.pid not in (None, pid)


async def test_a_text_that_kills_the_child_is_refused_and_the_next_one_works() -> None:
    async with played() as embedder:
        error = await refused(embedder, "crash")
        assert isinstance(error, TextsRefused)
        assert "signal 9" in error.message
        assert isinstance(wait_s := error.details["retry_after_s"], float) and 30 < wait_s <= 60
        again = await refused(embedder, "fine")  # it rests, and no child is started meanwhile
        assert again.message == error.message and embedder.worker.pid is None
        assert not isinstance(again, TextsRefused)
        rested(embedder)
        assert await works(embedder)


async def test_a_child_that_hangs_is_killed() -> None:
    async with played(limits=LocalLimits(answer_s=1.0)) as embedder:
        pid = await warm(embedder)
        assert "did not answer within 1 s" in (await refused(embedder, "hang")).message
        assert not is_alive(pid)
        rested(embedder)
        assert await works(embedder)


@pytest.mark.parametrize(("text", "words"), [("babble", "not an answer"), ("short", "wrong length")])
async def test_what_is_no_answer_is_refused(text: str, words: str) -> None:
    async with played() as embedder:
        assert words in (await refused(embedder, text, "b")).message
        rested(embedder)
        assert await works(embedder)


async def test_a_cancelled_question_leaves_the_others_their_answers() -> None:
    async with played() as embedder:
        pid = await warm(embedder)
        for round_ in range(5):
            with trio.move_on_after(0.03) as scope:
                await embedder.embed(["slow"], purpose="query")
            assert scope.cancelled_caught
            text = f"after {round_}"
            assert await works(embedder, text)
        assert embedder.worker.pid == pid


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
        pid = await warm(embedder)
        with trio.fail_after(60):
            while is_alive(pid):
                await trio.sleep(0.05)
        assert await works(embedder, "b")
        assert embedder.worker.pid not in (None, pid)


@pytest.mark.parametrize(("model", "words"), [("unusable", "not installed"), ("broken", "does not load")])
async def test_what_cannot_be_used_is_said_once_and_looked_for_again_later(model: str, words: str) -> None:
    async with played(EmbedderSettings(model=model)) as embedder:
        assert model == "unusable" or (await embedder.info()).model == "broken"  # not loaded yet
        error = await refused(embedder, "a")
        assert words in error.message
        assert (error.code, error.details) == ("embedder_unavailable", {"retry_after_s": None})
        pid = embedder.worker.pid
        assert pid is not None
        kill(pid)  # so that a question to it would start another one
        again = await refused(embedder, "a")
        assert (again.message, again.details) == (error.message, error.details)
        assert embedder.worker.pid in (None, pid)
        rested(embedder)
        assert (await refused(embedder, "a")).message == error.message
        assert embedder.worker.pid not in (None, pid)


async def test_weights_that_change_meanwhile_are_not_mixed() -> None:
    async with played(EmbedderSettings(model="changes")) as embedder:
        pid = await warm(embedder)
        kill(pid)
        assert "changed while the server ran" in (await refused(embedder, "a")).message


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "could not be started"),
        ("raise SystemExit('one\\nno memory left')", "exit code 1: no memory left"),
        ("import os; os.kill(os.getpid(), 6)", r"ended with signal 6\."),
        ("input(); print('Loading weights: 100%'); input()", "what is not an answer"),
        ("input(); print('[]'); input()", "what is not an answer"),
        ("input(); print('x' * 5_000_000); input()", "more than 4194304 bytes"),
    ],
)
async def test_a_child_that_does_not_serve_says_why(script: str | None, words: str) -> None:
    command = ["/no/such/program"] if script is None else [sys.executable, "-uc", script]
    async with played(command=command) as embedder:
        with pytest.raises(EmbedderUnavailable, match=words):
            await embedder.info()
        assert embedder.worker.pid is None


async def test_closing_refuses_what_waits() -> None:
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
    assert embedder.worker.pid is None


async def test_the_real_model_says_the_same_through_its_process() -> None:
    async with played(EmbedderSettings(runtime="onnx"), LocalLimits(), is_real=True) as embedder:
        info = await embedder.info()
        assert (info.model, info.dimension) == ("all-MiniLM-L6-v2", 384)
        vectors = await embedder.embed(golden.SENTENCES, purpose="passage")
        assert golden.similarities(vectors) == pytest.approx(golden.SIMILARITIES, abs=5e-3)
        many = await embedder.embed(golden.TEXTS + golden.SENTENCES, purpose="passage")
        assert many[-3:] == vectors


@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="needs the extra [local]")
async def test_a_model_that_is_not_here_is_refused_without_asking_the_network() -> None:
    async with played(EmbedderSettings(model="BAAI/bge-small-en-v1.5"), is_real=True) as embedder:
        with trio.fail_after(30):  # the hub's client tries for more than a minute where it may
            error = await refused(embedder, "a")
        assert "not on this machine" in error.message and "allow_download" in error.message
        assert error.details == {"retry_after_s": None}


def test_the_child_gets_no_network_unless_that_is_allowed() -> None:
    closed, opened = (child_command(EmbedderSettings(allow_download=allowed)) for allowed in (False, True))
    assert {"ORT_DISABLE_TELEMETRY=1", "HF_HUB_DISABLE_TELEMETRY=1"} <= set(closed)
    assert "HF_HUB_OFFLINE=1" in closed and "HF_HUB_OFFLINE=0" in opened
    assert closed[-1] == EmbedderSettings().to_json() and "OMP_NUM_THREADS=1" in closed


async def test_the_child_ends_with_its_parent() -> None:
    script = (
        "import trio, sys\n"
        "from pattern_core.embeddings.providers.local import Worker\n"
        "from tests.pattern_core.embeddings.played_child import stand_in_command\n"
        "async def main():\n"
        "    worker = Worker(stand_in_command())\n"
        "    await worker.ask({'do': 'info'}, timeout_s=20)\n"
        "    print(worker.pid, flush=True)\n"
        "    await worker.ask({'do': 'embed', 'texts': ['hang']}, timeout_s=60)\n"
        "trio.run(main)\n"
    )
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT, check=False)
        process = await nursery.start(start)
        pid = int(await process.stdout.receive_some(100))
        process.kill()
        with trio.fail_after(60):
            while is_alive(pid):
                await trio.sleep(0.05)


async def test_queries_first_and_each_kind_in_order() -> None:
    turns, order = Turns(), []

    async def take(name: str, purpose: Purpose) -> None:
        async with turns.taken(purpose):
            order.append(name)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery, turns.taken("passage"):
        asked: list[tuple[str, Purpose]] = [("p1", "passage"), ("q1", "query"), ("p2", "passage"), ("q2", "query")]
        for name, purpose in asked:
            nursery.start_soon(take, name, purpose)
            await trio.testing.wait_all_tasks_blocked()
    assert order == ["q1", "q2", "p1", "p2"]


async def test_who_is_cancelled_while_waiting_does_not_keep_the_turn() -> None:
    turns = Turns()
    async with turns.taken("query"):
        with trio.move_on_after(0.01) as scope:
            async with turns.taken("query"):
                raise AssertionError
        assert scope.cancelled_caught
    with trio.fail_after(60):
        async with turns.taken("query"):
            pass


async def test_too_many_are_sent_away() -> None:
    turns = Turns(waiting_max=1)

    async def wait() -> None:
        async with turns.taken("passage"):
            pass

    async with trio.open_nursery() as nursery, turns.taken("passage"):
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(EmbedderUnavailable, match="busy") as caught:
            await wait()
        assert caught.value.details == {"retry_after_s": 5.0}
