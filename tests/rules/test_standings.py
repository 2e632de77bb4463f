"""How a tool stands, by what was accepted and by what is wanted; and what its callers are told."""

import json

import pytest

from comity.rules.examined import UNLISTED, Examined, examine
from comity.rules.looks import Finding, Look
from comity.rules.permissions import Decided
from comity.rules.policies import Definitions, ServerPolicy, Suspicious, ToolPolicy
from comity.rules.standings import Accepted, State, refusal_for, state_of
from comity.wire.errors import PERMISSION_DENIED, POLICY_UNKNOWN, TOOL_DISABLED
from comity.wire.parties import GATEWAY
from comity.wire.security import Decision

SEEN = examine(json.dumps({"name": "run", "description": "Runs."}).encode(), "run")
BROKEN = examine(b'{"a":1,"a":2}', "run")
NEVER_LISTED = examine(UNLISTED, "run")
AT_SIGHT = Accepted(SEEN.digest, GATEWAY, None)
BY_ANA = Accepted(SEEN.digest, "person:ana", None)
OLD = Accepted("other", "person:ana", None)
ODD = (Finding(Look.HIDDEN, "/description", "1"),)
FIRST, APPROVE, OFF = Definitions


@pytest.mark.parametrize(
    ("policy", "accepted", "expected"),
    [
        (FIRST, None, State.ACCEPTED),
        (FIRST, AT_SIGHT, State.ACCEPTED),
        (FIRST, OLD, State.CHANGED),
        (APPROVE, None, State.NEW),
        (APPROVE, AT_SIGHT, State.ACCEPTED),
        (APPROVE, OLD, State.CHANGED),
        (OFF, None, State.ACCEPTED),
        (OFF, OLD, State.ACCEPTED),
    ],
)
def test_a_definition_stands_by_what_was_accepted(
    policy: Definitions, accepted: Accepted | None, expected: State
) -> None:
    policies = ServerPolicy(definitions=policy)
    assert state_of(SEEN, policies, ToolPolicy(), (), accepted, True) is expected


@pytest.mark.parametrize(
    ("suspicious", "accepted", "expected"),
    [
        (Suspicious.REFUSE, None, State.SUSPECT),
        (Suspicious.REFUSE, AT_SIGHT, State.SUSPECT),
        (Suspicious.REFUSE, BY_ANA, State.ACCEPTED),
        (Suspicious.REFUSE, OLD, State.CHANGED),
        (Suspicious.STRICT, None, State.SUSPECT),
        (Suspicious.SHOW, None, State.ACCEPTED),
    ],
)
def test_what_may_deceive_is_used_only_after_somebody_looked_at_it(
    suspicious: Suspicious, accepted: Accepted | None, expected: State
) -> None:
    policy = ServerPolicy(suspicious=suspicious)
    assert state_of(SEEN, policy, ToolPolicy(), ODD, accepted, True) is expected


@pytest.mark.parametrize(
    ("seen", "tool", "known", "expected"),
    [
        (SEEN, ToolPolicy(disabled=True), True, State.DISABLED),
        (BROKEN, ToolPolicy(), True, State.UNREADABLE),
        (SEEN, ToolPolicy(), False, State.UNKNOWN),
        (NEVER_LISTED, ToolPolicy(), True, State.ACCEPTED),
    ],
)
def test_other_reasons_come_first(
    seen: Examined, tool: ToolPolicy, known: bool, expected: State
) -> None:
    assert state_of(seen, ServerPolicy(), tool, (), None, known) is expected


def test_what_was_never_listed_waits_where_everything_has_to_be_accepted() -> None:
    policy = ServerPolicy(definitions=APPROVE)
    assert state_of(NEVER_LISTED, policy, ToolPolicy(), (), None, True) is State.NEW
    off = ServerPolicy(definitions=OFF)
    assert state_of(SEEN, off, ToolPolicy(), (), None, False) is State.ACCEPTED


@pytest.mark.parametrize("state", [state for state in State if state is not State.ACCEPTED])
def test_every_other_state_is_a_refusal(state: State) -> None:
    refusal = refusal_for(state, "srv", "run", {}, ODD)
    assert refusal is not None
    unknown = state is State.UNKNOWN
    assert refusal.fault is (POLICY_UNKNOWN if unknown else TOOL_DISABLED)
    if state in (State.NEW, State.CHANGED, State.SUSPECT):
        assert "`comity tools accept srv run`" in refusal.because
    if state is State.SUSPECT:
        assert refusal.details["findings"] == ["hidden characters"]


def test_a_missing_permission_is_named_with_its_remedy() -> None:
    assert refusal_for(State.ACCEPTED, "srv", "run", {}) is None
    missing = {
        "shell.execute": Decided(Decision.DENIED, "x", ""),
        "camera": Decided(Decision.DEFERRED, "x", ""),
    }
    refusal = refusal_for(State.ACCEPTED, "srv", "run", missing)
    assert refusal is not None
    assert refusal.fault is PERMISSION_DENIED
    assert "shell.execute and 1 more" in refusal.because
    assert "`comity permissions approve srv shell.execute`" in refusal.because
    assert refusal.details == {"permissions": {"shell.execute": "denied", "camera": "deferred"}}


def test_a_name_that_a_server_chose_is_spoken_of_carefully() -> None:
    refusal = refusal_for(State.NEW, "srv", "\x1b[8m" + "x" * 500, {})
    assert refusal is not None
    assert "\x1b" not in refusal.because
    assert len(refusal.because) < 400
