"""What reading a file comes to, and which reader a file needs."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from pattern_core.files.disk import UnreadableFile

TEXT_CHARS_MAX = 5_000_000


class Syntax(StrEnum):
    """Where a text has its natural borders."""

    PROSE = "prose"
    MARKDOWN = "markdown"
    CODE = "code"


class Reader(StrEnum):
    """Who reads the bytes. All but text are read in a child process."""

    TEXT = "text"
    HTML = "html"
    PDF = "pdf"
    DOCX = "docx"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """What a file is by its name."""

    content_type: str
    reader: Reader
    syntax: Syntax


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file's text: lines end with `\\n`. `pages` holds the first line (from 1) of every page, if it has pages."""

    text: str
    syntax: Syntax
    content_type: str
    pages: tuple[int, ...] = ()


_DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_KINDS = {
    ".html": FileKind(content_type="text/html", reader=Reader.HTML, syntax=Syntax.MARKDOWN),
    ".pdf": FileKind(content_type="application/pdf", reader=Reader.PDF, syntax=Syntax.PROSE),
    ".docx": FileKind(content_type=_DOCX, reader=Reader.DOCX, syntax=Syntax.MARKDOWN),
    ".md": FileKind(content_type="text/markdown", reader=Reader.TEXT, syntax=Syntax.MARKDOWN),
}
_KINDS |= dict.fromkeys((".htm", ".xhtml"), _KINDS[".html"])
_KINDS |= dict.fromkeys((".markdown", ".mdown", ".mdx", ".qmd"), _KINDS[".md"])
_TEXT = FileKind(content_type="text/plain", reader=Reader.TEXT, syntax=Syntax.PROSE)
_CODE = FileKind(content_type="text/plain", reader=Reader.TEXT, syntax=Syntax.CODE)
_CODE_SUFFIXES = (
    ".py .pyi .js .mjs .cjs .jsx .ts .tsx .java .kt .kts .scala .groovy .c .h .cc .cpp .cxx .hpp .cs .go .rs .rb .php"
    " .pl .pm .lua .r .jl .swift .m .mm .dart .ex .exs .erl .hs .ml .clj .lisp .el .sh .bash .zsh .fish .ps1 .sql .vue"
    " .svelte .css .scss .less .tf .nix .zig .v .vhd .asm .s .proto .graphql .gradle .cmake .toml .ini .cfg .yaml .yml"
    " .json .jsonc .xml .mk"
)
_CODE_NAMES = frozenset(_CODE_SUFFIXES.split())
# Formats with an own name that cannot be read here; what to do instead stands behind it.
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
    """Which reader a file of this name needs; what is not known is tried as text.

    Raises:
        UnreadableFile: files of this kind are not read.
    """
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in _REFUSED:
        raise UnreadableFile(_REFUSED[suffix])
    if suffix in _KINDS:
        return _KINDS[suffix]
    return _CODE if suffix in _CODE_NAMES else _TEXT


def clean(text: str) -> str:
    """`text` with `\\n` as the only line end and without characters that no text needs.

    Raises:
        UnreadableFile: nothing is left to read, or it is longer than `TEXT_CHARS_MAX` characters.
    """
    plain = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace("\0", "")
    plain = plain.encode("utf-8", "replace").decode("utf-8")  # half characters are no text to SQLite
    if len(plain) > TEXT_CHARS_MAX:
        raise UnreadableFile(
            f"the text has {len(plain)} characters; at most {TEXT_CHARS_MAX} are read, so split the file"
        )
    if not any(unicodedata.category(character)[0] not in "ZC" for character in plain):
        raise UnreadableFile("the file is empty: there is nothing in it to read")
    return plain
