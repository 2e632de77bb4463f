"""The validator `readonly`, which refuses SQL and commands that write."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, cast

from comity.toolkit.text import word_set
from comity.validation.arguments import (
    ArgumentKind,
    ArgumentText,
    ToolDefinition,
    argument_kind_of,
    collect_texts,
)
from comity.validation.rules import READONLY, ValidationRules, Verdict, validator_refusal
from comity.validation.shell import (
    AllowedCommands,
    ReadWords,
    UnparsableCommand,
    form_problem,
    only_reads,
)

MOST_CHARACTERS: Final = 64 * 1024
# An unterminated part extends to the end of the text, so that the scan takes linear time.
_SKIPPED: Final = re.compile(
    r"""--[ \t][^\n]*+
    | /\*(?!!)(?:[^*]|\*(?!/))*+(?P<c>\*/)?
    | '(?:[^']|'')*+(?P<s>')?
    | "(?:[^"]|"")*+(?P<d>")?
    | `[^`]*+(?P<b>`)?
    | \[[^\]]*+(?P<k>\])?""",
    re.VERBOSE,
)
_UNENDED: Final = "\x00"
# Databases differ here. MySQL reads `--1` as an expression and `#` as a comment, and PostgreSQL the
# reverse. A backslash escapes in only one of them, and only some support dollar quotes.
_AMBIGUOUS: Final = re.compile(r"\\|\$[A-Za-z_]*\$|--(?![ \t])|\#(?![>-])|\x00")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READS: Final = word_set("select with values show describe desc explain table pragma use")
_WRITES: Final = word_set(
    "insert update delete merge upsert truncate drop create alter grant revoke copy execute into "
    "outfile dumpfile attach"
)
_FUNCTIONS: Final = re.compile(
    r"\b(?:pg_(?:read|write|ls|stat)_\w+|pg_(?:terminate|cancel|reload|rotate|logical|replication|create|"
    r"drop|switch|promote|notify|advisory|sleep|file)\w*|lo_\w+|setval|nextval|set_config|dblink\w*|"
    r"query_to_xml\w*|load_file|sys_(?:exec|eval)|xp_\w+|sp_\w+|writefile|readfile|edit|load_extension|"
    r"randomblob|zeroblob|utl_\w+|dbms_\w+|benchmark|sleep|waitfor|openrowset|opendatasource)\s*\(",
    re.IGNORECASE,
)
_LOCKS: Final = re.compile(r"\bfor\s+(?:no\s+key\s+)?(?:update|share|key)\b", re.IGNORECASE)
_SHAPES: Final = re.compile(
    r"\s*(?:insert\s+(?:\w+\s+)?into|update\s+[\w.\"`\[\]]+\s+set|delete\s+from|merge\s+into|"
    r"(?:drop|create|alter|truncate)\s+(?:or\s+replace\s+)?(?:temp(?:orary)?\s+|unique\s+)?"
    r"(?:table|view|index|database|schema|user|role|function|trigger|procedure|sequence|extension|type)|"
    r"truncate\s+\w+|(?:grant|revoke)\s+[\w,\s]+\s+(?:on|to|from)|copy\s+\w+\s+(?:from|to)|"
    r"replace\s+into|call\s+\w+\s*\(|exec(?:ute)?\s+\w+|attach\s+database|vacuum\b|pragma\s+\w+\s*=)\b",
    re.IGNORECASE,
)


def _bare(text: str) -> str | None:
    """Return the text without quotes and comments, or None if it is ambiguous."""
    if len(text) > MOST_CHARACTERS or _AMBIGUOUS.search(text):
        return None
    bare = _SKIPPED.sub(_blank, text)
    return None if _UNENDED in bare or "*/" in bare else bare


def _blank(match: re.Match[str]) -> str:
    return " " if match.lastgroup or match.group().startswith("--") else _UNENDED


def sql_write_reason(text: str) -> str | None:
    """Return why SQL may write, or None."""
    bare = _bare(text)
    if bare is None:
        return "the statement cannot be read in one way only"
    if ";" in bare.strip().rstrip(";"):
        return "it holds more than one statement"
    found = [word.casefold() for word in _WORD.findall(bare)]
    if not found or found[0] not in _READS:
        return "the statement is not one that only reads"
    if found[0] == "pragma" and ("=" in bare or "(" in bare):
        return "the pragma may change something"
    verbs = [word for word in found[1:] if word in _WRITES]
    verbs += [each.group()[:40] for each in (_FUNCTIONS.search(bare), _LOCKS.search(bare)) if each]
    return f"the statement holds {verbs[0].upper()}" if verbs else None


def looks_like_writing(text: str) -> str | None:
    """Return why a text of unknown kind looks like SQL that writes, or None."""
    head = text[:4096]
    bare = _SKIPPED.sub(" ", head)
    starts = [part for part in bare.split(";") if part.strip()]
    shaped = next((part for part in starts[:32] if _SHAPES.match(part)), None)
    return None if shaped is None else "it looks like an SQL statement that writes"


_WRITING: Final = word_set(
    "write writes create creates update updates delete deletes remove removes insert inserts "
    "upsert put patch post drop truncate alter rename move mv rm mkdir rmdir chmod chown set "
    "edit modify replace append overwrite upload send publish push commit merge execute exec "
    "kill stop start restart install uninstall deploy destroy purge clear reset revoke grant add "
    "apply save store import restore rollback enable disable archive submit transfer pay buy "
    "order cancel close"
)
_READING: Final = word_set(
    "get list read show describe search find fetch view query count stat head"
)
_METHODS: Final = frozenset(
    {"GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "SEARCH", "QUERY"}
)
_MODE: Final = re.compile(r"[rwaxbtU+]{1,5}")
_MODE_WORDS: Final = word_set(
    "write append overwrite create readwrite read-write rw truncate exclusive"
)
_PERMISSION: Final = re.compile(r"0?o?[0-7]{3,4}|[ugoa]*[+=-][rwxst]+")
_SWITCHES: Final = word_set(
    "overwrite force write create delete recursive_delete commit append truncate replace upsert "
    "createparents create_parents createdirs create_dirs autocommit auto_commit save persist "
    "apply readwrite inplace in_place purge destroy"
)
_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_QUOTED: Final = 20


def write_refusal_reason(
    tool: ToolDefinition, arguments: Mapping[str, object], rules: ValidationRules, read: ReadWords
) -> Verdict:
    """Return why this call may write, or None if there is no sign of that."""
    problem = _tool_problem(tool)
    if problem is not None:
        return validator_refusal(READONLY, problem, "", "Use a tool that only reads.")
    switch = _switch(arguments)
    if switch is not None:
        return validator_refusal(READONLY, "it is a write", switch, f"Leave {switch} out.")
    found = collect_texts(arguments, None)
    if found is None:
        return validator_refusal(READONLY, "its arguments hold more than can be looked at")
    for each in found:
        meaning = argument_kind_of(each.where, each.name, rules.arguments)
        problem = _problem(each, meaning, rules, read)
        if problem is not None:
            return validator_refusal(READONLY, problem, each.where, "Use a read-only request.")
    return None


def _tool_problem(tool: ToolDefinition) -> str | None:
    """Return what a tool says against itself. Statements in its favour do not count. (S2)"""
    said = tool.definition.get("annotations")
    hints = cast("dict[str, object]", said) if isinstance(said, dict) else {}
    if hints.get("readOnlyHint") is False or hints.get("destructiveHint") is True:
        return "its definition declares that it writes"
    return _name_problem(tool.name)


@lru_cache(4096)
def _name_problem(name: str) -> str | None:
    parts = [part.casefold() for part in _PARTS.findall(name)]
    verb = next((part for part in parts if part in _WRITING or part in _READING), None)
    return f"its name suggests that it may {verb}" if verb in _WRITING else None


def _switch(arguments: Mapping[str, object]) -> str | None:
    """Return the name of a set flag that tells a tool to write, or None."""
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


def _problem(
    argument: ArgumentText, kind: ArgumentKind, rules: ValidationRules, read: ReadWords
) -> str | None:
    text = argument.text.strip()
    if kind is ArgumentKind.COMMAND:
        if argument.listed == 0:
            return _command_problem(argument.text, rules, read)
        return only_reads((text,)) if argument.where.endswith("[0]") else None
    return _PROBLEMS.get(kind, looks_like_writing)(text)


def _command_problem(text: str, rules: ValidationRules, read: ReadWords) -> str | None:
    problem = form_problem(text)
    if problem is not None:
        return problem
    line = read(text)
    if isinstance(line, UnparsableCommand):
        return line.reason
    return (only_reads(line) if line else None) or AllowedCommands(
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


_PROBLEMS: Final[Mapping[ArgumentKind, Callable[[str], str | None]]] = {
    ArgumentKind.SQL: sql_write_reason,
    ArgumentKind.METHOD: _method_problem,
    ArgumentKind.MODE: _mode_problem,
    ArgumentKind.ACTION: _action_problem,
    ArgumentKind.TEXT: lambda text: None,
}
