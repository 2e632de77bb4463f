"""The exit statuses of commands, and the suggestion for a mistyped name."""

import difflib
from collections.abc import Iterable
from typing import Final

FINE: Final = 0


SOMETHING_WRONG: Final = 1


OPERATORS_MISTAKE: Final = 2


NOT_REACHABLE: Final = 3


NOT_SIGNED: Final = 4


INTERRUPTED: Final = 130


READER_GONE: Final = 141


EXIT_STATUSES: Final = {
    FINE: "fine",
    SOMETHING_WRONG: "something is wrong with what was asked about: a server that failed, a tool "
    "that reported an error, a mistake that `check` or `doctor` found",
    OPERATORS_MISTAKE: "the command cannot be carried out as it was given, or the configuration "
    "cannot be used; the message says what to change",
    NOT_REACHABLE: "no gateway answers at that address",
    NOT_SIGNED: "`journal verify` found entries that stayed unsigned, and nothing else wrong",
    INTERRUPTED: "interrupted (Ctrl-C)",
    READER_GONE: "whoever read the output went away (`comity tools | head`)",
}


def suggest_name(text: str, known: Iterable[str]) -> str:
    """What was probably meant; nothing where nothing comes near."""
    near = difflib.get_close_matches(text, list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else ""
