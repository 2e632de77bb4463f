"""Which of a call's arguments are code, and what is wrong with their form alone."""

import re
from collections.abc import Mapping
from typing import Final

from comity.rules.arguments import Found, texts
from comity.rules.meanings import Meaning, meaning_of
from comity.rules.validators import CODE_SAFETY, Rules, Verdict, blocked

# One such word does nothing, whatever language takes it for code.
_WORD: Final = re.compile(r"[\w.:/@+-]{0,200}")


def code_in(arguments: Mapping[str, object], rules: Rules) -> list[Found] | None:
    """What is code by its name or the operator's word; where nothing is, whatever could be.

    None where there is too much to look at.
    """
    found = texts(arguments, None)
    if found is None:
        return None
    meanings = [(each, meaning_of(each.where, each.name, rules.arguments)) for each in found]
    named = [each for each, meaning in meanings if meaning is Meaning.CODE]
    if named:
        return named
    return [
        each
        for each, meaning in meanings
        if meaning is Meaning.UNKNOWN and not _WORD.fullmatch(each.text)
    ]


def form_refusal(code: list[Found] | None) -> Verdict:
    """Why the arguments cannot be examined as code at all, or None."""
    if code is None:
        return blocked(CODE_SAFETY, "its arguments hold more than can be looked at")
    parts = [each for each in code if each.listed]
    if parts:
        return blocked(
            CODE_SAFETY,
            "code in parts cannot be judged",
            parts[0].where,
            "Give the code as one text.",
        )
    return None
