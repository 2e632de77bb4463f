"""Parsing of shell commands and path patterns by the libraries of the extra `validators`."""

import re
import unicodedata
from functools import lru_cache
from typing import Final

import tree_sitter
import tree_sitter_bash
from wcmatch import glob

from comity.toolkit.text import word_set
from comity.validation.shell import UnparsableCommand

_FLAGS: Final = glob.GLOBSTAR | glob.DOTGLOB | glob.FORCEUNIX


@lru_cache(1024)
def _compiled(pattern: str, ignore_case: bool) -> "glob.WcMatcher[str]":
    flags = _FLAGS | (glob.IGNORECASE if ignore_case else glob.CASE)
    return glob.compile(pattern, flags=flags)


def is_glob_match(pattern: str, path: str, ignore_case: bool) -> bool:
    """Return whether the pattern covers the path."""
    return _compiled(pattern, ignore_case).match(path)


_PARSER: Final = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
_PLAIN: Final = r"[A-Za-z0-9_./:=@%+,^~#-]|[^\x00-\x7f]"
_SHAPE: Final = re.compile(rf"""(?:(?:{_PLAIN})++|'[^']*+'|"[^"$`\\!]*+"|\x20++)*+""")
_QUOTED: Final = re.compile(r"""'[^']*'|"[^"]*\"""")
_LITERAL: Final = frozenset({"word", "number", "string_content", "raw_string", '"'})
_NODES: Final = _LITERAL | {"program", "command", "command_name", "string", "concatenation"}
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
# Words that bash reads as the beginning of another construct in the first position.
_RESERVED: Final = word_set(
    "if then else elif fi case esac for select while until do done in function time coproc"
)
_NOT_SIMPLE: Final = (
    "it is not one command of plain words: no pipes, redirections, variables, substitutions, "
    "patterns, escapes or several commands"
)


def parse_command_words(text: str) -> tuple[str, ...] | UnparsableCommand:
    """Return the words that bash would pass to the program that the first one names."""
    if not _SHAPE.fullmatch(text):
        return UnparsableCommand(_NOT_SIMPLE)
    odd = _odd_sign(_QUOTED.sub("", text))
    if odd is not None:
        return UnparsableCommand(odd)
    data = text.encode("utf-8", "surrogatepass")
    line = _words(_PARSER.parse(data).root_node)
    if line is None:
        return UnparsableCommand(_NOT_SIMPLE)
    if not line or not _NAME.fullmatch(line[0]) or line[0] in _RESERVED:
        return UnparsableCommand(
            "its first word is not the plain name of a command, without a path"
        )
    if any(_expands(word) for word in _QUOTED.sub("x", text).split(" ")):
        return UnparsableCommand("a word begins with ~, which a shell replaces; write the path out")
    return line


def _odd_sign(bare: str) -> str | None:
    """Return a character outside of quotes that programs interpret differently, or None."""
    for sign in bare:
        if sign > "\x7f" and not (sign.isalnum() and unicodedata.normalize("NFKC", sign) == sign):
            return "it holds a sign outside of quotes that may be read as another"
    return None


def _expands(word: str) -> bool:
    # This also applies after an `=` or a `:`, where bash sees an assignment.
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
    """Return the value of a word, or None if it consists of more than literals."""
    if node.type not in _NODES:
        return None
    if node.type in _LITERAL:
        text = (node.text or b"").decode("utf-8", "surrogatepass")
        return text[1:-1] if node.type == "raw_string" else text
    if node.type == "string":
        # Spaces at either end belong to the string, but to no node of its own.
        return (node.text or b"").decode("utf-8", "surrogatepass")[1:-1]
    parts = [_value(child) for child in node.children]
    known = [part for part in parts if part is not None]
    return "".join(known) if len(known) == len(parts) else None
