"""Grants and guardrails of `[[grants]]` and `[[forbid]]`, each read into one entry."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from comity.config.kinds import TEXT, Kind, Value, one_of
from comity.rules import conditions, granting
from comity.rules.documents import Mistakes, Written
from comity.wire.errors import MalformedMessage, Misconfigured
from comity.wire.grants import CALL, Effect, Forbid, Grant, Source

MOST_GRANTS: Final = 10_000
MOST_FORBIDS: Final = 1_000
LONGEST_WHY: Final = 1_000
BY_FILE: Final = "operator"
"""By whom an entry of the file was granted: whoever may write the file."""

type Member = tuple[Kind, str]


def _checked(check: Callable[[str], str], schema: Mapping[str, object]) -> Kind:
    def read(written: Written) -> str:
        try:
            return check(written.text())
        except MalformedMessage as refused:
            raise written.wrong(str(refused)) from None

    return Kind(read, schema)


def _expiry(written: Written) -> Any:
    said = written.value
    try:
        found = datetime.fromisoformat(said) if isinstance(said, str) else said
    except ValueError:
        found = None
    if not isinstance(found, datetime) or found.tzinfo is None:
        raise written.wrong("must be a time with its zone, as 2026-12-31T18:00:00Z")
    return found.astimezone(UTC)


def _why(written: Written) -> str:
    if len(written.text()) > LONGEST_WHY:
        raise written.wrong(f"has more than {LONGEST_WHY} characters; say it shorter")
    return written.text()


def _where(written: Written) -> Any:
    """A condition on arguments. Whether it may go with the rest of its entry is seen there."""
    said = written.value
    try:
        conditions.read(said)
    except MalformedMessage as refused:
        raise written.wrong(str(refused)) from None
    return said


_TEST: Final = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 2,
    "properties": {
        "under": {"type": "string", "pattern": "^/."},
        "is": {},
        "in": {"type": "array", "minItems": 1, "maxItems": conditions.MOST_CHOICES},
        "host": {"type": "string"},
        "scheme": {"enum": ["https", "http"]},
    },
    "additionalProperties": False,
}
_CONDITION: Final = {
    "type": "object",
    "properties": {
        "paths": {"type": "object", "additionalProperties": _TEST},
        "only": {"type": "array", "items": {"type": "string"}},
        "definition": {"type": "string"},
    },
    "required": ["paths", "only"],
    "additionalProperties": False,
}
_SHORT: Final = {"type": "string", "minLength": 1, "maxLength": 1000}
_VERB: Final[Member] = (_checked(granting.verb, _SHORT), "what it may do; tools/call unless given")
_TARGET: Final[Member] = (Kind(Written.text, _SHORT), "with what: server/tool, server/*, or *")
_WHY: Final[Member] = (Kind(_why, TEXT.schema), "for people who read it later")
_GRANT: Final[Mapping[str, Member]] = {
    "subject": (_checked(granting.subject, _SHORT), "who: a party's id, or * for everybody known"),
    "verb": _VERB,
    "target": _TARGET,
    "effect": (one_of(*Effect), "allow unless given; deny, or ask a person each time"),
    "expires": (Kind(_expiry, {"type": "string"}), "when it ends, with the time zone"),
    "where": (
        Kind(_where, _CONDITION),
        "for which arguments a person need not be asked: a test for each, by its JSON pointer",
    ),
    "why": _WHY,
}
_FORBID: Final[Mapping[str, Member]] = {
    "subject": (_checked(granting.subjects, _SHORT), "who; may be a pattern, as agent:*"),
    "verb": _VERB,
    "target": _TARGET,
    "why": _WHY,
}


def _members(entry: Written, known: Mapping[str, Member]) -> dict[str, Any]:
    """What an entry says, in the form in which it is kept; raises with all that is wrong in it."""
    mistakes = Mistakes()
    table = entry.table()
    mistakes.note(*entry.unknown(known))
    mistakes.note(
        *(
            entry.wrong(f"needs its {name}: {known[name][1]}")
            for name in ("subject", "target")
            if name not in table
        )
    )
    said: dict[str, Any] = {"verb": CALL}
    for name, written in table.items():
        if name in known:
            kind = known[name][0]
            said[name] = mistakes.read(lambda kind=kind, it=written: kind.read(it), None)
    if "target" in table and said["target"] is not None:
        said["target"] = mistakes.read(lambda: _target(table["target"], said["verb"]), None)
    if mistakes.found:
        raise Misconfigured(mistakes)
    return said


def _target(written: Written, verb: str | None) -> str:
    try:
        return granting.target(written.text(), verb or CALL)
    except MalformedMessage as refused:
        raise written.wrong(str(refused)) from None


def _grant(entry: Written) -> Grant:
    said = _members(entry, _GRANT)
    grant = Grant(
        said["subject"],
        said["verb"],
        said["target"],
        Effect(said.get("effect", Effect.ALLOW)),
        source=Source.FILE,
        granted_by=BY_FILE,
        justification=said.get("why", ""),
        expires_at=said.get("expires"),
        where=said.get("where"),
    )
    try:
        return replace(grant, where=granting.condition(grant))
    except MalformedMessage as refused:
        raise entry.wrong(str(refused)) from None


def _forbid(entry: Written) -> Forbid:
    said = _members(entry, _FORBID)
    return Forbid(said["subject"], said["verb"], said["target"], said.get("why", ""))


def _all_of(read: Callable[[Written], object], most: int, known: Mapping[str, Member]) -> Kind:
    def read_all(written: Written) -> Value:
        entries = written.items()
        if len(entries) > most:
            raise written.wrong(f"holds more than {most}; keep the rest with `comity grants add`")
        mistakes = Mistakes()
        found = tuple(mistakes.read(lambda each=each: read(each), None) for each in entries)
        if mistakes.found:
            raise Misconfigured(mistakes)
        return found

    properties = {
        name: {**kind.schema, "description": meaning} for name, (kind, meaning) in known.items()
    }
    items = {
        "type": "object",
        "properties": properties,
        "required": ["subject", "target"],
        "additionalProperties": False,
    }
    return Kind(read_all, {"type": "array", "maxItems": most, "items": items})


GRANTS: Final = _all_of(_grant, MOST_GRANTS, _GRANT)
FORBIDS: Final = _all_of(_forbid, MOST_FORBIDS, _FORBID)
