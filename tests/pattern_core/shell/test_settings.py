"""The settings of the shell."""

from __future__ import annotations

import subprocess
import sys


def test_settings_load_no_grammar() -> None:
    code = "import sys, pattern_core.shell.settings; print('tree_sitter' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
