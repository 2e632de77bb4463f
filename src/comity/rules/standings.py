"""In which ways a tool can stand, and what whoever calls it is told in each. (MGP §14.3)"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from comity.rules.examined import Examined
from comity.rules.looks import Finding
from comity.rules.permissions import Decided
from comity.rules.policies import Definitions, ServerPolicy, Suspicious, ToolPolicy
from comity.rules.refusals import Refusal
from comity.wire.errors import PERMISSION_DENIED, POLICY_UNKNOWN, TOOL_DISABLED
from comity.wire.parties import GATEWAY


class State(StrEnum):
    """Whether the definition of a tool is the accepted one."""

    ACCEPTED = "accepted"
    NEW = "new"
    CHANGED = "changed"
    SUSPECT = "suspect"
    UNREADABLE = "unreadable"
    DISABLED = "disabled"
    UNKNOWN = "unknown"


_TOLD: Final[Mapping[State, str]] = {
    State.NEW: "no operator has accepted this tool yet",
    State.CHANGED: "the definition of this tool has changed since it was accepted",
    State.SUSPECT: "the definition of this tool may deceive its readers",
    State.UNREADABLE: "the definition of this tool cannot be read in one way only",
    State.DISABLED: "an operator has switched this tool off",
}
_REMEDY: Final = (
    "an operator can look at it with `comity tools changes {server}` and let it be used with "
    "`comity tools accept {server} {tool}`"
)


class Accepted(NamedTuple):
    """What of a pin is looked at in every call."""

    digest: str
    by: str
    at: datetime | None


def state_of(
    seen: Examined,
    policy: ServerPolicy,
    tool: ToolPolicy,
    findings: Iterable[Finding],
    accepted: Accepted | None,
    is_known: bool,
) -> State:
    """How a definition stands by what is said of it, and by what was accepted if that is known.

    What is seen for the first time with nothing against it counts as accepted, by default.
    """
    if tool.disabled:
        return State.DISABLED
    if seen.fault:
        return State.UNREADABLE
    is_pinned = policy.definitions is not Definitions.OFF
    if is_pinned and not is_known:
        return State.UNKNOWN
    if is_pinned and accepted is not None and seen.digest not in ("", accepted.digest):
        return State.CHANGED
    suspect = any(findings) and policy.suspicious is not Suspicious.SHOW
    if suspect and not _was_judged(accepted, seen):
        return State.SUSPECT
    is_new = policy.definitions is Definitions.APPROVE and accepted is None
    return State.NEW if is_new else State.ACCEPTED


def _was_judged(accepted: Accepted | None, seen: Examined) -> bool:
    """Whether somebody, and not the gateway by itself, has accepted this very definition."""
    return accepted is not None and accepted.by != GATEWAY and accepted.digest == seen.digest


def refusal_for(
    state: State,
    server: str,
    tool: str,
    missing: Mapping[str, Decided],
    findings: Iterable[Finding] = (),
) -> Refusal | None:
    """Why a tool that stands so cannot be called; None where nothing is in the way."""
    if state is State.UNKNOWN:
        because = "what was accepted of this tool's server is not known just now"
        return Refusal(POLICY_UNKNOWN, because)
    if state is not State.ACCEPTED:
        because = _TOLD[state]
        if state in (State.NEW, State.CHANGED, State.SUSPECT):
            because = f"{because}; {_REMEDY.format(server=server, tool=_spoken(tool))}"
        details: dict[str, object] = {"reason": f"definition_{state}"}
        if state is State.SUSPECT:
            details["findings"] = sorted({str(each.look) for each in findings})
        return Refusal(TOOL_DISABLED, because, details=details)
    if missing:
        return _lacking(server, missing)
    return None


def _lacking(server: str, missing: Mapping[str, Decided]) -> Refusal:
    name, first = next(iter(missing.items()))
    others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    because = (
        f"server {server!r} needs the permission {_spoken(name)}{others} for this tool, which is "
        f"{first.decision}; an operator can give it with `comity permissions approve {server} "
        f"{_spoken(name)}`"
    )
    told = {permission: str(each.decision) for permission, each in missing.items()}
    return Refusal(PERMISSION_DENIED, because, details={"permissions": told})


def _spoken(name: str) -> str:
    """A name that a server chose, in a sentence of ours."""
    return name if name.isascii() and name.isprintable() and len(name) <= 128 else f"{name!a:.128}"
