"""Command lines read by the grammar of bash: every simple command in them, wherever it stands.

What the grammar does not know for certain is a doubt, never a guess: an unknown kind of node, a heredoc with an odd
end, an arithmetic expression over a variable whose value may hold a command (`x='a[$(rm f)]'; echo $((x))` runs it).

Source: the grammar tree-sitter-bash 0.25; Bash Reference Manual 5.2, "Shell Syntax" and "Shell Expansions".
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import pairwise

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from pattern_core.shell.script import Assignment, Redirection, Script, SimpleCommand, Stdin, Word, word
from pattern_core.shell.unquote import is_number
from pattern_core.shell.word_reader import ARITHMETIC, WORDS, WordReader, descend

COMMAND_CHARS_MAX = 10_000
DEPTH_MAX = 60  # of nested parts
_INSIDE = frozenset(
    (
        *("program", "list", "subshell", "compound_statement", "do_group", "if_statement", "elif_clause"),
        *("else_clause", "while_statement", "case_item", "case_statement", "negated_command"),
    )
)
_RESERVED = frozenset(
    (
        *("{", "}", "if", "then", "elif", "else", "fi", "do", "done", "case", "esac", "in", "function", "select"),
        *("until", "while", "for", "!", "[[", "]]", "coproc"),
    )
)
_SETTING = frozenset(("read", "getopts"))  # builtins whose words name variables that they set
_ARITHMETIC_TESTS = frozenset(("-eq", "-ne", "-lt", "-le", "-gt", "-ge"))
_COMPARISONS = frozenset(("==", "=~"))
_ONE_LINE = frozenset(
    (
        *("command", "declaration_command", "unset_command", "redirected_statement", "file_redirect"),
        *("herestring_redirect", "variable_assignment", "simple_expansion", "concatenation"),
    )
)
_BLANKS = re.compile(rb"(?:[ \t]|\\\n)*(?:-[ \t]+)?")  # before a heredoc the grammar has no node for `-`
_HEREDOC_START = re.compile(r"""(['"]?)([A-Za-z_]\w*)\1""")


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def parse(command: str) -> Script:
    """What the command line holds. Never fails: what cannot be read is a doubt."""
    if len(command) > COMMAND_CHARS_MAX:
        return Script(doubts=[f"it is longer than {COMMAND_CHARS_MAX} characters"])
    odd = next((char for char in command if _is_odd(char)), None)
    if odd is not None:
        return Script(doubts=[f"it holds the invisible character U+{ord(odd):04X}"])
    tree = _parser().parse(command.encode())
    if tree.root_node.has_error:
        return Script(doubts=["it cannot be read as a command of bash"])
    if _is_deep(tree.root_node):
        return Script(doubts=[f"its parts nest more than {DEPTH_MAX} deep"])
    source = command.encode()
    if _runs_on(tree.root_node, source):
        return Script(doubts=["a command in it goes on after the end of its line"])
    reader = _Reader(source)
    reader.visit(tree.root_node, Stdin.NONE)
    return reader.script()


def _is_odd(char: str) -> bool:
    """Control characters and blanks that bash and the grammar may take for different things."""
    if char in " \n\t":
        return False
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp")


def _is_deep(root: Node) -> bool:
    """Whether the tree is deeper than a recursive walk should follow."""
    level = [root]
    for _ in range(DEPTH_MAX):
        level = [child for node in level for child in node.named_children]
    return bool(level)


def _runs_on(root: Node, source: bytes) -> bool:
    """Whether the grammar passes over more than blanks within a command: over the end of a line, after which bash
    begins another command (`cat <<<$` is one), or over an escaped blank, which is a word.
    """
    nodes = [root]
    while nodes:
        node = nodes.pop()
        nodes += node.named_children
        if node.type not in _ONE_LINE:
            continue
        for before, after in pairwise(node.children):
            gap = source[before.end_byte : after.start_byte]
            if before.type != "heredoc_redirect" and not _BLANKS.fullmatch(gap):
                return True
    return False


class _Reader(WordReader):
    """Walks the tree once and gathers what its statements hold."""

    def __init__(self, source: bytes) -> None:
        super().__init__(source)
        self._within: list[str] = []  # functions that are being defined
        self._heredocs = 0

    def script(self) -> Script:
        """What was gathered."""
        set_here = {one.name for one in self.assignments}
        unsafe = self.computed & {one.name for one in self.assignments if not one.is_number}
        # Names in capitals may be the shell's own, which it fills with what it was given: OPTARG, for one.
        unsafe |= {name for name in self.computed - set_here if not name.islower() or name.startswith("_")}
        if unsafe:
            names = ", ".join(sorted(unsafe))
            self.doubts.append(f"it computes with {names}, whose value may hold a command")
        return Script(
            commands=self.commands,
            redirections=self.redirections,
            assignments=self.assignments,
            functions=self.functions,
            doubts=list(dict.fromkeys(self.doubts)),
        )

    def visit(self, node: Node, stdin: Stdin) -> None:
        """Gather what a statement holds."""
        if node.is_missing:
            self.doubts.append("a part of it is missing")
            return
        match node.type:
            case "command":
                self._command(node, stdin)
            case "pipeline":
                self._pipeline(node, stdin)
            case "redirected_statement":
                self._redirected(node, stdin)
            case "variable_assignment":
                self.assign(node, is_exported=False)
            case "variable_assignments":
                for child in node.named_children:
                    self.assign(child, is_exported=False)
            case "declaration_command" | "unset_command":
                self._declare(node)
            case "test_command":
                self._test(node)
            case "function_definition":
                self._function(node, stdin)
            case "for_statement" | "c_style_for_statement":
                self._loop(node, stdin)
            case "comment":
                self._comment(node)
            case kind if kind in ARITHMETIC:
                self.compute(node)
            case "compound_statement" if node.children and node.children[0].type == "((":
                self.compute(node)
            case kind if kind in _INSIDE:
                self._all(node, stdin)
            case kind if kind in WORDS:
                self.word(node)
            case kind:
                self.doubts.append(f"it holds a part that is not understood here ({kind})")

    def _all(self, node: Node, stdin: Stdin) -> None:
        for child in node.named_children:
            self.visit(child, stdin)

    def _pipeline(self, node: Node, stdin: Stdin) -> None:
        for child in node.children:
            if child.type in ("|", "|&"):
                stdin = Stdin.PIPE
            else:
                self.visit(child, stdin)

    def _redirected(self, node: Node, stdin: Stdin) -> None:
        redirects = [child for child in node.named_children if child.type.endswith("_redirect")]
        for redirect in redirects:
            stdin = self._redirect(redirect) or stdin
        for child in node.named_children:
            if not child.type.endswith("_redirect"):
                self.visit(child, stdin)

    def _redirect(self, node: Node) -> Stdin | None:
        """Note a redirection; what it makes of standard input."""
        if node.type == "heredoc_redirect":
            self._heredoc(node)
            return Stdin.TEXT
        if node.type == "herestring_redirect":
            for child in node.named_children:
                self.word(child)
            return Stdin.TEXT
        operator = next((child.type for child in node.children if not child.is_named), "")
        for child in node.named_children:
            if child.type == "file_descriptor":
                continue
            target = self.word(child)
            is_copy = operator in (">&", "<&") and target.text is not None and re.fullmatch(r"\d+-?|-", target.text)
            if not is_copy:
                self.redirections.append(Redirection(target=target, is_write=operator != "<"))
        return Stdin.FILE if operator in ("<", "<>", "<&") else None

    def _heredoc(self, node: Node) -> None:
        self._heredocs += 1
        start = next((child for child in node.children if child.type == "heredoc_start"), None)
        end = next((child for child in node.children if child.type == "heredoc_end"), None)
        found = _HEREDOC_START.fullmatch(self.text(start)) if start is not None else None
        if self._heredocs > 1 or found is None or end is None or self.text(end).strip() != found[2]:
            self.doubts.append("the end of its heredoc is not certain")
            return
        for child in node.named_children:
            if child.type == "heredoc_body":
                self._heredoc_body(child, found[2], is_quoted=bool(found[1]))
            elif child.type.endswith("_redirect"):
                self._redirect(child)
            elif child.type not in ("heredoc_start", "heredoc_end", "file_descriptor"):
                self.visit(child, Stdin.PIPE)

    def _heredoc_body(self, node: Node, delimiter: str, *, is_quoted: bool) -> None:
        if any(line.strip("\t") == delimiter for line in self.text(node).split("\n")):
            self.doubts.append("the end of its heredoc is not certain")
        if not is_quoted:
            self.check_text(node)
        for child in node.named_children:
            if child.type != "heredoc_content":
                self.word(child)

    def _command(self, node: Node, stdin: Stdin) -> None:
        words: list[Word] = []
        for child in node.children:
            if child.type in _COMPARISONS:  # to bash a word like others; to the grammar a pattern may follow
                words.append(word(child.type))
            elif child.type == "regex":
                self.doubts.append(f"`{self.text(child)[:40]}` can be read in two ways")
            elif not child.is_named:
                self.doubts.append(f"`{self.text(child)[:40]}` is not understood here")
            elif child.type == "variable_assignment":
                self.assign(child, is_exported=True)
            elif child.type.endswith("_redirect"):
                stdin = self._redirect(child) or stdin
            elif child.type == "command_name":
                words += [self.word(part) for part in child.named_children]
            else:
                words.append(self.word(child))
        name = words[0].text if words else None
        if name in _RESERVED:
            self.doubts.append(f"`{name}` stands where a command is expected")
        if name is not None and name in self._within:
            self.doubts.append(f"the function {name} calls itself")
        if name in _SETTING:
            names = [one.text for one in words[1:] if one.text is not None and not one.text.startswith("-")]
            self.assignments += [Assignment(name=given, is_number=False, is_exported=False) for given in names]
        if words:
            self.commands.append(SimpleCommand(words=tuple(words), stdin=stdin, at=node.start_byte))

    def _declare(self, node: Node) -> None:
        words = [word(self.text(node.children[0]))]
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.assign(child, is_exported=True)
            elif child.type == "variable_name":
                words.append(word(self.text(child)))
            else:
                words.append(self.word(child))
        self.commands.append(SimpleCommand(words=tuple(words), at=node.start_byte))

    def _function(self, node: Node, stdin: Stdin) -> None:
        name, *rest = node.named_children
        if node.parent is not None and node.parent.type == "program":  # elsewhere it may never be defined
            self.functions.setdefault(self.text(name), node.end_byte)
        self._within.append(self.text(name))
        for child in rest:
            if child.type.endswith("_redirect"):
                self._redirect(child)
            else:
                self.visit(child, stdin)
        self._within.pop()

    def _loop(self, node: Node, stdin: Stdin) -> None:
        names = [self.text(child) for child in node.named_children if child.type == "variable_name"]
        values: list[bool] = []
        for child in node.named_children:
            if child.type == "variable_name":
                continue
            if child.type in ("do_group", "compound_statement"):
                self.visit(child, stdin)
            elif child.type == "variable_assignment":
                self.assign(child, is_exported=False)
            elif child.type in ARITHMETIC or node.type == "c_style_for_statement":
                self.compute(child)
            else:
                found = self.word(child)
                values.append(child.type == "brace_expression" or bool(found.text and is_number(found.text)))
        for name in names:
            self.assignments.append(Assignment(name=name, is_number=bool(values) and all(values), is_exported=False))

    def _comment(self, node: Node) -> None:
        before = self.source[node.start_byte - 1 : node.start_byte] if node.start_byte else b" "
        is_continued = self.source[: node.start_byte].endswith(b"\\\n")  # then it may be the middle of a word
        if is_continued or before not in (b" ", b"\t", b"\n", b";", b"&", b"|", b"(", b")"):
            self.doubts.append("it is not certain where a comment begins")

    def _test(self, node: Node) -> None:
        """`[…]` and `[[…]]`; within the second kind, comparing numbers evaluates words as arithmetic."""
        is_double = bool(node.children) and node.children[0].type == "[["
        for part in descend(node):
            operator = self.text(part) if part.type == "test_operator" else ""
            if operator in ("-v", "-R"):
                self.doubts.append(f"the test {operator} may run a command that a name holds")
            if is_double and operator in _ARITHMETIC_TESTS and part.parent is not None:
                for side in part.parent.named_children:
                    if side.type != "test_operator":
                        self.compute(side)
        self._tested(node)

    def _tested(self, node: Node) -> None:
        for child in node.named_children:
            if child.type in WORDS:
                self.word(child)
            elif child.type in ARITHMETIC:
                self._tested(child)
            elif child.type not in ("test_operator", "variable_name"):
                self.visit(child, Stdin.NONE)
