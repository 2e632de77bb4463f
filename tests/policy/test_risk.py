"""Risk, labels of tools, permissions of servers, and the policies that decide about them."""

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.policy.grants import PERMISSION_VERB, Decision, Effect, Grant, GrantSource, Guardrail
from comity.policy.risk import (
    MEANING_BY_PERMISSION,
    NO_TOOL_POLICY,
    RISK_BY_PERMISSION,
    RISK_BY_VALIDATOR,
    SECURITY_META_KEY,
    UNREADABLE_LABEL,
    ApprovalPolicy,
    PermissionDecision,
    PermissionOutcome,
    RequireApproval,
    Risk,
    SecurityLabel,
    ServerPolicy,
    ToolHints,
    ToolPolicy,
    TrustLevel,
    decide_permission,
    describe_permission,
    effective_risk,
    effective_trust,
    expand_aliases,
    is_always_confirmed,
    is_custom_permission,
    is_known_permission,
    is_writable_name,
    must_be_confirmed,
    parse_hints,
    parse_label,
    permission_risk,
)
from tests.support.cases import loop_over

NO_POLICY, NO_TOOL, NO_HINTS = ServerPolicy(), ToolPolicy(), ToolHints()
SAFE, MODERATE, DANGEROUS = Risk
ORDER = tuple(Risk)

labels = st.none() | st.builds(
    SecurityLabel,
    risk=st.none() | st.sampled_from(Risk),
    validators=st.lists(st.sampled_from([*RISK_BY_VALIDATOR, "strange"]), max_size=2).map(tuple),
)
hints = st.builds(
    ToolHints, is_read_only=st.none() | st.booleans(), is_destructive=st.none() | st.booleans()
)
needs = st.lists(st.sampled_from(["memory.read", "memory.write", "camera", "odd"]), max_size=2)


@given(labels, hints, needs, st.sampled_from(TrustLevel))
def test_a_tool_that_nobody_judged_is_dangerous_whatever_it_says(
    label: SecurityLabel | None, hints: ToolHints, needs: list[str], trust: TrustLevel
) -> None:
    if trust is TrustLevel.TRUSTED:
        # What the operator trusts may say what it is; see below.
        label, hints = None, NO_HINTS
    assert effective_risk(NO_POLICY, NO_TOOL, trust, label, hints, needs) is DANGEROUS


@given(labels, hints, needs, st.sampled_from(TrustLevel), st.sampled_from(Risk))
def test_what_is_declared_never_lowers_what_was_judged(
    label: SecurityLabel | None, hints: ToolHints, needs: list[str], trust: TrustLevel, judged: Risk
) -> None:
    for policy, tool in ((ServerPolicy(risk=judged), NO_TOOL), (NO_POLICY, ToolPolicy(judged))):
        found = effective_risk(policy, tool, trust, label, hints, needs)
        plain = effective_risk(policy, tool, trust, None, NO_HINTS)
        assert ORDER.index(found) >= ORDER.index(plain) >= ORDER.index(judged)


@loop_over(
    ("label", "hints", "needs", "expected"),
    [
        (None, NO_HINTS, (), SAFE),
        (SecurityLabel(SAFE), NO_HINTS, (), SAFE),
        (SecurityLabel(MODERATE), NO_HINTS, (), MODERATE),
        (SecurityLabel(DANGEROUS), NO_HINTS, (), DANGEROUS),
        (SecurityLabel(SAFE, validators=("network_restricted",)), NO_HINTS, (), MODERATE),
        (SecurityLabel(SAFE, validators=("sandbox",)), NO_HINTS, (), DANGEROUS),
        (SecurityLabel(SAFE, validators=("none", "readonly")), NO_HINTS, (), SAFE),
        (SecurityLabel(SAFE, validators=("strange",)), NO_HINTS, (), DANGEROUS),
        (None, NO_HINTS, ("memory.write",), MODERATE),
        (None, NO_HINTS, ("memory.read", "shell.execute"), DANGEROUS),
        (None, NO_HINTS, ("com.example.x",), DANGEROUS),
        (None, ToolHints(is_destructive=True), (), DANGEROUS),
        (None, ToolHints(is_read_only=True, is_destructive=True), (), SAFE),
    ],
)
def test_each_thing_that_is_declared_raises_it_by_its_own(
    label: SecurityLabel | None, hints: ToolHints, needs: tuple[str, ...], expected: Risk
) -> None:
    judged = ServerPolicy(risk=SAFE)
    assert effective_risk(judged, NO_TOOL, TrustLevel.STANDARD, label, hints, needs) is expected


