"""An interactive chat's terminal: a prompt that stays at the bottom, and everything else, printed above it.

prompt_toolkit draws what is below the finished text: the answer's unfinished block, what is waited for, and the prompt.
It has a thread and an event loop of its own. The other threads hand it functions (`_in_loop`), and it hands what was
typed to trio. Finished text is printed once and never drawn again.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import ClassVar

import trio
from markdown_it import MarkdownIt
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from rich.console import Console, JustifyMethod, RenderableType
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.text import Text
from rich.theme import Theme

from pattern_core.untrusted import plain
from pattern_server.cli.chat_screen import Lines, typed_text

TYPED_MAX = 100  # lines that wait to be read
HISTORY_BYTES_MAX = 1_000_000
LINE_MAX = 10_000  # where a line is not to be wrapped
TICK_S = 0.1
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PROMPT = "you> "
YOU, QUESTION = "bold cyan", "bold yellow"
# No backgrounds: they are made for one kind of terminal, light or dark.
THEME = Theme({"markdown.code": "cyan", "markdown.code_block": "cyan"})

_BLOCKS = MarkdownIt().enable("table").enable("strikethrough")


class Key(Enum):
    """What a person types other than lines."""

    INTERRUPT = auto()
    END = auto()


class Terminal(io.TextIOBase):
    """A prompt: lines and keys arrive in `typed`. As a file it prints above the prompt.

    `names` are completed after a command: `{"/memory": ["human"]}`; its keys are the commands.
    """

    def __init__(self, history: Path, names: Mapping[str, Sequence[str]]) -> None:
        self._send, self.typed = trio.open_memory_channel[str | Key](TYPED_MAX)
        self.names = names
        self._token = trio.lowlevel.current_trio_token()
        self.started = trio.Event()
        self._asking = trio.Lock()
        self._answer: trio.MemorySendChannel[str | Key] | None = None
        self._question = ""
        self._live, self._phase, self._since = "", "", 0.0
        self._line = ""  # printed in part
        output = create_output(stdout=sys.stdout)
        if isinstance(output, Vt100_Output):
            output.enable_cpr = False  # nothing here needs to know the cursor's row, and some terminals do not say it
        self._session: PromptSession[str] = PromptSession(
            self._message,
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            key_bindings=self._keys(),
            history=_history(history),
            completer=_Names(self),
            complete_while_typing=Condition(lambda: self._session.default_buffer.text.startswith("/")),
            reserve_space_for_menu=4,
            editing_mode=_editing_mode(),
            erase_when_done=True,
            output=output,
        )

    # trio's side

    async def run(self) -> None:
        """Show the prompt until it is closed or cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick)
            await trio.to_thread.run_sync(self._read)
            self._hand(Key.END)
            nursery.cancel_scope.cancel()

    async def ask(self, question: str, default: str = "") -> str:
        """Return the line that answers a question, which may change the text `default`.

        A message that was being typed comes back afterwards.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed instead.
        """
        async with self._asking:
            self._answer, answer = trio.open_memory_channel[str | Key](1)
            draft = self._session.default_buffer.document
            self._in_loop(partial(self._put, question, Document(default)))
            try:
                typed = await answer.receive()
            finally:
                self._answer = None
                self._in_loop(partial(self._put, "", draft))
        if isinstance(typed, Key):
            raise KeyboardInterrupt
        return typed

    def show(self, text: str, live: str = "") -> None:
        """Print lines above the prompt, and draw `live` between them and it."""
        self._in_loop(partial(self._above, text, live))

    def phase(self, text: str) -> None:
        """Say what is waited for, and since when; nothing if the text is empty."""
        if text != self._phase:
            self._phase, self._since = text, time.monotonic()
            self._session.app.invalidate()

    @property
    def columns(self) -> int:
        """The width."""
        return self._session.output.get_size().columns

    def isatty(self) -> bool:
        """Return True: what is printed may have colours."""
        return True

    def write(self, text: str) -> int:
        """Print the whole lines of what was written."""
        whole, end, self._line = (self._line + text).rpartition("\n")
        if end:
            self._in_loop(partial(self._above, rendered(Text.from_ansi(whole), self.columns) + end, None))
        return len(text)

    async def _tick(self) -> None:
        try:
            while True:
                await trio.sleep(TICK_S)
                if self._phase:
                    self._session.app.invalidate()
        finally:
            with trio.CancelScope(shield=True):
                await self.started.wait()  # else it could not be ended
            self.close()

    def close(self) -> None:
        """End the prompt; `typed` has `Key.END` then."""
        self._in_loop(lambda: self._session.app.exit(result="") if self._session.app.is_running else None)

    def _take(self, typed: str | Key, is_answer: bool) -> None:
        if self._answer is not None and (is_answer or typed is Key.INTERRUPT):
            self._answer.send_nowait(typed)
            self._answer = None
            return
        if is_answer:
            return
        try:
            self._send.send_nowait(typed)
        except trio.WouldBlock:
            self.write(f"({TYPED_MAX} lines wait already; this one was not read)\n")

    # The prompt's thread

    def _read(self) -> None:
        try:
            self._session.prompt(pre_run=lambda: self._token.run_sync_soon(self.started.set), handle_sigint=False)
        except EOFError:
            pass
        finally:
            self._token.run_sync_soon(self.started.set)

    def _in_loop(self, function: Callable[[], object]) -> None:
        loop = self._session.app.loop
        if loop is None or loop.is_closed():
            function()
        else:
            loop.call_soon_threadsafe(function)

    def _hand(self, typed: str | Key, *, is_answer: bool = False) -> None:
        self._token.run_sync_soon(self._take, typed, is_answer)

    def _above(self, text: str, live: str | None) -> None:
        self._live = self._live if live is None else live
        if text:
            self._session.app.renderer.erase()
            self._session.output.write_raw(text)
            self._session.output.flush()
        self._session.app.invalidate()

    def _put(self, question: str, document: Document) -> None:
        self._question = question
        self._session.default_buffer.set_document(document, bypass_readonly=True)
        self._session.app.invalidate()

    def _message(self) -> ANSI:
        rows = self._session.output.get_size().rows
        above = self._live.splitlines()[-max(rows // 2, 1) :]
        if self._phase:
            seconds = time.monotonic() - self._since
            frame = FRAMES[int(seconds / TICK_S) % len(FRAMES)]
            above.append(styled(f"{frame} {self._phase} · {int(seconds)} s", "dim"))
        label = styled(self._question, QUESTION) if self._question else styled(PROMPT, YOU)
        return ANSI("\n".join([*above, label]))

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _enter(event: KeyPressEvent) -> None:
            buffer, is_answer = event.current_buffer, bool(self._question)
            if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
                buffer.complete_state = None  # it was chosen, and may be continued
                return
            text = buffer.text
            if not text.strip() and not is_answer:
                return
            buffer.reset(append_to_history=not is_answer)
            shown = typed_text(text)
            label, style = (self._question, QUESTION) if is_answer else (PROMPT, YOU)
            self._above(
                "\n" * (not is_answer) + styled(label, style) + shown.replace("\n", "\n" + " " * len(PROMPT)) + "\n",
                None,
            )
            self._question = ""
            self._hand(shown, is_answer=is_answer)

        @keys.add("escape", "enter")
        def _new_line(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("c-c")
        def _interrupt(event: KeyPressEvent) -> None:
            if event.current_buffer.text and not self._phase and not self._question:
                event.current_buffer.reset()
            else:
                self._hand(Key.INTERRUPT)

        return keys


class _Names(Completer):
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        command, space, begun = document.text_before_cursor.partition(" ")
        names = self._terminal.names
        if not command.startswith("/") or "\n" in document.text:
            return
        for name in names.get(command, ()) if space else names:
            word = begun if space else command
            if name.startswith(word):
                yield Completion(name, start_position=-len(word))


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}  # all of them on the left


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}


class Live(Lines):
    """Shows answers as Markdown: a block is printed when it is finished, the last one drawn as it grows."""

    def __init__(self, terminal: Terminal, name: str) -> None:
        self._terminal = terminal
        self._name: str | None = name
        self._text = ""

    def words(self, text: str) -> None:
        """Add a piece of an answer."""
        self._text += plain(text)
        start = last_block(self._text)
        done, self._text = self._text[:start], self._text[start:]
        shown = self._markdown(done)
        self._show(shown and f"{shown}\n", self._markdown(self._text))

    def end(self, *, is_void: bool = False) -> None:
        """Print the last block; of an answer that is void, take it off the screen."""
        text, self._text = self._text, ""
        self._show("" if is_void else self._markdown(text))

    def note(self, text: str, style: str = "") -> None:
        """Print a line in a style."""
        self.end()
        text = rendered(Text(plain(text), style), self._terminal.columns) + "\n"
        if style == "dim":  # about the turn, not by the agent
            self._terminal.show(text)
        else:
            self._show(text)

    def phase(self, text: str) -> None:
        """Show next to the spinner what is waited for."""
        self._terminal.phase(text)

    def _show(self, text: str, live: str = "") -> None:
        if (text or live) and self._name:
            text, self._name = styled(self._name, "bold magenta") + "\n" + text, None
        self._terminal.show(text, live)

    def _markdown(self, text: str) -> str:
        made = rendered(_Markdown(text, code_theme="ansi_dark", hyperlinks=False), self._terminal.columns)
        lines = "\n".join(line.rstrip() for line in made.split("\n")).strip("\n")
        return f"{lines}\n" if lines else ""


def last_block(text: str) -> int:
    """Return where the last block of a Markdown text begins: all before it is finished."""
    blocks = [token.map for token in _BLOCKS.parse(text) if token.level == 0 and token.map is not None]
    if len(blocks) < 2:
        return 0
    return sum(map(len, text.splitlines(keepends=True)[: blocks[-1][0]]))


def rendered(what: RenderableType, columns: int) -> str:
    """Return what rich makes of it, as text with escape sequences."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=columns, highlight=False, theme=THEME)
    console.print(what, end="")
    return file.getvalue()


def styled(text: str, style: str) -> str:
    """Return a text in a style, without a line's end."""
    return rendered(Text(text, style, end=""), LINE_MAX)


def _history(file: Path) -> FileHistory:
    """Return the lines typed before, in a file that only its owner reads; of a long one the newer half is kept."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.touch(mode=0o600)
    if file.stat().st_size > HISTORY_BYTES_MAX:
        file.write_bytes(file.read_bytes()[-HISTORY_BYTES_MAX // 2 :].partition(b"\n\n")[2])
    return FileHistory(str(file))


def _editing_mode() -> EditingMode:
    """Return the keys that the user's other programs have, by ~/.inputrc."""
    try:
        lines = (Path.home() / ".inputrc").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return EditingMode.EMACS
    return EditingMode.VI if ["set", "editing-mode", "vi"] in map(str.split, lines) else EditingMode.EMACS
