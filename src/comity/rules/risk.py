"""How risky a tool counts as: never less than was judged, or than it says itself. (D-14, S2)

Rule 1: a tool that no operator judged is dangerous. A server's labels and hints count in favour of
        its tools only where the operator trusts the server (`trusted`).
Rule 2: whatever is declared can raise what was judged, and never lower it.
Rule 3: trust is the operator's; a server can only ask for less of it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from comity.rules.permissions import ApprovalPolicy, risk_of
from comity.rules.policies import RequireApproval, ServerPolicy, ToolPolicy
from comity.wire.security import Hints, Label, Risk, Trust

OF_TRUST: Final[Mapping[Trust, Risk]] = {
    Trust.TRUSTED: Risk.SAFE,
    Trust.STANDARD: Risk.SAFE,
    Trust.SANDBOXED: Risk.MODERATE,
}
OF_VALIDATOR: Final[Mapping[str, Risk]] = {
    "none": Risk.SAFE,
    "readonly": Risk.SAFE,
    "network_restricted": Risk.MODERATE,
    "sandbox": Risk.DANGEROUS,
    "code_safety": Risk.DANGEROUS,
}
"""What a tool admits by the validator that it wants; one that nobody knows admits the worst."""

TRUST_BY_NAME: Final[Mapping[str, Trust]] = {
    **{str(trust): trust for trust in Trust},
    "core": Trust.TRUSTED,
    "experimental": Trust.SANDBOXED,
    "untrusted": Trust.SANDBOXED,
}
"""Also by the names that MGP gave its levels later. (D-14)"""

_RISKS: Final = tuple(Risk)
_TRUSTS: Final = tuple(Trust)


def riskiest(risks: Iterable[Risk]) -> Risk:
    return max(risks, key=_RISKS.index, default=Risk.SAFE)


def trust_in(ours: Trust, claimed: str | None) -> Trust:
    """The operator's trust, or less where the server wants less; who is unclear gets least."""
    if claimed is None:
        return ours
    theirs = TRUST_BY_NAME.get(claimed, Trust.SANDBOXED)
    return max(ours, theirs, key=_TRUSTS.index)


def effective_risk(
    server: ServerPolicy,
    tool: ToolPolicy,
    trust: Trust,
    label: Label | None,
    hints: Hints,
    needs: Iterable[str] = (),
) -> Risk:
    """How risky a call of this tool counts as; `needs` are the permissions it takes."""
    return riskiest(
        (
            judged_risk(server, tool, trust, label, hints),
            OF_TRUST[trust],
            *_declared(label, hints),
            *(OF_VALIDATOR.get(name, Risk.DANGEROUS) for name in tool.validators),
            *(risk_of(name) for name in needs),
        )
    )


def judged_risk(
    server: ServerPolicy, tool: ToolPolicy, trust: Trust, label: Label | None, hints: Hints
) -> Risk:
    """What the operator's word makes of it, before anybody raises it."""
    if tool.risk is not None:
        return tool.risk
    if server.risk is not None:
        return server.risk
    if trust is not Trust.TRUSTED:
        return Risk.DANGEROUS
    if label is not None and label.risk is not None:
        return Risk.SAFE
    if hints.reads_only is True:
        return Risk.SAFE
    return Risk.MODERATE if hints.destroys is False else Risk.DANGEROUS


def must_be_confirmed(server: ServerPolicy, tool: ToolPolicy, risk: Risk) -> bool:
    """Whether a person has to say yes, unless the tool itself was granted. (D-13)"""
    when = tool.require_approval or server.require_approval
    return when is RequireApproval.DANGEROUS and risk is Risk.DANGEROUS


def is_confirmed_always(server: ServerPolicy, tool: ToolPolicy, label: Label | None) -> bool:
    """Whether a person has to say yes even then: by the operator's word, or by the tool's own."""
    if tool.require_approval is not None:
        return tool.require_approval is RequireApproval.ALWAYS
    if server.require_approval is RequireApproval.ALWAYS:
        return True
    wanted = label is not None and label.confirmation
    approves_all = server.approval is ApprovalPolicy.AUTO_APPROVE
    return wanted and not approves_all and not server.never_asks


def _declared(label: Label | None, hints: Hints) -> Iterable[Risk]:
    if label is not None:
        yield label.risk or Risk.SAFE
        yield from (OF_VALIDATOR.get(name, Risk.DANGEROUS) for name in label.validators)
    if hints.destroys is True and hints.reads_only is not True:
        yield Risk.DANGEROUS
