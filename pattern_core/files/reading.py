"""Reading one file's bytes by what its name says it is: text on a thread, everything else in a child process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

import trio

from pattern_core.children import ChildFailed, ChildRefused, Work, run_child
from pattern_core.files.disk import FILE_BYTES_MAX, UnreadableFile, too_long
from pattern_core.files.readers import read_file, read_text

READ_TIMEOUT_S = 60.0  # of wall time
CPU_S = 30
MEMORY_BYTES = 1024 * 1024 * 1024
Syntax = Literal["prose", "markdown", "code"]
"""Where a text has its natural borders."""

_children = trio.CapacityLimiter(4)  # that read at once, of all constellations


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """What a file is by its name. `reader` is html, pdf or docx; empty for text."""

    content_type: str
    syntax: Syntax
    reader: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file's text: lines end with `\\n`. `pages` holds the first line (from 1) of every page, if it has pages."""

    text: str
    kind: FileKind
    pages: tuple[int, ...] = ()


_DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_KINDS = {
    ".html": FileKind(content_type="text/html", reader="html", syntax="markdown"),
    ".pdf": FileKind(content_type="application/pdf", reader="pdf", syntax="prose"),
    ".docx": FileKind(content_type=_DOCX, reader="docx", syntax="markdown"),
    ".md": FileKind(content_type="text/markdown", syntax="markdown"),
}
_KINDS |= dict.fromkeys((".htm", ".xhtml"), _KINDS[".html"])
_KINDS |= dict.fromkeys((".markdown", ".mdown", ".mdx", ".qmd"), _KINDS[".md"])
_TEXT = FileKind(content_type="text/plain", syntax="prose")
_CODE = FileKind(content_type="text/plain", syntax="code")
_CODE_SUFFIXES = (
    ".py .pyi .js .mjs .cjs .jsx .ts .tsx .java .kt .kts .scala .groovy .c .h .cc .cpp .cxx .hpp .cs .go .rs .rb .php"
    " .pl .pm .lua .r .jl .swift .m .mm .dart .ex .exs .erl .hs .ml .clj .lisp .el .sh .bash .zsh .fish .ps1 .sql .vue"
    " .svelte .css .scss .less .tf .nix .zig .v .vhd .asm .s .proto .graphql .gradle .cmake .toml .ini .cfg .yaml .yml"
    " .json .jsonc .xml .mk"
)
_KINDS |= dict.fromkeys(_CODE_SUFFIXES.split(), _CODE)
# Formats that cannot be read, by suffix, each with what to do instead.
_OTHERS = {
    ".doc .dot .odt .rtf .pages .wpd": "word processor files other than .docx are not read; save it as .docx or .txt",
    ".xls .xlsx .ods .numbers": "spreadsheets are not read; save the sheet as .csv",
    ".ppt .pptx .odp .key": "slides are not read; save them as .pdf",
    ".epub .mobi .azw3 .djvu": "books in this format are not read; save it as .html or .pdf",
    ".png .jpg .jpeg .gif .webp .bmp .tif .tiff .ico .heic .psd .avif": "images are not read",
    ".mp3 .wav .flac .ogg .m4a .mp4 .mkv .mov .avi .webm": "sound and film are not read",
    ".zip .gz .tgz .bz2 .xz .zst .7z .rar .tar .jar .war .whl .iso .dmg .deb .rpm .apk": "archives are not read;"
    " unpack it first",
    ".exe .dll .so .dylib .o .a .lib .class .bin .dat .wasm .pyd": "programs and their data are not read",
    ".db .sqlite .sqlite3 .mdb .parquet .feather .npy .npz .pkl .pt .onnx .safetensors": "databases and data files"
    " are not read",
    ".ttf .otf .woff .woff2": "fonts are not read",
}
_REFUSED = {suffix: reason for suffixes, reason in _OTHERS.items() for suffix in suffixes.split()}


def kind_of(name: str) -> FileKind:
    """Return which reader a file of this name needs; what is not known is tried as text.

    Raises:
        UnreadableFile: files of this kind are not read.
    """
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in _REFUSED:
        raise UnreadableFile(_REFUSED[suffix])
    return _KINDS.get(suffix, _TEXT)


async def read_document(name: str, data: bytes) -> Document:
    """Return the text of a file with this name and these bytes.

    Raises:
        UnreadableFile: it cannot be read; the message says why.
    """
    kind = kind_of(name)
    if len(data) > FILE_BYTES_MAX:
        raise too_long(len(data))
    if not data:
        raise UnreadableFile("the file is empty: there is nothing in it to read")
    if not kind.reader:
        return Document(text=await trio.to_thread.run_sync(read_text, data), kind=kind)
    what = f"the {kind.reader.upper()} file"
    found = await read_in_child(read_file, data, kind.reader, what=what, timeout_s=READ_TIMEOUT_S)
    return Document(text=found["text"], kind=kind, pages=tuple(found["pages"]))


async def read_in_child(work: Work, data: bytes, *arguments: str, what: str, timeout_s: float) -> Any:  # Any: JSON
    """Return what a reader says of `data` (called `what` in errors), as the JSON that it writes.

    Raises:
        UnreadableFile: it cannot be read, or not within bounds; the message says why.
    """
    try:
        async with _children:
            found = await run_child(work, data, *arguments, timeout_s=timeout_s, cpu_s=CPU_S, memory_bytes=MEMORY_BYTES)
        return json.loads(found)
    except ChildRefused as error:
        raise UnreadableFile(error.reason) from None
    except ChildFailed as error:
        raise UnreadableFile(
            f"{what} is damaged, too long or made to do harm: the process that read it {error.reason}"
        ) from None
