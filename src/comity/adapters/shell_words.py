"""The words of one simple shell command, read by a grammar of bash; anything more is no such thing.

Two readers have to agree: a pattern, which knows plain words and quotes and nothing else, and then
tree-sitter's grammar, of which only the few kinds of node that literal words are made of are
accepted. The pattern goes first because the grammar is slow on here-documents (140 ms for 8 KiB).
"""

import re
import unicodedata
from typing import Final

import tree_sitter
import tree_sitter_bash

from comity.rules.options import words
from comity.rules.sandbox import Unreadable

_PARSER: Final = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
_PLAIN: Final = r"[A-Za-z0-9_./:=@%+,^~#-]|[^\x00-\x7f]"
_SHAPE: Final = re.compile(rf"""(?:(?:{_PLAIN})++|'[^']*+'|"[^"$`\\!]*+"|\x20++)*+""")
_QUOTED: Final = re.compile(r"""'[^']*'|"[^"]*\"""")
_LITERAL: Final = frozenset({"word", "number", "string_content", "raw_string", '"'})
_NODES: Final = _LITERAL | {"program", "command", "command_name", "string", "concatenation"}
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
# What bash itself reads as the beginning of something else, where a name stands first.
_RESERVED: Final = words(
    "if then else elif fi case esac for select while until do done in function time coproc"
)
_NOT_SIMPLE: Final = (
    "it is not one command of plain words: no pipes, redirections, variables, substitutions, "
    "patterns, escapes or several commands"
)


def read(text: str) -> tuple[str, ...] | Unreadable:
    """The words, as bash would hand them to the program that the first one names."""
    if not _SHAPE.fullmatch(text):
        return Unreadable(_NOT_SIMPLE)
    odd = _odd_sign(_QUOTED.sub("", text))
    if odd is not None:
        return Unreadable(odd)
    data = text.encode("utf-8", "surrogatepass")
    line = _words(_PARSER.parse(data).root_node)
    if line is None:
        return Unreadable(_NOT_SIMPLE)
    if not line or not _NAME.fullmatch(line[0]) or line[0] in _RESERVED:
        return Unreadable("its first word is not the plain name of a command, without a path")
    if any(_expands(word) for word in _QUOTED.sub("x", text).split(" ")):
        return Unreadable("a word begins with ~, which a shell replaces; write the path out")
    return line


def _odd_sign(bare: str) -> str | None:
    """A sign outside of quotes that is not what it looks like in every program."""
    for sign in bare:
        if sign > "\x7f" and not (sign.isalnum() and unicodedata.normalize("NFKC", sign) == sign):
            return "it holds a sign outside of quotes that may be read as another"
    return None


def _expands(word: str) -> bool:
    # Also after an `=` or a `:`, where bash sees an assignment.
    return word.startswith(("~", "#")) or "=~" in word or ":~" in word


def _words(root: tree_sitter.Node) -> tuple[str, ...] | None:
    if root.has_error or len(root.children) != 1 or root.children[0].type != "command":
        return None
    command = root.children[0]
    line: list[str] = []
    for node in command.children:
        inner = node.children[0] if node.type == "command_name" else node
        value = _value(inner)
        if value is None:
            return None
        line.append(value)
    return tuple(line)


def _value(node: tree_sitter.Node) -> str | None:
    """What a word stands for; None where it is made of more than literals."""
    if node.type not in _NODES:
        return None
    if node.type in _LITERAL:
        text = (node.text or b"").decode("utf-8", "surrogatepass")
        return text[1:-1] if node.type == "raw_string" else text
    if node.type == "string":
        # Spaces at either end belong to the string and to no node of its own.
        return (node.text or b"").decode("utf-8", "surrogatepass")[1:-1]
    parts = [_value(child) for child in node.children]
    known = [part for part in parts if part is not None]
    return "".join(known) if len(known) == len(parts) else None
