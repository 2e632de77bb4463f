"""The exit statuses of commands, and the suggestion for a mistyped name."""

import difflib
from collections.abc import Iterable
from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE_ERROR: Final = 2
NOT_REACHABLE: Final = 3
NOT_PERMITTED: Final = 4
NOT_FOUND: Final = 5
INTERRUPTED: Final = 130
READER_GONE: Final = 141

EXIT_STATUSES: Final = {
    DONE: "done",
    FAILED: "failed: a tool reported an error, a check found a problem, or `--check` or "
    "`--exit-code` found what it looks for",
    USAGE_ERROR: "usage: the command or the configuration is wrong, and the message says what to "
    "change",
    NOT_REACHABLE: "not reachable: no gateway answers at the address",
    NOT_PERMITTED: "not permitted: the gateway does not accept the key, or the key lacks a grant",
    NOT_FOUND: "not found: the gateway has no entry of this name",
    INTERRUPTED: "interrupted (Ctrl-C)",
    READER_GONE: "the reader of the output ended (`comity tools list | head`)",
}


def suggest_name(text: str, known: Iterable[str]) -> str:
    """Return a question with the name that was probably meant, or an empty text."""
    near = difflib.get_close_matches(text, list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else ""
