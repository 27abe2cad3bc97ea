"""Words of a command line, and the arithmetic and assignments that they stand in, as the grammar of bash gives them.

Source: Bash Reference Manual 5.2, "Shell Expansions" and "Shell Arithmetic".
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator

from tree_sitter import Node

from pattern_core.shell.script import UNCERTAIN, Assignment, Redirection, SimpleCommand, Stdin, Word, word
from pattern_core.shell.unquote import NOT_STATIC, is_number, static_ansi, static_string, static_word

ARITHMETIC = frozenset(
    ["binary_expression", "unary_expression", "postfix_expression", "ternary_expression", "parenthesized_expression"]
)
WORDS = frozenset(
    (
        *("word", "number", "string", "raw_string", "ansi_c_string", "concatenation", "simple_expansion", "expansion"),
        *("command_substitution", "process_substitution", "arithmetic_expansion", "brace_expression"),
        *("translated_string", "extglob_pattern", "regex"),
    )
)
_PLAIN_EXPANSION = re.compile(
    r"\$\{#?(?:[A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[(?:\d+|[@*])\])?"  # a variable, maybe one of its items
    r"(?:(?::?[-+?]|##?|%%?|//?|\^\^?|,,?|:?=)(?s:.*)|@[QULu])?\}"  # and what is made of its text
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_ESCAPED = re.compile(r"\\(?s:.)")
_OPENING = re.compile(r"`|\$[({\[]|[<>]\(")  # what begins a part that bash expands
_CONTENT = frozenset(("string_content", "heredoc_content"))  # named by the grammar, and yet only text
_QUOTED = frozenset(("raw_string", "ansi_c_string"))


class WordReader(ABC):
    """Gathers while it reads; statements within words (`$(…)`) are read by whoever extends it."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.commands: list[SimpleCommand] = []
        self.redirections: list[Redirection] = []
        self.assignments: list[Assignment] = []
        self.functions: dict[str, int] = {}
        self.doubts: list[str] = []
        self.computed: set[str] = set()  # variables that arithmetic reads

    @abstractmethod
    def visit(self, node: Node, stdin: Stdin) -> None:
        """Gather what a statement holds, whose commands read from `stdin`."""

    def assign(self, node: Node, *, is_exported: bool) -> None:
        """Gather a variable that is set, and what its value holds."""
        if node.type != "variable_assignment":
            self.doubts.append("it sets a variable in a way that is not understood here")
            return
        target, *values = node.named_children
        name = self.text(target)
        if target.type == "subscript":
            name = self._subscript(target)
        are_numbers = [self._value(value) for value in values]
        self.assignments.append(Assignment(name=name, is_number=all(are_numbers), is_exported=is_exported))

    def _value(self, node: Node) -> bool:
        """Whether a value can only be a number."""
        if node.type == "array":
            items = [self._value(child) for child in node.named_children]  # every one is read, whatever the first is
            return all(items)
        if node.type in ARITHMETIC or node.type == "variable_name":  # of an assignment within `((…))`
            self.compute(node)
            return True
        found = self.word(node)
        return node.type == "arithmetic_expansion" or (found.text is not None and is_number(found.text))

    def compute(self, node: Node) -> None:
        """An arithmetic expression: numbers, and variables that hold nothing but numbers."""
        if node.type in ("word", "variable_name", "simple_expansion"):
            name = self.text(node).removeprefix("$")
            if is_number(name):
                return
            if _NAME.fullmatch(name) and name not in ("REPLY", "_"):
                self.computed.add(name)
            else:
                self.doubts.append(f"it computes with {name}, whose value may hold a command")
        elif node.type == "variable_assignment":
            self.assign(node, is_exported=False)
        elif node.type == "test_operator" or (node.type == "number" and not node.named_children):
            pass
        elif node.type in ARITHMETIC or node.type in ("compound_statement", "arithmetic_expansion"):
            for child in node.named_children:
                self.compute(child)
        else:
            self.word(node)
            self.doubts.append(f"it computes with {self.text(node)[:40]}, whose value may hold a command")

    def _subscript(self, node: Node) -> str:
        name, *index = node.named_children
        for child in index:
            self.compute(child)
        return self.text(name)

    def word(self, node: Node) -> Word:
        """What a word stands for, as far as it is certain; gathers the commands within it."""
        raw = self.text(node)
        match node.type:
            case "number" if not node.named_children:
                return word(raw)
            case "number" | "extglob_pattern" | "brace_expression" | "regex":
                self.check_text(node)
                for child in node.named_children:
                    self.word(child)
                return UNCERTAIN
            case "word":
                found = static_word(raw)
                if found is NOT_STATIC:
                    self.doubts.append(f"`{raw[:40]}` can be read in two ways")
                    return UNCERTAIN
                for child in node.named_children:
                    self.word(child)
                return found
            case "raw_string":
                return word(raw[1:-1])
            case "ansi_c_string":
                return static_ansi(raw)
            case "string" | "translated_string":
                return self._string(node, raw)
            case "concatenation":
                return _joined([self.word(child) for child in node.named_children], raw)
            case "command_substitution" | "process_substitution":
                if raw.startswith("`") and "\\" in raw:  # which bash takes away before it reads what is left
                    self.doubts.append(f"{raw[:40]} holds a backslash, after which it is read anew; use $(…)")
                for child in node.named_children:
                    self.visit(child, Stdin.NONE if node.type == "command_substitution" else Stdin.PIPE)
                return word("/dev/fd/63") if node.type == "process_substitution" else UNCERTAIN
            case "arithmetic_expansion":
                for child in node.named_children:
                    self.compute(child)
                return UNCERTAIN
            case "simple_expansion":
                return UNCERTAIN
            case "expansion":
                return self._expansion(node, raw)
            case kind:
                self.doubts.append(f"it holds a part that is not understood here ({kind})")
                return UNCERTAIN

    def _string(self, node: Node, raw: str) -> Word:
        parts = [child for child in node.named_children if child.type not in _CONTENT]
        self.check_text(node)
        for part in parts:
            self.word(part)
        if not parts:
            return static_string(raw)
        begin = raw[1 : parts[0].start_byte - node.start_byte]
        is_plain = begin.isascii() and "\\" not in begin
        return Word(text=None, start=begin if is_plain else "", is_one="@" not in raw)

    def _expansion(self, node: Node, raw: str) -> Word:
        if not _PLAIN_EXPANSION.fullmatch(raw):
            self.doubts.append(f"{raw[:40]} may run a command that a value holds")
        if any(one.type in _QUOTED and re.search(r"[$`]", self.text(one)) for one in descend(node)):
            # Within double quotes, single ones keep nothing from being expanded.
            self.doubts.append(f"the quotes in {raw[:40]} can be read in two ways")
        names = [self.text(child) for child in node.named_children if child.type == "variable_name"]
        if any(child.type in ("=", ":=") for child in node.children):
            self.assignments += [Assignment(name=name, is_number=False, is_exported=False) for name in names]
        for child in node.named_children:
            if child.type == "subscript":
                self._subscript_of_expansion(child)
            elif child.type in WORDS:
                self.word(child)
            elif child.type not in ("variable_name", "special_variable_name"):
                self.doubts.append(f"{raw[:40]} is not understood here")
        return UNCERTAIN

    def _subscript_of_expansion(self, node: Node) -> None:
        for child in node.named_children[1:]:
            if self.text(child) not in ("@", "*"):
                self.compute(child)

    def check_text(self, node: Node) -> None:
        """Doubt a node in which bash would expand something that the grammar takes for text."""
        rest, at = "", node.start_byte
        for child in node.named_children:
            if child.type not in _CONTENT:
                rest += self.source[at : child.start_byte].decode() + " "
                at = child.end_byte
        rest += self.source[at : node.end_byte].decode()
        if _OPENING.search(_ESCAPED.sub("", rest)):
            self.doubts.append(f"{self.text(node)[:40]} holds a part that is not understood here")

    def text(self, node: Node) -> str:
        """The node as it is written."""
        return self.source[node.start_byte : node.end_byte].decode()


def descend(node: Node) -> Iterator[Node]:
    """The node and all that is named within it, except for commands of their own (`$(…)`)."""
    yield node
    for child in node.named_children:
        if child.type not in ("command_substitution", "process_substitution"):
            yield from descend(child)


def _joined(parts: list[Word], raw: str) -> Word:
    """Words side by side are one; unquoted braces with a comma make several of it."""
    if re.search(r"\{.*(?:,|\.\.)", raw):
        return UNCERTAIN
    if all(part.text is not None for part in parts):
        return word("".join(part.text or "" for part in parts))
    start = ""
    for part in parts:
        start += part.text if part.text is not None else part.start
        if part.text is None:
            break
    return Word(text=None, start=start, is_one=all(part.is_one for part in parts))
