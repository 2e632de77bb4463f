"""The shapes that Python code is recognised by, one question about a node each."""

import ast
import string
from collections.abc import Iterable
from typing import Final

_READING_MODES: Final = frozenset({"r", "rt", "rb", "tr", "br"})

_BY_MEMBER: Final[dict[type[ast.AST], str]] = {
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.arg: "arg",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
}


def bindings(node: ast.AST) -> Iterable[str]:
    """The names that a node makes, or makes its own."""
    if isinstance(node, ast.Name):
        return (node.id,) if isinstance(node.ctx, ast.Store) else ()
    if isinstance(node, ast.alias):
        return (node.asname or node.name.partition(".")[0],)
    if isinstance(node, ast.Global | ast.Nonlocal):
        return node.names
    name = getattr(node, _BY_MEMBER.get(type(node), ""), None)
    return (name,) if isinstance(name, str) else ()


def dotted(node: ast.AST) -> str:
    """An expression of names and dots as it is written; empty for any other."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def is_known_dunder(node: ast.Name) -> bool:
    is_load = isinstance(node.ctx, ast.Load)
    return node.id in ("__all__", "__name__" if is_load else "__slots__")


def is_super_init(node: ast.Attribute) -> bool:
    """`super().__init__` and its like: how a class speaks to the one above it."""
    call = node.value
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "super"
        and not call.args
        and node.attr
        in ("__init__", "__post_init__", "__enter__", "__exit__", "__repr__", "__str__")
    )


def is_plain_format(value: ast.AST) -> bool:
    if not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
        return False
    return _has_plain_fields(value.value)


def _has_plain_fields(text: str, depth: int = 0) -> bool:
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError:
        return False
    for _, name, inner, _ in fields:
        if name and not (name.isidentifier() or name.isdigit()):
            return False
        if inner and (depth > 2 or not _has_plain_fields(inner, depth + 1)):
            return False
    return True


def has_one_value(call: ast.Call) -> bool:
    return len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)


def has_keyword(call: ast.Call, name: str) -> bool:
    return any(each.arg in (name, None) for each in call.keywords)


def only_reads(call: ast.Call) -> bool:
    """Whether a file is opened with a mode that stands there and only reads."""
    if any(isinstance(each, ast.Starred) for each in call.args):
        return False
    if any(each.arg not in ("mode", "encoding", "newline", "errors") for each in call.keywords):
        return False
    modes = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "mode")]
    return len(call.args) <= 2 and all(
        isinstance(mode, ast.Constant) and mode.value in _READING_MODES for mode in modes
    )


def names_a_plain_attribute(call: ast.Call) -> str | None:
    """The attribute that `getattr` and its like are asked for, where it stands there as a text."""
    if len(call.args) not in (2, 3) or call.keywords:
        return None
    match call.args[1]:
        case ast.Constant(value=str(name)) if name.isidentifier():
            return name
        case _:
            return None
