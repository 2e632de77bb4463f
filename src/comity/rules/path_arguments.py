"""Every path among a call's arguments, held against the scope that its tool was given."""

import re
from collections.abc import Mapping
from typing import Final

from comity.rules import paths
from comity.rules.arguments import texts
from comity.rules.meanings import Meaning, meaning_of
from comity.rules.paths import Matches
from comity.rules.validators import Rules, Verdict, blocked
from comity.wire.tools import Tool

_LIKE_A_PATH: Final = re.compile(
    r"[/~\\]|\.{1,2}(?:[/\\]|$)|file:|[A-Za-z]:[/\\]|.*(?:\.\.|%2e|%2f)", re.IGNORECASE
)
_SHOWN: Final = 8


def examine(tool: Tool, arguments: Mapping[str, object], rules: Rules, matches: Matches) -> Verdict:
    """Why one of the paths is refused, or None; a text that begins like a path is one."""
    scope = rules.paths
    if scope is None:
        return None
    found = texts(arguments, None)
    if found is None:
        return blocked("paths", "its arguments hold more than can be looked at")
    for each in found:
        meaning = meaning_of(each.where, each.name, rules.arguments)
        short = meaning is Meaning.UNKNOWN and len(each.text) <= paths.MOST_CHARACTERS
        if meaning is Meaning.PATH or (short and _looks_like_a_path(each.text)):
            problem = paths.examine(each.text, scope, matches)
            if problem is not None:
                allowed = ", ".join(scope.allow[:_SHOWN])
                return blocked("paths", problem, each.where, f"Use a path within {allowed}.")
    return None


def _looks_like_a_path(text: str) -> bool:
    return _LIKE_A_PATH.match(text) is not None and not any(sign.isspace() for sign in text)
