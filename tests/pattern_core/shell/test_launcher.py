from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from pattern_core.shell import launcher
from tests.pattern_core.shell.conftest import needs_proc


@needs_proc
def test_descendants_are_found() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 5 & echo started; wait"], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        below = launcher._descendants(shell.pid)
        assert len(below) == 1
        assert {shell.pid, *below} <= set(launcher._descendants(os.getpid()))
        os.kill(below[0], 9)
    assert launcher._descendants(shell.pid) == []


def test_a_chain_of_processes_may_be_long_and_the_table_full() -> None:
    chain = {pid: pid - 1 for pid in range(2, 50_001)}
    others = dict.fromkeys(range(50_001, 100_001), 0)
    assert sorted(launcher._below(1, chain | others)) == list(range(2, 50_001))


def test_it_runs_by_its_path_with_the_standard_library_alone(tmp_path: Path) -> None:
    status, told = os.pipe()
    plan = {
        "command": "echo $0 $X; exit 3",
        "shell": "/bin/bash",
        "environment": {"X": "y"},
        "status_fd": told,
        "roots": [],
        "readable": [],
        "network": False,
        "means": [],
        "required": [],
        "processes": 20,
        "cpu_s": 5,
        "memory_bytes": 2**30,
        "file_bytes": 1000,
        "open_files": 64,
        "grace_s": 0.1,
    }
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(launcher.__file__), json.dumps(plan)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(told,),
        cwd=tmp_path,
        env={},
    ) as process:
        assert process.stdout is not None
        os.close(told)
        assert process.stdout.read() == b"/bin/bash y\n"
        assert process.wait() == 3
    with os.fdopen(status) as lines:
        assert [json.loads(line) for line in lines] == [{"confined": []}, {"code": 3, "stopped": None}]
