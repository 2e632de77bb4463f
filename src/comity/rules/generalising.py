"""From the arguments of several calls to the narrowest condition that covers them all, if any.

Rule 1: a value becomes the same value; few values become those few; paths become the deepest tree
        they have in common; URLs become one host. Whatever else differs is not generalised.
Rule 2: no tree is a system's own or a person's home, nor hidden, nor one where secrets are kept.
Rule 3: what was made is held against every call that it was made from.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from comity.rules import addresses, paths
from comity.rules.conditions import (
    canonical,
    host_of,
    is_too_wide,
    leaves,
    read_or_none,
    same,
)
from comity.rules.meanings import Meaning, meaning_of
from comity.wire.errors import MalformedMessage

MOST_CHOICES: Final = 5
LONGEST_VALUE: Final = 1_000
_TWICE: Final = 2
_NEVER_BELOW: Final = ("/etc", "/root", "/proc", "/sys", "/dev", "/boot", "/run", "/private/etc")
_LIKE_PATHS: Final = (Meaning.PATH, Meaning.UNKNOWN)
_LIKE_URLS: Final = (Meaning.URL, Meaning.UNKNOWN)

type Written = dict[str, object]


def generalise(seen: Sequence[Mapping[str, object]], definition: str = "") -> Written | None:
    """A condition for calls such as these, which all have arguments of the same names; or None."""
    found = [leaves(each) for each in seen]
    first = found[0] if found else None
    if first is None:
        return None
    tests: Written = {}
    for pointer in sorted(first):
        values = [each[pointer] for each in found if each is not None and pointer in each]
        test = _test(pointer.rpartition("/")[2], values) if len(values) == len(seen) else None
        if test is None:
            return None
        tests[pointer] = test
    where: Written = {"paths": tests, "only": sorted(seen[0])}
    if definition:
        where["definition"] = definition
    condition = read_or_none(where)
    covers_all = condition is not None and all(map(condition.covers, seen))
    return where if covers_all else None


def shape(arguments: Mapping[str, object]) -> tuple[str, ...] | None:
    """Where the arguments of a call have values; None for too many to look at."""
    found = leaves(arguments)
    return None if found is None else tuple(sorted(found))


def tree_of(texts: Sequence[str]) -> str | None:
    """The deepest directory tree that these paths have in common, if calls may be let into it."""
    if any(paths.path_problem(each) is not None for each in texts):
        return None
    split = [paths.collapsed(each).split("/") for each in texts]
    common: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    tree = "/".join(common)
    folded = tree.casefold()
    is_kept = any(folded == each or folded.startswith(f"{each}/") for each in _NEVER_BELOW)
    is_hidden = any(part.startswith(".") for part in common)
    return None if not tree or is_kept or is_hidden or is_too_wide(tree) else tree


def _test(name: str, values: Sequence[object]) -> Written | None:
    distinct: list[object] = []
    for value in values:
        if not any(same(value, each) for each in distinct):
            distinct.append(value)
        if len(distinct) > MOST_CHOICES:
            break
    if any(_is_long(each) for each in distinct):
        return None
    if len(distinct) == 1:
        return {"is": distinct[0]}
    is_few = len(distinct) <= MOST_CHOICES
    # Values that all came again are a choice; of others there will be more.
    settled = is_few and all(sum(same(v, d) for v in values) >= _TWICE for d in distinct)
    few: Written | None = {"in": distinct} if is_few else None
    return (few if settled else None) or _wider(name, values) or few


def _wider(name: str, values: Sequence[object]) -> Written | None:
    texts = [each for each in values if isinstance(each, str)]
    if len(texts) != len(values):
        return None
    meaning = meaning_of("", name, {})
    tree = tree_of(texts) if meaning in _LIKE_PATHS else None
    if tree is not None:
        return {"under": tree}
    return _host(texts) if meaning in _LIKE_URLS else None


def _host(texts: Sequence[str]) -> Written | None:
    hosts = {host_of(each) for each in texts}
    place = hosts.pop() if len(hosts) == 1 else None
    # What is no public name may be another machine tomorrow.
    if place is None or addresses.host_problem(place[1])[0] is not None:
        return None
    scheme, host = place
    return {"host": host} if scheme == "https" else {"host": host, "scheme": scheme}


def _is_long(value: object) -> bool:
    try:
        return len(canonical({"value": value})) > LONGEST_VALUE
    except MalformedMessage:
        return True
