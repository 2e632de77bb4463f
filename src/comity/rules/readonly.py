"""The validator `readonly`: nothing that is known to write, in any argument. (MGP §4.5)

Whether a tool writes cannot be known from its arguments: a tool called `summarise` may write to the
disk at every call. What can be known is refused: a name that says it writes, a command, an SQL
statement, an HTTP method, a mode of opening, an action. The mount without write access decides.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, cast

from comity.rules import sql
from comity.rules.arguments import Found, texts
from comity.rules.meanings import Meaning, meaning_of
from comity.rules.options import words
from comity.rules.sandbox import ReadWords, Unreadable, form_problem
from comity.rules.shell_commands import Commands, only_reads
from comity.rules.validators import READONLY, Rules, Verdict, blocked
from comity.wire.tools import Tool

_WRITING: Final = words(
    "write writes create creates update updates delete deletes remove removes insert inserts "
    "upsert put patch post drop truncate alter rename move mv rm mkdir rmdir chmod chown set "
    "edit modify replace append overwrite upload send publish push commit merge execute exec "
    "kill stop start restart install uninstall deploy destroy purge clear reset revoke grant add "
    "apply save store import restore rollback enable disable archive submit transfer pay buy "
    "order cancel close"
)
_READING: Final = words("get list read show describe search find fetch view query count stat head")
_METHODS: Final = frozenset(
    {"GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "SEARCH", "QUERY"}
)
_MODE: Final = re.compile(r"[rwaxbtU+]{1,5}")
_MODE_WORDS: Final = words(
    "write append overwrite create readwrite read-write rw truncate exclusive"
)
_PERMISSION: Final = re.compile(r"0?o?[0-7]{3,4}|[ugoa]*[+=-][rwxst]+")
_SWITCHES: Final = words(
    "overwrite force write create delete recursive_delete commit append truncate replace upsert "
    "createparents create_parents createdirs create_dirs autocommit auto_commit save persist "
    "apply readwrite inplace in_place purge destroy"
)
_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_QUOTED: Final = 20


def examine(tool: Tool, arguments: Mapping[str, object], rules: Rules, read: ReadWords) -> Verdict:
    """Why this call may write, or None where nothing says so."""
    problem = _tool_problem(tool)
    if problem is not None:
        return blocked(READONLY, problem, "", "Use a tool that only reads.")
    switch = _switch(arguments)
    if switch is not None:
        return blocked(READONLY, "it is told to write", switch, f"Leave {switch} out.")
    found = texts(arguments, None)
    if found is None:
        return blocked(READONLY, "its arguments hold more than can be looked at")
    for each in found:
        meaning = meaning_of(each.where, each.name, rules.arguments)
        problem = _problem(each, meaning, rules, read)
        if problem is not None:
            return blocked(READONLY, problem, each.where, "Ask only for what is to be read.")
    return None


def _tool_problem(tool: Tool) -> str | None:
    """What a tool says about itself; only what speaks against it is believed. (S2)"""
    said = tool.definition.get("annotations")
    hints = cast("dict[str, object]", said) if isinstance(said, dict) else {}
    if hints.get("readOnlyHint") is False or hints.get("destructiveHint") is True:
        return "its own definition says that it writes"
    return _name_problem(tool.name)


@lru_cache(4096)
def _name_problem(name: str) -> str | None:
    parts = [part.casefold() for part in _PARTS.findall(name)]
    verb = next((part for part in parts if part in _WRITING or part in _READING), None)
    return f"its name says that it may {verb}" if verb in _WRITING else None


def _switch(arguments: Mapping[str, object]) -> str | None:
    """The name of a flag that tells a tool to write, where one is set."""
    for name, value in arguments.items():
        if name.casefold().replace("-", "_") in _SWITCHES and value in (
            True,
            1,
            "true",
            "yes",
            "1",
        ):
            return name[:_QUOTED]
    return None


def _problem(found: Found, meaning: Meaning, rules: Rules, read: ReadWords) -> str | None:
    text = found.text.strip()
    if meaning is Meaning.COMMAND:
        if found.listed == 0:
            return _command_problem(found.text, rules, read)
        return only_reads((text,)) if found.where.endswith("[0]") else None
    return _PROBLEMS.get(meaning, sql.looks_like_writing)(text)


def _command_problem(text: str, rules: Rules, read: ReadWords) -> str | None:
    problem = form_problem(text)
    if problem is not None:
        return problem
    line = read(text)
    if isinstance(line, Unreadable):
        return line.because
    return (only_reads(line) if line else None) or Commands(
        rules.more_commands, rules.fewer_commands
    ).problem(line)


def _mode_problem(text: str) -> str | None:
    folded = text.casefold()
    is_opening = _MODE.fullmatch(text) is not None and set(text) & set("wax+")
    if is_opening or folded in _MODE_WORDS or _PERMISSION.fullmatch(text) or "wr" in folded:
        return f"the mode {text[:_QUOTED]!r} is one of writing"
    return None


def _action_problem(text: str) -> str | None:
    verbs = {part.casefold() for part in _PARTS.findall(text[:1000])} & _WRITING
    return f"the action {text[:_QUOTED]!r} may write" if verbs else None


def _method_problem(text: str) -> str | None:
    return None if text.upper() in _METHODS else f"the method {text[:_QUOTED]!r} may write"


_PROBLEMS: Final[Mapping[Meaning, Callable[[str], str | None]]] = {
    Meaning.SQL: sql.writing,
    Meaning.METHOD: _method_problem,
    Meaning.MODE: _mode_problem,
    Meaning.ACTION: _action_problem,
    Meaning.TEXT: lambda text: None,
}
