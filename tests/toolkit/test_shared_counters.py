"""Counters in a file that several processes map."""

import subprocess
import sys
from pathlib import Path

import pytest

from comity.errors import Misconfigured
from comity.mcp.actors import Actor
from comity.policy.limits import CallLimiter, LimitRule, Quota
from comity.toolkit.resilience import RateLimit
from comity.toolkit.shared_counters import PROBES, SharedCounterFile

ANNA = Actor("anna")
COUNT_CALLS = """
import sys
from pathlib import Path
from comity.mcp.actors import Actor
from comity.policy.limits import CallLimiter, LimitRule
from comity.toolkit.resilience import RateLimit
from comity.toolkit.shared_counters import SharedCounterFile

rules = [LimitRule(rate=RateLimit(500, 86400.0, 500))]
limiter = CallLimiter(rules, shared=SharedCounterFile(Path(sys.argv[1])))
print(sum(limiter.count_call(Actor("anna"), "files", "read") is None for _ in range(400)))
"""


def limiter(path: Path, *rules: LimitRule) -> CallLimiter:
    return CallLimiter(rules, shared=SharedCounterFile(path))


def test_two_limiters_on_one_file_count_together(tmp_path: Path) -> None:
    rule = LimitRule(rate=RateLimit(3, 86400.0, 3))
    one, other = limiter(tmp_path / "counts", rule), limiter(tmp_path / "counts", rule)
    passed = [each.count_call(ANNA, "files", "read") is None for each in (one, other, one, other)]
    assert passed == [True, True, True, False]
    # Another principal has a counter of its own.
    assert other.count_call(Actor("bert"), "files", "read") is None


def test_a_quota_counts_together_and_names_the_sum(tmp_path: Path) -> None:
    rule = LimitRule(quota=Quota(2, "day"))
    one, other = limiter(tmp_path / "counts", rule), limiter(tmp_path / "counts", rule)
    assert one.count_call(ANNA, "files", "read") is None
    assert other.count_call(ANNA, "files", "read") is None
    refusal = one.count_call(ANNA, "files", "read")
    assert refusal is not None
    assert refusal.details["current"] == 3


def test_limits_of_a_key_count_together(tmp_path: Path) -> None:
    actor = Actor("anna", credential="key:1", requests_per_hour=2)
    one, other = limiter(tmp_path / "counts"), limiter(tmp_path / "counts")
    passed = [each.count_request(actor) is None for each in (one, other, one)]
    assert passed == [True, True, False]


def test_processes_that_count_at_once_pass_no_call_too_many(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COUNT_CALLS, str(tmp_path / "counts")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    passed = [int(each.communicate(timeout=60)[0]) for each in processes]
    # A part of one call is earned again in each second.
    assert 500 <= sum(passed) <= 501


def test_a_full_table_gives_up_the_counter_unused_for_longest(tmp_path: Path) -> None:
    file = SharedCounterFile(tmp_path / "counts", slots=PROBES)
    states = [file.state_of(("principal", number)) for number in range(PROBES)]
    for state in states:
        state.value = 1.0
    newest = file.state_of("another")
    assert newest.value == 0.0
    newest.value = 2.0
    assert [state.value for state in states[1:]] == [1.0] * (PROBES - 1)
    assert newest.value == 2.0


def test_a_file_that_cannot_be_written_is_reported_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="counters_file"):
        SharedCounterFile(tmp_path / "missing" / "counts")
