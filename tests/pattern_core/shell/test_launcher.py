from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from pattern_core.children import isolated
from pattern_core.shell import launcher


def test_it_runs_with_the_standard_library_alone(tmp_path: Path) -> None:
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
        isolated(launcher.__name__, json.dumps(plan)),
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
