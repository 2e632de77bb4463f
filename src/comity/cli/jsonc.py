"""JSON as editors let people write it: with comments, and with commas before a closing bracket."""

import json
import re
from typing import Any, Final, cast

from comity.wire.errors import Misconfigured

# In a text nothing else counts; a comment that never ends is one up to the end of the file.
_TEXT: Final = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT: Final = re.compile(_TEXT + r"|//[^\n]*|/\*(?:.*?\*/|.*)", re.DOTALL)
_LAST_COMMA: Final = re.compile(_TEXT + r"|,(?=\s*[}\]])")


def plain_json(text: str) -> str:
    """The same document without what JSON does not have; each line stays on its line."""
    return _LAST_COMMA.sub(_kept, _COMMENT.sub(_kept, text))


def _kept(found: re.Match[str]) -> str:
    token = found.group()
    return token if token.startswith('"') else "\n" * token.count("\n") or " "


def read_table(text: str, *, strictly: bool) -> dict[str, Any]:
    """The document, a table at its top; nothing at all is an empty one. Raises Misconfigured.

    `strictly` refuses what could not be written again as it was: comments, and a key that stands
    twice. Causes are dropped: they hold the text, and so its secrets.
    """
    stripped = text.removeprefix("\ufeff")
    if not stripped.strip():
        return {}
    try:
        found = json.loads(
            stripped if strictly else plain_json(stripped),
            object_pairs_hook=_unique if strictly else dict,
        )
    except json.JSONDecodeError as problem:
        if strictly and read_table(text, strictly=False):
            raise Misconfigured("it has comments, or commas that JSON has not") from None
        raise Misconfigured(f"it is not JSON at line {problem.lineno}: {problem.msg}") from None
    except RecursionError:
        raise Misconfigured("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise Misconfigured("it holds no table of names and values")
    return cast("dict[str, Any]", found)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Misconfigured("a key stands in it twice")
    return found