def test_the_operators_word_on_a_tool_comes_before_that_on_its_server() -> None:
    policy = ServerPolicy(risk=DANGEROUS)
    assert effective_risk(policy, ToolPolicy(SAFE), TrustLevel.STANDARD, None, NO_HINTS) is SAFE
    checked = ToolPolicy(SAFE, validators=("code_safety",))
    assert effective_risk(policy, checked, TrustLevel.STANDARD, None, NO_HINTS) is DANGEROUS
    safe = ServerPolicy(risk=SAFE)
    assert effective_risk(safe, NO_TOOL, TrustLevel.SANDBOXED, None, NO_HINTS) is MODERATE


@loop_over(
    ("hints", "expected"),
    [
        (ToolHints(is_read_only=True), SAFE),
        (ToolHints(is_destructive=False), MODERATE),
        (ToolHints(is_read_only=False), DANGEROUS),
        (ToolHints(is_destructive=True), DANGEROUS),
        (NO_HINTS, DANGEROUS),
    ],
)
def test_hints_are_believed_only_from_servers_that_the_operator_trusts(
    hints: ToolHints, expected: Risk
) -> None:
    assert effective_risk(NO_POLICY, NO_TOOL, TrustLevel.TRUSTED, None, hints) is expected
    for trust in (TrustLevel.STANDARD, TrustLevel.SANDBOXED):
        assert effective_risk(NO_POLICY, NO_TOOL, trust, None, hints) is DANGEROUS


def test_the_labels_of_a_trusted_server_are_believed() -> None:
    for said in Risk:
        found = effective_risk(
            NO_POLICY, NO_TOOL, TrustLevel.TRUSTED, SecurityLabel(said), NO_HINTS
        )
        assert found is said
    assert (
        effective_risk(NO_POLICY, NO_TOOL, TrustLevel.TRUSTED, SecurityLabel(), NO_HINTS)
        is DANGEROUS
    )


@loop_over(
    ("ours", "claimed", "expected"),
    [
        (TrustLevel.STANDARD, None, TrustLevel.STANDARD),
        (TrustLevel.STANDARD, "trusted", TrustLevel.STANDARD),
        (TrustLevel.STANDARD, "core", TrustLevel.STANDARD),
        (TrustLevel.STANDARD, "sandboxed", TrustLevel.SANDBOXED),
        (TrustLevel.STANDARD, "experimental", TrustLevel.SANDBOXED),
        (TrustLevel.TRUSTED, "standard", TrustLevel.TRUSTED),
        (TrustLevel.TRUSTED, "untrusted", TrustLevel.SANDBOXED),
        (TrustLevel.TRUSTED, "very", TrustLevel.SANDBOXED),
        (TrustLevel.SANDBOXED, "core", TrustLevel.SANDBOXED),
        (TrustLevel.SANDBOXED, "standard", TrustLevel.SANDBOXED),
    ],
)
def test_a_server_can_only_ask_for_less_trust(
    ours: TrustLevel, claimed: str | None, expected: TrustLevel
) -> None:
    assert effective_trust(ours, claimed) is expected


