"""All that can be told of a tool from its definition alone, worked out once for each."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from comity.rules import pins
from comity.rules.fallbacks import Suggestion, suggested, validators_of
from comity.rules.looks import LONGEST_TEXT, Finding, finding_of_name, findings_in
from comity.rules.permissions import full_names
from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage
from comity.wire.security import Hints, Label, hints_of, label_of

UNLISTED: Final = b"{}"
"""The definition of what a server never listed to the gateway."""

MOST_WORDS: Final = 200

# What a server may well tell one client and not another, and what no model reads.
_UNSPOKEN: Final = ("_meta", "execution")
_LABEL: Final = "security"
# In canonical JSON every control character is spelt out, but for DEL and the ones of white space.
_SURELY_PLAIN: Final = re.compile(rb"[\x20-\x7e]*")
_SPELT: Final = re.compile(rb"\\[ubf]|(?:\s|\\[nrt]){100}")
_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{2,128}")
_NAME_LIKE: Final = re.compile(r"[A-Za-z0-9][_.-][A-Za-z0-9_]|[a-z][A-Z]")
_QUOTES: Final = frozenset("`'\"\u2018\u2019\u201c\u201d")
_NO_HINTS: Final = Hints()


@dataclass(frozen=True, slots=True)
class Examined:
    """One definition, looked at. `needs` is None where its label says nothing of permissions."""

    definition: bytes
    name: str
    digest: str = ""
    label: Label | None = None
    hints: Hints = _NO_HINTS
    needs: tuple[str, ...] | None = None
    findings: tuple[Finding, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    fault: str = ""
    # The canonical definition, only until it is known whether somebody has to keep it.
    fresh: list[bytes] = field(default_factory=list[bytes], repr=False, compare=False)

    def needs_of(self, server: tuple[str, ...]) -> tuple[str, ...]:
        """What it needs; a tool that does not say needs whatever its server does."""
        return server if self.needs is None else self.needs

    @property
    def suggested(self) -> tuple[str, ...]:
        """The validators that its name and its arguments suggest."""
        return validators_of(self.suggestions)

    def written(self) -> bytes:
        """The canonical definition; it is not kept, since there may be many."""
        if self.fresh:
            return self.fresh.pop()
        return b"" if self.fault else pins.canonical(jsonrpc.members(self.definition), self.name)

    def words(self) -> Iterator[str]:
        """What could be names of tools in its description: as names are spelt, or in quotes."""
        if self.fault:
            return
        said = jsonrpc.text(jsonrpc.members(self.definition).get("description")) or ""
        spelt = dict.fromkeys(_names_in(said[:LONGEST_TEXT]))
        yield from [word for word in spelt if word != self.name][:MOST_WORDS]


def examine(definition: bytes, name: str) -> Examined:
    """Look at a definition; whatever it holds, nothing is raised."""
    if definition == UNLISTED:
        return Examined(definition, name)
    if len(definition) > pins.LONGEST:
        return Examined(definition, name, fault=f"it has more than {pins.LONGEST} bytes")
    try:
        members = jsonrpc.members(definition)
        written = pins.canonical(members, name)
    except (MalformedMessage, RecursionError) as error:
        return Examined(definition, name, fault=f"it can be read in more than one way: {error}")
    label = label_of(members)
    needs = None if label is None or label.permissions is None else full_names(label.permissions)
    said: Mapping[str, Any] = msgspec.json.decode(written)
    return Examined(
        definition,
        name,
        pins.digest(written),
        label,
        hints_of(members),
        needs,
        _findings(name, written, said),
        suggested(name, said),
        fresh=[written],
    )


def says_the_same(known: bytes, shown: bytes, name: str) -> bool:
    """Whether a reader learns the same of a tool from both; what was left out misleads nobody."""
    if known == UNLISTED:
        return False
    try:
        one, other = (pins.canonical(jsonrpc.members(each), name) for each in (known, shown))
    except (MalformedMessage, RecursionError):
        return False
    if pins.without(one, *_UNSPOKEN) == pins.without(other, *_UNSPOKEN):
        return True
    is_labelled = _LABEL in jsonrpc.members(other)
    left_out = (*_UNSPOKEN, _LABEL)
    return not is_labelled and pins.without(one, *left_out) == pins.without(other, *left_out)


def _findings(name: str, written: bytes, said: Mapping[str, object]) -> tuple[Finding, ...]:
    of_name = finding_of_name(name)
    found = () if of_name is None else (of_name,)
    is_short = len(written) <= LONGEST_TEXT
    if is_short and _SURELY_PLAIN.fullmatch(written) and not _SPELT.search(written):
        return found
    # What the name hides was said of it already.
    return (*found, *(each for each in findings_in(said) if each.where != "/name"))


def _names_in(said: str) -> Iterator[str]:
    for found in _WORD.finditer(said):
        word = found.group().strip(".-")
        around = {said[found.start() - 1 : found.start()], said[found.end() : found.end() + 1]}
        if _NAME_LIKE.search(word) or around <= _QUOTES:
            yield word
