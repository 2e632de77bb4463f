"""What may stand in a grant, and in which form it is kept: the same at every door and in a file.

Rule 1: a subject is one party, or `*` for everybody who is known; only a guardrail has patterns.
Rule 2: a target is kept as `server/name`, `server/*` or `*`; what people write instead, `server`
        alone or `server__tool` as clients see it, is read as what it means.
Rule 3: what could be read in two ways, or by nobody, is refused with what would do.
Rule 4: a condition on arguments goes with allowing calls of one tool, and with nothing else.
"""

import re
from collections.abc import Mapping
from typing import Final, cast

import msgspec

from comity.rules import conditions
from comity.rules.names import SEPARATOR
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.grants import CALL, EVERYBODY, EVERYTHING, FEATURE, PERMISSION, Effect, Grant

LONGEST_SUBJECT: Final = 256
LONGEST_VERB: Final = 128
LONGEST_TARGET: Final = 1000
MOST_STARS: Final = 8
_SERVER: Final = re.compile(r"[A-Za-z0-9*][A-Za-z0-9_.*-]{0,63}")
_WORD: Final = r"[A-Za-z][A-Za-z0-9_.-]*"
_VERB: Final = re.compile(rf"\*|{_WORD}(/{_WORD})*(/\*)?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def subject(text: str) -> str:
    """Whom a grant names; raises MalformedMessage."""
    if text == EVERYBODY:
        return text
    if "*" in text:
        raise _refused(
            f"the subject {text!r:.80} must be one party, as agent:ci, or * for everybody"
        )
    return subjects(text)


def subjects(text: str) -> str:
    """Whom a guardrail names, which may be a pattern; raises MalformedMessage."""
    if not text or text != text.strip() or len(text) > LONGEST_SUBJECT or _CONTROL.search(text):
        raise _refused(
            f"a subject must be the id of a party, as agent:ci, of at most {LONGEST_SUBJECT} "
            "characters"
        )
    return _bounded(text)


def verb(text: str) -> str:
    """What a grant lets its subject do; raises MalformedMessage."""
    if len(text) > LONGEST_VERB or not _VERB.fullmatch(text):
        raise _refused(
            f"the verb {text!r:.80} must be a method as tools/call, all of a family as tools/*, "
            "or *"
        )
    return text


def target(text: str, of: str = "tools/call") -> str:
    """What a grant is about, in the form in which it is kept; raises MalformedMessage."""
    if len(text) > LONGEST_TARGET or _CONTROL.search(text):
        raise _refused(f"a target has at most {LONGEST_TARGET} characters, none of them a control")
    if of in (PERMISSION, FEATURE):
        return _name(text)
    if text in (EVERYTHING, "*/*"):
        return EVERYTHING
    server, slash, name = text.partition("/")
    if not slash:
        server, separator, name = text.partition(SEPARATOR)
        name = name if separator else "*"
    if not _SERVER.fullmatch(server) or not name:
        raise _refused(
            f"the target {text!r:.80} must be server/tool, server/*, or *; a server's id has "
            "1 to 64 of A-Z a-z 0-9 _ . -"
        )
    return _bounded(f"{server}/{name}")


def condition(grant: Grant) -> Mapping[str, object] | None:
    """The condition of a grant in the form in which it is kept; raises MalformedMessage."""
    if grant.where is None:
        return None
    is_one_call = grant.verb == CALL and "*" not in grant.target and "/" in grant.target
    if not is_one_call or grant.effect is not Effect.ALLOW:
        raise _refused("a condition goes with allowing tools/call of one tool, as files/read")
    conditions.read(grant.where)
    return cast("Mapping[str, object]", msgspec.json.decode(conditions.canonical(grant.where)))


def _name(text: str) -> str:
    """What a server is let do itself: the permission's or the feature set's own name."""
    if not text or text != text.strip():
        raise _refused("a permission or a feature set is a name, as network.outbound, or *")
    return _bounded(text)


def _bounded(text: str) -> str:
    if text.count("*") > MOST_STARS:
        raise _refused(f"{text!r:.80} has more than {MOST_STARS} stars; write several entries")
    return text


def _refused(because: str) -> MalformedMessage:
    return MalformedMessage(because, INVALID_PARAMS)
