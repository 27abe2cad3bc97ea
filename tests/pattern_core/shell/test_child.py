"""Commands that really run. What a sandbox holds is tested where the system has one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
import trio
from hypothesis import strategies as st

from pattern_core.shell.child import CommandOutput, Ended, readable, run_child
from pattern_core.shell.launcher import THREADS_MAX, Refused, _checked
from pattern_core.shell.policy import Means, ShellSettings
from tests.pattern_core.shell.conftest import gone, living, needs_files, needs_network, needs_proc

PATIENCE_S = 60.0


async def run(command: str, settings: ShellSettings, *, stop: trio.Event | None = None) -> tuple[Ended, str]:
    output = CommandOutput()
    with trio.fail_after(PATIENCE_S):
        ended = await run_child(command, settings.roots[0], settings, output, trio.Event() if stop is None else stop)
    return ended, output.text()


async def test_a_command_prints_and_ends(settings: ShellSettings, root: Path) -> None:
    ended, text = await run("pwd; echo oops >&2; cat; exit 42", settings)
    assert (ended.code, ended.stopped, ended.refused) == (42, None, None)
    assert text == f"{root}\noops\n"
    ended, text = await run("kill -9 $$", settings)
    assert ended.code == 128 + signal.SIGKILL


async def test_nothing_of_the_servers_environment_is_there(
    settings: ShellSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "hunter2")
    _ended, text = await run("env; cat /proc/*/environ /proc/self/mounts | tr '\\0' '\\n'", settings)
    assert "hunter2" not in text
    assert "HOME=" in text
    names = {line.split("=")[0] for line in text.splitlines() if line.isupper() or "=" in line}
    assert not any("KEY" in name or "TOKEN" in name for name in names)


async def test_temporary_files_stay_out_of_the_directory_where_there_are_namespaces(
    settings: ShellSettings, root: Path
) -> None:
    ended, text = await run("ls -A $TMPDIR | wc -l; touch $TMPDIR/x; echo $TMPDIR", settings)
    if "processes" in ended.confined:
        assert text in ("0\n/tmp\n", "0\n/dev/shm\n")
        assert not any(root.iterdir())


@needs_files
async def test_files_are_confined(settings: ShellSettings, root: Path) -> None:
    (root / "link").symlink_to(root.parent / "secret" / "key")
    tries = "cat ../secret/key; cat link; ls ..; echo x > ../secret/new; echo x > /usr/new; rm ../secret/key"
    ended, text = await run(f"{tries}; echo fine > inside; cat inside", settings)
    assert "files" in ended.confined
    assert "hunter2" not in text
    assert text.count("Permission denied") == 6
    assert text.endswith("fine\n")
    assert [path.name for path in (root.parent / "secret").iterdir()] == ["key"]


@needs_network
async def test_the_network_is_confined(settings: ShellSettings) -> None:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        ended, text = await run(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached", settings)
        assert "network" in ended.confined
        assert "reached" not in text
        for listener in listeners:
            await listener.aclose()
        nursery.cancel_scope.cancel()


async def run_until_living(command: str, settings: ShellSettings, mark: str) -> Ended:
    """Run the command, and stop it as soon as a process with the mark lives."""
    stop = trio.Event()

    async def end() -> None:
        while not living(f"sleep\0{mark}"):
            await trio.sleep(0.01)
        stop.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        ended, _text = await run(command, settings, stop=stop)
        nursery.cancel_scope.cancel()
    return ended


@needs_proc
@pytest.mark.parametrize(
    "command",
    [
        "sleep {mark} & sleep {mark}",
        "(setsid sleep {mark} &)",
        "setsid bash -c '(setsid sleep {mark} &) ; exit' & wait",
        "trap '' TERM HUP INT; (trap '' TERM; setsid sleep {mark}) & sleep {mark}; sleep {mark}",
        "nohup sleep {mark} > /dev/null 2>&1 &",
    ],
)
async def test_nothing_survives_however_it_detaches(command: str, settings: ShellSettings) -> None:
    mark = "86461.25"
    if command.endswith(("&", ")")):
        command += " sleep 0.1"
    await run_until_living(command.format(mark=mark), settings, mark)
    await gone(mark)


@needs_proc
async def test_without_namespaces_nothing_survives_either(open_settings: ShellSettings) -> None:
    # In most containers a user namespace cannot be made.
    open_settings = replace(open_settings, means=["landlock"])
    mark = "86462.25"
    ended, text = await run(f"(setsid sleep {mark} &); setsid -f sleep {mark}; echo done", open_settings)
    assert (ended.code, text) == (0, "done\n")
    assert "processes" not in ended.confined
    await gone(mark)
    ended = await run_until_living(f"trap '' TERM; (setsid sleep {mark} &); sleep {mark}", open_settings, mark)
    assert ended.stopped == "requested"
    await gone(mark)


async def test_a_command_that_is_stopped_before_it_began_never_begins(settings: ShellSettings, root: Path) -> None:
    stop = trio.Event()
    stop.set()
    await run("sleep 0.5; touch made", settings, stop=stop)
    assert not (root / "made").exists()


async def test_output_is_bounded_and_never_stops_a_command(settings: ShellSettings) -> None:
    ended, text = await run("head -c 3000000 /dev/zero | tr '\\0' 'x'; echo; printf '\\xff\\xfe'; echo end", settings)
    assert ended.code == 0
    assert len(text) < 40_000
    assert "bytes left out" in text
    assert text.endswith("��end\n")


@needs_proc
@pytest.mark.parametrize("means", [("namespaces", "landlock"), ("landlock",)])
async def test_too_many_processes_end_it(means: Sequence[Means], open_settings: ShellSettings) -> None:
    mark = "86463.25"
    settings = replace(open_settings, means=means)
    ended, _text = await run(f"for i in {{1..20}}; do sleep {mark} & setsid sleep {mark} & done; wait", settings)
    assert ended.stopped == "processes"
    await gone(mark)


@needs_proc
@pytest.mark.parametrize("means", [("namespaces", "landlock"), ()])
async def test_what_multiplies_has_a_bound_between_two_looks(
    means: Sequence[Means], open_settings: ShellSettings
) -> None:
    ended, text = await run("ulimit -Su; ulimit -Hu", replace(open_settings, means=means))
    assert ended.code == 0
    assert all(line != "unlimited" and int(line) < 10 * THREADS_MAX for line in text.split())


@needs_proc
async def test_memory_and_files_have_bounds(settings: ShellSettings, root: Path) -> None:
    small = replace(settings, memory_mb=64, file_mb=1)
    _ended, text = await run(
        "head -c 2000000 /dev/zero > big; x=$(head -c 90000000 /dev/zero | tr '\\0' x); echo", small
    )
    assert (root / "big").stat().st_size == 1024**2
    assert "cannot allocate" in text


@needs_proc
async def test_killing_the_server_ends_its_commands(settings: ShellSettings, root: Path) -> None:
    mark = "86465.25"
    program = f"""
