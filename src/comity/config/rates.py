"""The limits of `[[limits.rates]]`: whose calls, of what, and how many of them."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from comity.config.kinds import Kind, number, table_of
from comity.rules.documents import Written
from comity.rules.rates import QUOTA_FORM, RATE_FORM, UNITS, Limit, Quota, Rate, Unit

_SUBJECT: Final = r"[^\s]{1,256}"
_TARGET: Final = r"\*|[^/\s]{1,256}/[^/\s]{1,256}"


def _shaped(shape: str, wanted: str) -> Kind:
    def read(written: Written) -> str:
        if not re.fullmatch(shape, written.text()):
            raise written.wrong(f"must be {wanted}")
        return written.text()

    return Kind(read, {"type": "string", "pattern": f"^({shape})$"})


def _units(written: Written) -> tuple[Unit, ...]:
    found = tuple(each.one_of(UNITS) for each in written.items())
    if len(set(found)) < len(found):
        raise written.wrong("names one thing twice; keep one")
    return tuple(unit for unit in UNITS if unit in found)


_PER: Final = Kind(_units, {"type": "array", "items": {"enum": list(UNITS)}, "uniqueItems": True})
_MEMBERS: Final[Mapping[str, tuple[Kind, str]]] = {
    "subject": (_shaped(_SUBJECT, "a party, as agent:ci, or a pattern"), "whose calls; * is all"),
    "target": (
        _shaped(_TARGET, "server/tool, server/* or *"),
        "calls of what, as in a grant; * is everything",
    ),
    "per": (_PER, "what has a count of its own: party unless given; [] is one for all"),
    "rate": (
        _shaped(RATE_FORM, "a number in a time, as 60/m"),
        "calls a second, minute, hour, day",
    ),
    "burst": (number(1, 1_000_000_000), "how many of them at once; all of them unless given"),
    "quota": (
        _shaped(QUOTA_FORM, "a number in a time, as 10000/d"),
        "calls a day or month, in UTC",
    ),
}


def _limit(entry: Written) -> Limit:
    table = entry.table()
    for stranger in entry.unknown(_MEMBERS):
        raise stranger
    said: dict[str, Any] = {name: _MEMBERS[name][0].read(each) for name, each in table.items()}
    if "rate" not in said and "quota" not in said:
        raise entry.wrong("limits nothing; give it a rate, as 60/m, or a quota, as 10000/d")
    burst = said.pop("burst", None)
    if burst is not None and "rate" not in said:
        raise table["burst"].wrong("belongs to a rate, and there is none")
    rate = Rate.parse(said.pop("rate"), burst) if "rate" in said else None
    quota = Quota.parse(said.pop("quota")) if "quota" in said else None
    return Limit(**said, rate=rate, quota=quota)


def _limits(written: Written) -> tuple[Limit, ...]:
    return tuple(_limit(entry) for entry in written.items())


_TABLE: Final = table_of(
    _MEMBERS,
    anyOf=[{"required": ["rate"]}, {"required": ["quota"]}],
    dependencies={"burst": ["rate"]},
)
_READ: Final[Callable[[Written], tuple[object, ...]]] = _limits
RATES: Final = Kind(_READ, {"type": "array", "items": _TABLE})