@loop_over(
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
    wants = SecurityLabel(SAFE, confirmation=True)
    asking = ServerPolicy(approval=ApprovalPolicy.INTERACTIVE)
    assert is_always_confirmed(asking, NO_TOOL, wants)
    assert not is_always_confirmed(asking, NO_TOOL, SecurityLabel(SAFE))
    assert not is_always_confirmed(asking, NO_TOOL, None)
    assert not is_always_confirmed(
        asking, ToolPolicy(require_approval=RequireApproval.NEVER), wants
    )
    assert not is_always_confirmed(ServerPolicy(), NO_TOOL, wants)
    silent = ServerPolicy(approval=ApprovalPolicy.INTERACTIVE, never_asks=True)
    assert not is_always_confirmed(silent, NO_TOOL, wants)
    assert is_always_confirmed(
        ServerPolicy(), ToolPolicy(require_approval=RequireApproval.ALWAYS), None
    )
    assert is_always_confirmed(ServerPolicy(require_approval=RequireApproval.ALWAYS), NO_TOOL, None)


WHOLE = {
    "risk_level": "moderate",
    "permissions_required": ["network.outbound"],
    "side_effects": ["network"],
    "validator": "network_restricted",
    "reversible": True,
    "confirmation_required": True,
}
READ = SecurityLabel(
    Risk.MODERATE, ("network.outbound",), ("network_restricted",), ("network",), True, True
)


def definition(**members: object) -> dict[str, Raw]:
    return {name: Raw(json.dumps(value).encode()) for name, value in members.items()}


@loop_over(
    "said",
    [
        {"security": WHOLE},
        {"_meta": {SECURITY_META_KEY: WHOLE}},
        {"security": WHOLE, "_meta": {}},
        {"security": WHOLE, "_meta": {SECURITY_META_KEY: WHOLE}},
    ],
)
def test_a_label_is_read_where_it_stands(said: dict[str, object]) -> None:
    assert parse_label(definition(**said)) == READ


def test_a_tool_without_a_label_has_none() -> None:
    assert parse_label(definition(name="a", _meta={"other": 1})) is None
    assert parse_label(definition(name="a", _meta=[1])) is None


def test_of_two_labels_that_disagree_all_warnings_count() -> None:
    other = {"risk_level": "dangerous", "validator": ["sandbox"], "reversible": False}
    found = parse_label(definition(security=WHOLE, _meta={SECURITY_META_KEY: other}))
    assert found == SecurityLabel(
        Risk.DANGEROUS,
        ("network.outbound",),
        ("network_restricted", "sandbox"),
        ("network",),
        False,
        True,
    )
    bare = parse_label(definition(security={"risk_level": "safe"}, _meta={SECURITY_META_KEY: {}}))
    assert bare == SecurityLabel(Risk.SAFE, None, reversible=False)


@loop_over(
    "said",
    [
        None,
        "safe",
        [],
        {"risk_level": "harmless"},
        {"risk_level": 1},
        {"permissions_required": "shell"},
        {"permissions_required": [1]},
        {"validator": 7},
        {"confirmation_required": "no"},
        {"permissions_required": ["a"] * 65},
        {"validator": "x" * 201},
    ],
    ids=str,
)
def test_a_garbled_label_counts_as_the_worst(said: object) -> None:
    assert parse_label(definition(security=said)) == UNREADABLE_LABEL
    twice = Raw(b'{"risk_level": "safe", "risk_level": "dangerous"}')
    assert parse_label({"security": twice}) == UNREADABLE_LABEL


def test_hints_are_booleans_or_nothing() -> None:
    said = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": "yes"}
    assert parse_hints(definition(annotations=said)) == ToolHints(True, False, None)
    assert parse_hints(definition(annotations="readOnlyHint")) == ToolHints()
    assert parse_hints(definition()) == ToolHints()


SOON = datetime(2030, 1, 1, tzinfo=UTC)


def test_an_alias_stands_for_what_the_table_calls_it() -> None:
    assert expand_aliases(["shell", "filesystem", "camera", "shell.execute"]) == (
        "shell.execute",
        "filesystem.read",
        "filesystem.write",
        "camera",
    )


@loop_over("name", ["com.example.custom_permission", "org.acme.x", "io.x-y.Z9.a"])
def test_a_reverse_domain_is_somebodys_own(name: str) -> None:
    assert is_custom_permission(name)
    assert is_known_permission(name)
    assert permission_risk(name) is Risk.DANGEROUS


@loop_over(
    "name",
    [
        "root",
        "filesystem.delete",
        "filesystem.write.all",
        "shell.execute.safe",
        "com.example",
        "Com.Example.X",
        "com..x",
        "com.example.x y",
        "",
        "сom.example.x",  # noqa: RUF001  # the first letter is Cyrillic
    ],
)
def test_a_name_that_nobody_knows_is_nobodys(name: str) -> None:
    assert not is_known_permission(name)
    assert permission_risk(name) is Risk.DANGEROUS
    found = decide_permission(name, None, ApprovalPolicy.AUTO_APPROVE, ())
    assert found.decision is PermissionOutcome.DEFERRED


@loop_over("name", ["a*", "a/b", "a b", "a\n", "", "x" * 201, "ä"])
def test_what_would_mean_more_than_itself_in_a_grant_cannot_stand_there(name: str) -> None:
    assert not is_writable_name(name)


@loop_over("name", RISK_BY_PERMISSION)
@loop_over(
    ("policy", "listed", "expected"),
    [
        (ApprovalPolicy.INTERACTIVE, False, PermissionOutcome.DEFERRED),
        (ApprovalPolicy.INTERACTIVE, True, PermissionOutcome.APPROVED),
        (ApprovalPolicy.AUTO_APPROVE, False, PermissionOutcome.APPROVED),
        (ApprovalPolicy.DENY_ALL, False, PermissionOutcome.DENIED),
        (ApprovalPolicy.DENY_ALL, True, PermissionOutcome.APPROVED),
        (ApprovalPolicy.CONFIG_ONLY, False, PermissionOutcome.DENIED),
        (ApprovalPolicy.CONFIG_ONLY, True, PermissionOutcome.APPROVED),
    ],
)
def test_without_a_word_the_policy_decides(
    name: str, policy: ApprovalPolicy, listed: bool, expected: PermissionOutcome
) -> None:
    silent = Decision(Effect.DENY, "default deny")
    for granted in (None, silent):
        found = decide_permission(name, granted, policy, (name,) if listed else ())
        assert found.decision is expected


def granted(effect: Effect, verb: str = PERMISSION_VERB, **rest: object) -> Decision:
    grant = Grant("server:a", verb, "camera", effect, **rest)  # type: ignore[arg-type]
    return Decision(effect, "granted", grant)


@loop_over(
    ("effect", "expected"),
    [
        (Effect.ALLOW, PermissionOutcome.APPROVED),
        (Effect.ASK, PermissionOutcome.DEFERRED),
        (Effect.DENY, PermissionOutcome.DENIED),
    ],
)
@loop_over("policy", list(ApprovalPolicy))
def test_what_an_operator_wrote_down_decides(
    effect: Effect, expected: PermissionOutcome, policy: ApprovalPolicy
) -> None:
    written = granted(effect, granted_by="person:ana", justification="why", expires_at=SOON)
    found = decide_permission("camera", written, policy, ("camera",))
    assert found == PermissionDecision(expected, "person:ana", "why", SOON)


def test_an_entry_without_a_name_is_its_sources() -> None:
    found = decide_permission(
        "camera", granted(Effect.ALLOW, source=GrantSource.FILE), ApprovalPolicy.DENY_ALL, ()
    )
    assert (found.by, found.decision) == ("file", PermissionOutcome.APPROVED)


def test_who_may_do_everything_has_given_no_server_anything() -> None:
    for verb in ("*", "tools/*"):
        found = decide_permission(
            "camera", granted(Effect.ALLOW, verb), ApprovalPolicy.CONFIG_ONLY, ()
        )
        assert found.decision is PermissionOutcome.DENIED
    denied = decide_permission("camera", granted(Effect.DENY, "*"), ApprovalPolicy.AUTO_APPROVE, ())
    assert denied.decision is PermissionOutcome.DENIED


def test_a_guardrail_stands_over_the_configuration() -> None:
    forbid = Guardrail("*", PERMISSION_VERB, "camera", "no cameras here")
    found = decide_permission(
        "camera",
        Decision(Effect.DENY, "guardrail", guardrail=forbid),
        ApprovalPolicy.AUTO_APPROVE,
        ("camera",),
    )
    assert (found.decision, found.reason) == (PermissionOutcome.DENIED, "no cameras here")


def test_whoever_decides_reads_what_a_permission_means() -> None:
    assert MEANING_BY_PERMISSION.keys() == RISK_BY_PERMISSION.keys()
    assert describe_permission("camera") == "see through a camera"
    assert "its own documentation" in describe_permission("com.example.own")
    assert "unknown permission" in describe_permission("odd")


OWN, WRITES, ALL = ToolPolicy(cost=2), ToolPolicy(cost=3), ToolPolicy(cost=4)
POLICY = ServerPolicy(tools={"write_file": OWN, "write_*": WRITES, "*": ALL, "w*": ToolPolicy()})


@loop_over(
    ("name", "found"),
    [("write_file", OWN), ("write_all", WRITES), ("read", ALL), ("wri\nte", ToolPolicy())],
)
def test_the_name_that_says_most_of_a_tool_decides(name: str, found: ToolPolicy) -> None:
    assert POLICY.tool_policy(name) is found or POLICY.tool_policy(name) == found


def test_of_a_tool_that_nobody_thought_of_nothing_is_decided() -> None:
    assert ServerPolicy().tool_policy("x") is NO_TOOL_POLICY
    assert ServerPolicy(tools={"a.*": OWN}).tool_policy("ab") is NO_TOOL_POLICY


def test_two_patterns_of_one_length_are_told_apart_by_their_letters() -> None:
    tools = {"b*d": ToolPolicy(cost=2), "b*c*": ToolPolicy(cost=5), "*cd": ToolPolicy(cost=3)}
    assert ServerPolicy(tools=tools).tool_policy("bcd").cost == 5
    assert (
        ServerPolicy(tools={k: v for k, v in tools.items() if len(k) == 3}).tool_policy("bcd").cost
        == 3
    )


def test_a_call_counts_as_much_as_its_risk_or_its_tool_says_whichever_is_more() -> None:
    policy = ServerPolicy(costs={Risk.DANGEROUS: 5})
    assert policy.cost_of(ToolPolicy(), Risk.SAFE) == 1
    assert policy.cost_of(ToolPolicy(), Risk.DANGEROUS) == 5
    assert policy.cost_of(ToolPolicy(cost=9), Risk.DANGEROUS) == 9
