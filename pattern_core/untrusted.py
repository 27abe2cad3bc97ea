"""Untrusted text, marked as data from its source: results of tools, files, the web, imports, history.

    <data from="tool web">
    …
    </data>

The text cannot end its mark or forge another one: the `<` of anything that looks like one of our tags becomes `&lt;`,
and a line that looks like one of our headings gets a backslash. So the same text is always marked the same way, and the
vendor's cache stays valid.

Texts are stored unchanged. For a prompt or a terminal, characters that control a terminal or reverse the reading order
become visible signs (`plain`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from pattern_core.errors import InvalidInput
from pattern_core.messages import Message, Part, Role, Text, ToolResult

# C0 controls except tab and line feed have their own signs; C1, delete, and marks that embed, override or isolate a
# direction have none.
_SIGNS: Mapping[int, int] = {
    **{code: 0x2400 + code for code in range(32) if code not in (9, 10)},
    **dict.fromkeys([*range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
}
CONTROLS = r"\r\n?|[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"  # a regular expression
_CONTROLS = re.compile(CONTROLS)
# Our tags and headings in any spelling: with spaces, in any case, opening or closing. A block's heading
# says how full it is (`memory.content.prompt`), those of a prompt's sections are in `prompts.build`.
_OURS = re.compile(
    r"<(?=\s*/?\s*(?:data|system)\b)"
    r"|^(?=[^\S\n]*#{1,6}[^\S\n]*"
    r"(?:(?:memory|message|notes for you|workspace|decisions|guidance|recalled|open tasks"
    r"|since your last message|recent activity)"
    r"[^\S\n]*$"
    r"|[^\n]*(?:characters|nothing yet)\)))"
    f"|{CONTROLS}",
    re.IGNORECASE | re.MULTILINE,
)
IN_ATTRIBUTE: Mapping[int, int | str] = {  # for `str.translate`
    **_SIGNS,
    **dict.fromkeys(map(ord, "\n\r"), " "),
    **{ord(sign): f"&{name};" for sign, name in {"&": "amp", '"': "quot", "<": "lt", ">": "gt"}.items()},
}
ERROR = "Error: "  # before the text of a failed call
MASK = "[secret left out]"
# Formats of keys and tokens, from their vendors' documentation, and the usual ways to write a password. Each pattern
# begins with the first letters of its alternatives, since most positions match none of them.
_SECRETS = re.compile(
    r"""
    (?=[-sgxae])(?:
        -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
      | \b(?:
            sk-[A-Za-z0-9_-]{16,}
          | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,} | glpat-[A-Za-z0-9_-]{16,}
          | xox[abeprs]-[A-Za-z0-9-]{10,}
          | A(?:KI|SI)A[0-9A-Z]{16}\b
          | AIza[0-9A-Za-z_-]{35}
          | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}
        )
    )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
# Of these, the text before the secret is kept: a URL's slashes, the scheme of a header, a name.
_CREDENTIALS = re.compile(
    r"(?=[:b])(?:(://)[^\s/:@]+:[^\s/@]+(?=@)|\b(bearer )[A-Za-z0-9._~+/-]{16,}=*)", re.IGNORECASE
)
_NAMED_SECRETS = re.compile(
    r"""(?=[psa])(?<![a-z])((?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?token|auth[_-]?token)"""
    r"""["']?\s*[:=]\s*["']?)(?!\[(?:secret\ left\ out|redacted)\])[^\s"',;]{6,}""",
    re.IGNORECASE,
)


def plain(text: str) -> str:
    """Return the text with signs for control characters except tab, and line feeds for all line ends."""
    return _CONTROLS.sub(harmless, text)


def harmless(found: re.Match[str]) -> str:
    """Return the replacement for the start of one of our tags or headings, or for a match of `CONTROLS`."""
    match found[0]:
        case "<":
            return "&lt;"
        case "":
            return "\\"
        case text:
            return "\n" if text[0] == "\r" else text.translate(_SIGNS)


def check_plain(text: str, what: str) -> str:
    """Return a name or a description without control characters; `what` is its name in messages.

    Raises:
        InvalidInput: it has some.
    """
    if text.translate(_SIGNS) != text.replace("\r", "\u240d"):
        raise InvalidInput(f"{what} has control characters; leave them out")
    return text


def neutral(message: Message) -> Message:
    """Return the message with `plain` text and results; itself if nothing differs."""
    for part in message.parts:
        match part:
            case Text(text=text) | ToolResult(content=text) if _CONTROLS.search(text) is not None:
                return replace(message, parts=tuple(map(_neutral, message.parts)))
    return message


def _neutral(part: Part) -> Part:
    match part:
        case Text():
            return replace(part, text=plain(part.text))
        case ToolResult():
            return replace(part, content=plain(part.content))
    return part


def escaped(text: str) -> str:
    """Return the text without our tags and headings, and `plain`."""
    return _OURS.sub(harmless, text)


def marked(text: str, source: str) -> str:
    """Return the text as data from `source`, such as `tool web`."""
    return f'<data from="{source.translate(IN_ATTRIBUTE)}">\n{escaped(text)}\n</data>'


def marked_import(message: Message) -> Message:
    """Return an imported message as a prompt shows it: roles are kept, but nothing in it is a request.

    People import conversations so that the agent can continue them; so the roles are kept. But an export may hold any
    pasted text. Messages of people are marked as data, which models must read and not obey; so are system messages,
    which become a person's, because nothing imported may outrank the agent's own instructions. Answers of agents are
    not marked: models do not obey their own messages, and would begin to write tags around their answers.
    """
    if message.role == "assistant":
        return _reworded(message, "assistant", escaped)
    source = "an imported conversation" if message.role == "user" else "an imported conversation, its instructions"
    return _reworded(message, "user", lambda text: marked(text, source))


def _reworded(message: Message, role: Role, change: Callable[[str], str]) -> Message:
    """Return the message with another text and `role`; itself if nothing differs."""
    parts = tuple(replace(part, text=change(part.text)) if isinstance(part, Text) else part for part in message.parts)
    return message if (role, parts) == (message.role, message.parts) else replace(message, role=role, parts=parts)


def masked(text: str) -> str:
    """Return the text without anything that looks like a key, token or password; for text that was not written for this
    prompt.
    """
    for pattern in (_SECRETS, _CREDENTIALS, _NAMED_SECRETS):
        text = pattern.sub(lambda found: f"{found[found.lastindex] if found.lastindex else ''}{MASK}", text)
    return text


def marked_result(message: Message) -> Message:
    """Return a tool's message with its result marked as that tool's data; an error is named before the mark."""
    result = message.parts[0]
    if not isinstance(result, ToolResult):
        return message
    prefix = ERROR if result.is_error and result.content.startswith(ERROR) else ""
    words = marked(result.content[len(prefix) :], f"tool {result.tool}")
    return replace(message, parts=(replace(result, content=prefix + words),))
