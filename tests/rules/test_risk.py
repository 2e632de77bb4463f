"""Risk: what is declared raises it, and only an operator's word lowers it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.permissions import ApprovalPolicy
from comity.rules.policies import RequireApproval, ServerPolicy, ToolPolicy
from comity.rules.risk import (
    OF_VALIDATOR,
    effective_risk,
    is_confirmed_always,
    must_be_confirmed,
    riskiest,
    trust_in,
)
from comity.wire.security import Hints, Label, Risk, Trust

NO_POLICY, NO_TOOL, NO_HINTS = ServerPolicy(), ToolPolicy(), Hints()
SAFE, MODERATE, DANGEROUS = Risk
ORDER = tuple(Risk)

labels = st.none() | st.builds(
    Label,
    risk=st.none() | st.sampled_from(Risk),
    validators=st.lists(st.sampled_from([*OF_VALIDATOR, "strange"]), max_size=2).map(tuple),
)
hints = st.builds(Hints, reads_only=st.none() | st.booleans(), destroys=st.none() | st.booleans())
needs = st.lists(st.sampled_from(["memory.read", "memory.write", "camera", "odd"]), max_size=2)


@given(labels, hints, needs, st.sampled_from(Trust))
def test_a_tool_that_nobody_judged_is_dangerous_whatever_it_says(
    label: Label | None, hints: Hints, needs: list[str], trust: Trust
) -> None:
    if trust is Trust.TRUSTED:
        # What the operator trusts may say what it is; see below.
        label, hints = None, NO_HINTS
    assert effective_risk(NO_POLICY, NO_TOOL, trust, label, hints, needs) is DANGEROUS


@given(labels, hints, needs, st.sampled_from(Trust), st.sampled_from(Risk))
def test_what_is_declared_never_lowers_what_was_judged(
    label: Label | None, hints: Hints, needs: list[str], trust: Trust, judged: Risk
) -> None:
    for policy, tool in ((ServerPolicy(risk=judged), NO_TOOL), (NO_POLICY, ToolPolicy(judged))):
        found = effective_risk(policy, tool, trust, label, hints, needs)
        plain = effective_risk(policy, tool, trust, None, NO_HINTS)
        assert ORDER.index(found) >= ORDER.index(plain) >= ORDER.index(judged)


@pytest.mark.parametrize(
    ("label", "hints", "needs", "expected"),
    [
        (None, NO_HINTS, (), SAFE),
        (Label(SAFE), NO_HINTS, (), SAFE),
        (Label(MODERATE), NO_HINTS, (), MODERATE),
        (Label(DANGEROUS), NO_HINTS, (), DANGEROUS),
        (Label(SAFE, validators=("network_restricted",)), NO_HINTS, (), MODERATE),
        (Label(SAFE, validators=("sandbox",)), NO_HINTS, (), DANGEROUS),
        (Label(SAFE, validators=("none", "readonly")), NO_HINTS, (), SAFE),
        (Label(SAFE, validators=("strange",)), NO_HINTS, (), DANGEROUS),
        (None, NO_HINTS, ("memory.write",), MODERATE),
        (None, NO_HINTS, ("memory.read", "shell.execute"), DANGEROUS),
        (None, NO_HINTS, ("com.example.x",), DANGEROUS),
        (None, Hints(destroys=True), (), DANGEROUS),
        (None, Hints(reads_only=True, destroys=True), (), SAFE),
    ],
)
def test_each_thing_that_is_declared_raises_it_by_its_own(
    label: Label | None, hints: Hints, needs: tuple[str, ...], expected: Risk
) -> None:
    judged = ServerPolicy(risk=SAFE)
    assert effective_risk(judged, NO_TOOL, Trust.STANDARD, label, hints, needs) is expected


def test_the_operators_word_on_a_tool_comes_before_that_on_its_server() -> None:
    policy = ServerPolicy(risk=DANGEROUS)
    assert effective_risk(policy, ToolPolicy(SAFE), Trust.STANDARD, None, NO_HINTS) is SAFE
    checked = ToolPolicy(SAFE, validators=("code_safety",))
    assert effective_risk(policy, checked, Trust.STANDARD, None, NO_HINTS) is DANGEROUS


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        (Hints(reads_only=True), SAFE),
        (Hints(destroys=False), MODERATE),
        (Hints(reads_only=False), DANGEROUS),
        (Hints(destroys=True), DANGEROUS),
        (NO_HINTS, DANGEROUS),
    ],
)
def test_hints_are_believed_only_from_servers_that_the_operator_trusts(
    hints: Hints, expected: Risk
) -> None:
    assert effective_risk(NO_POLICY, NO_TOOL, Trust.TRUSTED, None, hints) is expected
    for trust in (Trust.STANDARD, Trust.SANDBOXED):
        assert effective_risk(NO_POLICY, NO_TOOL, trust, None, hints) is DANGEROUS


def test_the_labels_of_a_trusted_server_are_believed() -> None:
    for said in Risk:
        found = effective_risk(NO_POLICY, NO_TOOL, Trust.TRUSTED, Label(said), NO_HINTS)
        assert found is said
    assert effective_risk(NO_POLICY, NO_TOOL, Trust.TRUSTED, Label(), NO_HINTS) is DANGEROUS


def test_what_runs_in_a_sandbox_is_never_quite_safe() -> None:
    judged = ServerPolicy(risk=SAFE)
    assert effective_risk(judged, NO_TOOL, Trust.SANDBOXED, None, NO_HINTS) is MODERATE


@pytest.mark.parametrize(
    ("ours", "claimed", "expected"),
    [
        (Trust.STANDARD, None, Trust.STANDARD),
        (Trust.STANDARD, "trusted", Trust.STANDARD),
        (Trust.STANDARD, "core", Trust.STANDARD),
        (Trust.STANDARD, "sandboxed", Trust.SANDBOXED),
        (Trust.STANDARD, "experimental", Trust.SANDBOXED),
        (Trust.TRUSTED, "standard", Trust.STANDARD),
        (Trust.TRUSTED, "untrusted", Trust.SANDBOXED),
        (Trust.TRUSTED, "very", Trust.SANDBOXED),
        (Trust.SANDBOXED, "core", Trust.SANDBOXED),
    ],
)
def test_a_server_can_only_ask_for_less_trust(
    ours: Trust, claimed: str | None, expected: Trust
) -> None:
    assert trust_in(ours, claimed) is expected


def test_the_riskiest_of_nothing_is_safe() -> None:
    assert riskiest(()) is SAFE
    assert {riskiest(pair) for pair in itertools.permutations((SAFE, DANGEROUS))} == {DANGEROUS}


@pytest.mark.parametrize(
    ("server", "tool", "expected"),
    [
        (RequireApproval.NEVER, None, {}),
        (RequireApproval.DANGEROUS, None, {DANGEROUS}),
        (RequireApproval.DANGEROUS, RequireApproval.NEVER, {}),
        (RequireApproval.NEVER, RequireApproval.DANGEROUS, {DANGEROUS}),
        (RequireApproval.NEVER, RequireApproval.ALWAYS, {}),
    ],
)
def test_dangerous_calls_are_confirmed_where_that_is_wanted(
    server: RequireApproval, tool: RequireApproval | None, expected: set[Risk]
) -> None:
    policy, of_tool = ServerPolicy(require_approval=server), ToolPolicy(require_approval=tool)
    assert {risk for risk in Risk if must_be_confirmed(policy, of_tool, risk)} == set(expected)


def test_a_tool_that_wants_confirmation_gets_it_unless_everything_is_approved() -> None:
    wants = Label(SAFE, confirmation=True)
    asking = ServerPolicy(approval=ApprovalPolicy.INTERACTIVE)
    assert is_confirmed_always(asking, NO_TOOL, wants)
    assert not is_confirmed_always(asking, NO_TOOL, Label(SAFE))
    assert not is_confirmed_always(asking, NO_TOOL, None)
    assert not is_confirmed_always(
        asking, ToolPolicy(require_approval=RequireApproval.NEVER), wants
    )
    assert not is_confirmed_always(ServerPolicy(), NO_TOOL, wants)
    silent = ServerPolicy(approval=ApprovalPolicy.INTERACTIVE, never_asks=True)
    assert not is_confirmed_always(silent, NO_TOOL, wants)
    assert is_confirmed_always(
        ServerPolicy(), ToolPolicy(require_approval=RequireApproval.ALWAYS), None
    )
    assert is_confirmed_always(ServerPolicy(require_approval=RequireApproval.ALWAYS), NO_TOOL, None)
