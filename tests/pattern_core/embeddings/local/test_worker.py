from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from pattern_core.embeddings.embedder import EmbedderUnavailable
from pattern_core.embeddings.providers.local import Turns, Worker, WorkerFailed, WorkerHung, child_command
from pattern_core.embeddings.settings import EmbedderSettings, Purpose
from pattern_core.testing.embedding_child import stand_in_command

INFO = {"do": "info"}
ROOT = Path(__file__).resolve().parents[4]


async def test_one_child_answers_all_questions_and_is_replaced_after_its_end() -> None:
    worker = Worker(stand_in_command())
    assert (await worker.ask(INFO, timeout_s=20))["model"] == "played"
    pid = worker.pid
    await worker.ask(INFO, timeout_s=20)
    assert worker.pid == pid
    await worker.stop()
    await worker.stop()
    await worker.ask(INFO, timeout_s=20)
    assert worker.pid not in (None, pid)
    await worker.stop()


async def test_late_answers_are_dropped() -> None:
    worker = Worker(stand_in_command())
    await worker.ask(INFO, timeout_s=20)
    for _ in range(3):
        with trio.move_on_after(0.01):
            await worker.ask({"do": "embed", "texts": ["slow"]}, timeout_s=20)
    assert "model" in await worker.ask(INFO, timeout_s=20)
    await worker.stop()


async def test_a_child_that_does_not_even_read_is_given_up() -> None:
    worker = Worker(stand_in_command())
    await worker.ask(INFO, timeout_s=20)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(WorkerHung, match=r"within 0\.2 s"):
        await worker.ask(INFO, timeout_s=0.2)
    assert worker.pid is None


async def test_last_words_are_passed_on() -> None:
    script = "import sys; sys.stderr.write('one\\nMemoryError: no room\\n'); sys.stdin.buffer.read(1); sys.exit(3)"
    worker = Worker([sys.executable, "-c", script])
    with pytest.raises(WorkerFailed, match="exit code 3: MemoryError: no room"):
        await worker.ask(INFO, timeout_s=20)
    worker = Worker([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGABRT)"])
    with pytest.raises(WorkerFailed, match=r"signal 6$"):
        await worker.ask(INFO, timeout_s=20)


def test_the_child_gets_no_network_unless_that_is_allowed() -> None:
    closed, opened = (child_command(EmbedderSettings(allow_download=allowed)) for allowed in (False, True))
    assert {"ORT_DISABLE_TELEMETRY=1", "HF_HUB_DISABLE_TELEMETRY=1"} <= set(closed)
    assert "HF_HUB_OFFLINE=1" in closed and "HF_HUB_OFFLINE=0" in opened
    assert closed[-1] == EmbedderSettings().to_json() and "OMP_NUM_THREADS=1" in closed


async def test_the_child_ends_with_its_parent() -> None:
    script = (
        "import trio, sys\n"
        "from pattern_core.embeddings.providers.local import Worker\n"
        "from pattern_core.testing.embedding_child import stand_in_command\n"
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
            while is_running(pid):
                await trio.sleep(0.05)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("b'Loading weights: 100%\\n'", "what is no answer"),
        ("b'[]\\n'", "what is no answer"),
        ("b'\\xff\\n'", "what is no answer"),
        ("b'x' * 5_000_000", "more than 4194304 bytes"),
    ],
)
async def test_what_is_no_answer_is_noticed(written: str, words: str) -> None:
    script = f"import sys; sys.stdin.buffer.readline(); sys.stdout.buffer.write({written}); sys.stdout.flush(); input()"
    worker = Worker([sys.executable, "-c", script])
    with pytest.raises(WorkerFailed, match=words):
        await worker.ask(INFO, timeout_s=20)
    assert worker.pid is None


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Nobody may be there to reap it; a zombie has ended.
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


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
    with trio.fail_after(60), pytest.raises(ValueError, match="mine"):
        async with turns.taken("passage"):
            raise ValueError("mine")
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
