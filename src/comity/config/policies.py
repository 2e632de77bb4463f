"""What an operator decides of a server and of its single tools, in the tables of its entry."""

from collections.abc import Mapping
from typing import Any, Final

from comity.config.inspections import INSPECT
from comity.config.kinds import TEXT, TRUTH, Kind, number, one_of, table_of, texts
from comity.rules.documents import Written
from comity.rules.permissions import ApprovalPolicy, full_names
from comity.rules.policies import Definitions, OnDenied, RequireApproval, Suspicious, ToolPolicy
from comity.rules.risk import TRUST_BY_NAME
from comity.wire.security import Risk

type Member = tuple[Kind, str]

MEANINGS: Final = (
    *("command", "words", "code", "sql", "path", "url", "host"),
    *("method", "mode", "action", "text"),
)
"""What an argument can be to its tool, for the validators that look at it."""

_NAMES: Final = texts(r"[\x21-\x7e]{1,200}", "a name, as network.outbound")
_VALIDATORS: Final = texts(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", "a validator, as network_restricted")
_RISK: Final = one_of(*Risk)


def _permissions(written: Written) -> tuple[str, ...]:
    _NAMES.read(written)
    return full_names(each.text() for each in written.items())


def _trust(written: Written) -> str:
    return str(TRUST_BY_NAME[written.one_of(TRUST_BY_NAME)])


def _meanings(written: Written) -> Mapping[str, object]:
    return {name: each.one_of(MEANINGS) for name, each in written.table().items()}


SERVER_POLICY: Final[Mapping[str, Member]] = {
    "approval_policy": (one_of(*ApprovalPolicy), "what becomes of permissions nobody decided"),
    "permissions": (Kind(_permissions, _NAMES.schema), "permissions that this server is given"),
    "on_denied": (one_of(*OnDenied), "whether it works with less, or not at all, if denied some"),
    "trust": (
        Kind(_trust, {"enum": list(TRUST_BY_NAME)}),
        "whether its labels and hints about its tools are believed: only those of `trusted`",
    ),
    "risk": (_RISK, "how risky its tools are, where nothing is said of one"),
    "definitions": (one_of(*Definitions), "when its tools are accepted as they are described"),
    "suspicious": (one_of(*Suspicious), "what is done about tools that hide or imitate something"),
    "audit": (TRUTH, "whether it is told all that happens here, as an audit server"),
}
TOOL_POLICY: Final[Mapping[str, Member]] = {
    "risk": (_RISK, "how risky it is"),
    "validators": (_VALIDATORS, "what looks at its arguments before it is called"),
    "arguments": (
        Kind(_meanings, {"type": "object", "additionalProperties": {"enum": list(MEANINGS)}}),
        "what its arguments are, for those validators",
    ),
    "inspect": (INSPECT, "how strict those validators are, and what they let through"),
    "require_approval": (one_of(*RequireApproval), "which of its calls need a person's approval"),
    "approvals": (number(1, 100), "how many people have to say yes, where any has to"),
    "disabled": (TRUTH, "whether nobody can call it"),
    "cost": (number(1, 10_000), "how many calls one of it counts as, for limits"),
    "idempotent": (TRUTH, "whether calling it twice does no more than calling it once"),
    "max_retries": (number(0, 10), "how often it is called again after a failure; if idempotent"),
    "fallback_tool": (TEXT, "the tool to name, or to call, when it cannot be used"),
}


def _members(written: Written, known: Mapping[str, Member]) -> dict[str, Any]:
    table = written.table()
    for stranger in written.unknown(known):
        raise stranger
    return {name: known[name][0].read(each) for name, each in table.items()}


def _tool(written: Written) -> ToolPolicy:
    said = _members(written, TOOL_POLICY)
    if "risk" in said:
        said["risk"] = Risk(said["risk"])
    if "require_approval" in said:
        said["require_approval"] = RequireApproval(said["require_approval"])
    return ToolPolicy(**said)


def _tools(written: Written) -> Mapping[str, object]:
    if isinstance(written.value, list):
        # Some clients keep a list of the tools that they show here; it is theirs.
        return {}
    return {name: _tool(each) for name, each in written.table().items()}


POLICY: Final = Kind(lambda written: _members(written, SERVER_POLICY), table_of(SERVER_POLICY))
TOOLS: Final = Kind(
    _tools,
    {
        "anyOf": [
            {"type": "object", "additionalProperties": table_of(TOOL_POLICY)},
            {"type": "array"},
        ]
    },
)