import trio
from pathlib import Path
from pattern_core.shell.child import CommandOutput, run_child
from pattern_core.shell.policy import ShellSettings
settings = ShellSettings(roots=[Path({str(root)!r})], grace_s=0.1)
command = "trap '' TERM; (setsid sleep {mark} &) ; sleep {mark}"
trio.run(run_child, command, settings.roots[0], settings, CommandOutput(), trio.Event())
"""
    # Not trio's own way, whose process would end with this task: it is killed here.
    with subprocess.Popen([sys.executable, "-c", program]) as server:  # noqa: ASYNC220 - it is started, not waited for
        with trio.fail_after(PATIENCE_S):
            while len(living(mark)) < 4:  # the launcher and its first process, bash, sleep
                await trio.sleep(0.01)
        os.kill(server.pid, signal.SIGKILL)
    await gone(mark)


async def test_a_command_that_cannot_be_confined_or_started_is_refused(settings: ShellSettings, root: Path) -> None:
    settings = replace(settings, means=(), require_sandbox=True)
    ended, text = await run("echo ran", settings)
    assert (ended.code, text) == (None, "")
    assert ended.refused == "this system cannot confine files and network"
    (root / "bin").mkdir()
    (root / "bin" / "bash").write_text("no program")
    ended, _text = await run("ls", replace(settings, require_sandbox=False, path=str(root / "bin")))
    assert ended.refused is not None
    assert "cannot be started" in ended.refused


async def test_cancelled_or_never_begun_it_leaves_no_process_and_no_descriptor(
    settings: ShellSettings, root: Path
) -> None:
    mark = "86464.25"
    await run("true", settings)
    before = len(list(Path("/dev/fd").iterdir()))
    await run("true", settings)
    with trio.move_on_after(0.2) as scope:
        await run(f"sleep {mark}", settings)
    assert scope.cancelled_caught
    assert not living(mark)
    with pytest.raises(FileNotFoundError):
        await run_child("ls", root / "gone", settings, CommandOutput(), trio.Event())
    assert len(list(Path("/dev/fd").iterdir())) == before


async def test_much_keeps_its_beginning_and_end_and_reading_continues_where_it_stopped() -> None:
    output = CommandOutput(head_bytes=4, tail_bytes=4)
    for piece in (b"01", b"2345", b"67"):
        await output.add(piece)
    assert (output.text(), output.total, output.left_out) == ("01234567", 8, 0)
    assert (output.since(0), output.since(6)) == (("01234567", 0), ("67", 0))
    await output.add(b"89abcdef")
    assert (output.text(), output.left_out) == ("0123\n[… 8 bytes left out …]\ncdef", 8)
    assert (output.since(13), output.since(99)) == (("def", 0), ("", 0))
    assert output.since(8) == ("cdef", 4)  # 8 to 11 are lost


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(st.lists(st.binary(min_size=1, max_size=9), max_size=30))
async def test_memory_is_bounded_and_the_ends_are_right(pieces: list[bytes]) -> None:
    output = CommandOutput(head_bytes=5, tail_bytes=7)
    for piece in pieces:
        await output.add(piece)
    whole = b"".join(pieces)
    assert len(output._head) <= 5
    assert len(output._tail) <= 2 * 7 + 9
    assert output.left_out == max(0, len(whole) - 12)
    assert output.text().startswith(readable(whole[:5])) or len(whole) <= 12
    if output.left_out:
        assert output.text().endswith(readable(whole[-7:]))


def test_terminals_commands_are_taken_out() -> None:
    data = b"\x1b[31mred\x1b[0m\x1b]0;title\x07 \xff\x00\r\nline\rover\x1b(B"
    assert readable(data).startswith("red �\nline\nover")
    assert "\x1b" not in readable(data)


def test_what_the_kernel_refuses_confines_nothing_and_is_an_error() -> None:
    assert _checked(3) == 3 and _checked(0) == 0
    with pytest.raises(Refused, match="Landlock refuses"):
        _checked(-1)
