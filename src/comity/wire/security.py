"""What a server says of the risks of its tools and of what it needs itself. (MGP §3, §4)

All of it is testimony: it can make a call riskier, and never safer. A label stands where the
document puts it, and once more in `_meta`, since some SDKs drop every member they do not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage

PERMISSION_PREFIX: Final = "mgp/permission/"
ASK_TO_WAIT: Final = ("mgp/permission/request", "mgp/permission/await")
"""Tells a server to wait for an operator: by the document's name, then by its later one. (D-08)"""

TELL_DECISION: Final = ("mgp/permission/response", "mgp/permission/grant")
"""Tells a server what was decided, by either name."""

NOT_YOURS: Final = "what a server may do is decided by its operator alone"
"""The answer to a server that decides for itself, or asks a client to. (D-08, S1)"""

MIRROR: Final = "dev.comity/security"
MOST_NAMES: Final = 64
LONGEST_NAME: Final = 200


class Risk(StrEnum):
    """How much harm a call may do. (MGP §4.4)"""

    SAFE = "safe"
    MODERATE = "moderate"
    DANGEROUS = "dangerous"


class Trust(StrEnum):
    """How far a server is trusted; its operator says so. (MGP §2.3)"""

    TRUSTED = "trusted"
    STANDARD = "standard"
    SANDBOXED = "sandboxed"


class Decision(StrEnum):
    """What became of a permission that a server needs. (MGP §3.6)"""

    APPROVED = "approved"
    DENIED = "denied"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class Label:
    """The `security` of one tool. `permissions` is None where it says nothing of them."""

    risk: Risk | None = None
    permissions: tuple[str, ...] | None = None
    validators: tuple[str, ...] = ()
    side_effects: tuple[str, ...] = ()
    reversible: bool | None = None
    confirmation: bool = False


@dataclass(frozen=True, slots=True)
class Hints:
    """What MCP's annotations claim; None where they claim nothing."""

    reads_only: bool | None = None
    destroys: bool | None = None
    open_world: bool | None = None


class _Labelled(Struct):
    risk_level: Literal["safe", "moderate", "dangerous"] | None = None
    permissions_required: list[str] | None = None
    side_effects: list[str] = []
    validator: str | list[str] | None = None
    reversible: bool | None = None
    confirmation_required: bool = False


UNREADABLE: Final = Label(Risk.DANGEROUS, confirmation=True)
"""What is made of a label that cannot be read: whoever garbles his own gains nothing by it."""


def label_of(definition: Mapping[str, Raw]) -> Label | None:
    """What a tool's definition says of its risk, in either place or in both; None for nothing."""
    places = (definition.get("security"), _mirrored(definition))
    said = [_label(raw) for raw in places if raw is not None]
    if len(said) == 2 and said[0] != said[1]:
        return _both(*said)
    return said[0] if said else None


def hints_of(definition: Mapping[str, Raw]) -> Hints:
    """What a tool's annotations claim; what is not a boolean claims nothing."""
    said = _members(definition.get("annotations"))
    claims = [_truth(said.get(f"{name}Hint")) for name in ("readOnly", "destructive", "openWorld")]
    return Hints(*claims)


def _mirrored(definition: Mapping[str, Raw]) -> Raw | None:
    return _members(definition.get("_meta")).get(MIRROR)


def _members(raw: Raw | None) -> Mapping[str, Raw]:
    try:
        return {} if raw is None else jsonrpc.members(raw)
    except MalformedMessage:
        return {}


def _truth(raw: Raw | None) -> bool | None:
    return {b"true": True, b"false": False}.get(b"" if raw is None else bytes(raw).strip())


def _label(raw: Raw) -> Label:
    try:
        found = msgspec.convert(jsonrpc.value(raw), _Labelled)
    except (MalformedMessage, msgspec.ValidationError):
        return UNREADABLE
    validator = found.validator
    validators = [validator] if isinstance(validator, str) else validator or []
    names = (*(found.permissions_required or ()), *validators, *found.side_effects)
    if len(names) > MOST_NAMES or any(len(name) > LONGEST_NAME for name in names):
        return UNREADABLE
    needs = found.permissions_required
    return Label(
        None if found.risk_level is None else Risk(found.risk_level),
        None if needs is None else tuple(needs),
        tuple(validators),
        tuple(found.side_effects),
        found.reversible,
        found.confirmation_required,
    )


def _both(one: Label, other: Label) -> Label:
    """Two labels that disagree: all that either of them warns of."""
    order = (None, *Risk)
    needs = None
    if one.permissions is not None or other.permissions is not None:
        needs = tuple(dict.fromkeys((*(one.permissions or ()), *(other.permissions or ()))))
    return Label(
        max(one.risk, other.risk, key=order.index),
        needs,
        tuple(dict.fromkeys((*one.validators, *other.validators))),
        tuple(dict.fromkeys((*one.side_effects, *other.side_effects))),
        one.reversible is True and other.reversible is True,
        one.confirmation or other.confirmation,
    )
