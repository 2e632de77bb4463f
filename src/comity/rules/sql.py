"""Whether an SQL text may write: told by its words, without what stands in quotes and comments.

Databases differ over what a comment and a quote are; where one could see a statement that another
does not, the text is refused. What a function does when it is selected cannot be known here; those
that are known to write, to reach files or to end others' sessions are refused. A database role that
may only read decides.
"""

import re
from typing import Final

from comity.rules.options import words

MOST_CHARACTERS: Final = 64 * 1024
# What does not end is taken up to the end of the text, so that nothing is looked at twice.
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
# MySQL takes `--1` for an expression and `#` for a comment, PostgreSQL the reverse; a backslash
# escapes in one and not in the other; and only some know texts between dollars.
_AMBIGUOUS: Final = re.compile(r"\\|\$[A-Za-z_]*\$|--(?![ \t])|\#(?![>-])|\x00")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READS: Final = words("select with values show describe desc explain table pragma use")
_WRITES: Final = words(
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
    """The text without quotes and comments; None where it can be read in more than one way."""
    if len(text) > MOST_CHARACTERS or _AMBIGUOUS.search(text):
        return None
    bare = _SKIPPED.sub(_blank, text)
    return None if _UNENDED in bare or "*/" in bare else bare


def _blank(found: re.Match[str]) -> str:
    return " " if found.lastgroup or found.group().startswith("--") else _UNENDED


def writing(text: str) -> str | None:
    """Why a text that is SQL may write, or None."""
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
    """Why a text that may be anything looks like SQL that writes, or None."""
    head = text[:4096]
    bare = _SKIPPED.sub(" ", head)
    starts = [part for part in bare.split(";") if part.strip()]
    shaped = next((part for part in starts[:32] if _SHAPES.match(part)), None)
    return None if shaped is None else "it looks like an SQL statement that writes"
