"""Take the README's pictures: a chat that really runs, in a pseudo-terminal, as SVG for light and dark pages.

    python -m tests.picture

The program is ours, and so is the server; the built-in rules answer, so that no key is needed and every run is alike.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

import pyte
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.color import Color, parse_rgb_hex
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.docs import PAGES
from tests.machine import Machine

COLUMNS, LINES = 92, 60
PATIENCE_S = 60.0
STILL_S = 1.0  # without output, until a screen counts as finished
PROMPT = "you>"
TALK = (
    "Remember that my sister Ruth lives in Lisbon.",
    "Please remember that Ruth is allergic to walnuts.",
    "What do you know about Ruth?",
    "/undo",
)
NAMES = {"brown": "yellow", "brightbrown": "brightyellow"}  # pyte's words for a colour
# Background, text, then black, red, green, yellow, blue, magenta, cyan, white, and the same in bright.
LIGHT = """ffffff 24292f 24292f cf222e 116329 953800 0969da 8250df 1b7c83 57606a
    57606a a40e26 1a7f37 633c01 218bff a475f9 3192aa 6e7781"""
DARK = """0d1117 e6edf3 484f58 ff7b72 3fb950 d29922 58a6ff bc8cff 39c5cf b1bac4
    6e7681 ffa198 56d364 e3b341 79c0ff d2a8ff 56d4dd ffffff"""
# Readers' own fonts: a picture must not ask another server for one.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono"
)


class Screen(pyte.Screen):
    """A screen that shows dim text, which the library ignores, in the colour of bright black."""

    def select_graphic_rendition(self, *attrs: int, **flags: Any) -> None:
        """Set the style of what follows. Called by the library."""
        super().select_graphic_rendition(*attrs, **flags)
        if 2 in attrs and not {38, 48} & {*attrs}:
            self.cursor.attrs = self.cursor.attrs._replace(fg="brightblack")


def record(machine: Machine) -> pyte.Screen:
    """Hold the talk in a terminal, and return its screen."""
    screen = Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**machine.environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment.pop("COLUMNS")
    command = [str(machine.home / "bin/pattern"), "chat", "-c", "home"]
    with subprocess.Popen(
        command, cwd=machine.home, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        try:
            _read(ours, stream, screen)
            for typed in TALK:
                os.write(ours, typed.encode() + b"\r")
                _read(ours, stream, screen)
        finally:
            process.kill()
    return screen


def _read(terminal: int, stream: pyte.ByteStream, screen: pyte.Screen) -> None:
    """Feed what the program writes until it asks for input and nothing more comes."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], STILL_S)[0]:
            data = os.read(terminal, 65536)
            stream.feed(data)
            if b"\x1b[6n" in data:  # the program asks where the cursor is
                os.write(terminal, f"\x1b[{screen.cursor.y + 1};{screen.cursor.x + 1}R".encode())
        elif any(line.strip() == PROMPT for line in screen.display):
            return
    raise TimeoutError("the program does not ask for input:\n" + "\n".join(screen.display))


def lines_of(screen: pyte.Screen) -> list[Text]:
    """The screen's lines with their styles, without empty ones at the end."""
    made = []
    for number in range(LINES):
        line = Text()
        for style, chars in groupby((screen.buffer[number][column] for column in range(COLUMNS)), _style):
            line.append("".join(char.data for char in chars), style)
        line.rstrip()
        made.append(line)
    while made and not made[-1].plain.strip():
        made.pop()
    return made


def _style(char: Any) -> Style:
    return Style(
        color=_color(char.fg), bgcolor=_color(char.bg), bold=char.bold, italic=char.italics,
        underline=char.underscore, reverse=char.reverse,
    )  # fmt: skip


def _color(name: str) -> Color | None:
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return Color.parse(f"#{name}")
    return Color.parse(NAMES.get(name, name).replace("bright", "bright_"))


def picture_of(lines: Sequence[Text], colors: str) -> str:
    """The lines as SVG, in these colours."""
    background, text, *others = [(color[0], color[1], color[2]) for color in map(parse_rgb_hex, colors.split())]
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, legacy_windows=False)
    for line in lines:
        console.print(line, no_wrap=True)
    theme = TerminalTheme(background, text, others[:8], others[8:])
    return console.export_svg(title="pattern chat", theme=theme, code_format=FORMAT, unique_id="chat")


def main() -> int:
    """Take both pictures."""
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder))
        with machine.serving():
            lines = lines_of(record(machine))
    for name, colors in (("light", LIGHT), ("dark", DARK)):
        (PAGES / f"chat-{name}.svg").write_text(picture_of(lines, colors), encoding="utf-8")
    sys.stdout.write("\n".join(line.plain for line in lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
