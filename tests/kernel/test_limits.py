"""What is counted for whom, what a refusal says, and that counting stays small."""

import pytest

from comity.kernel.limits import Limits
from comity.rules.rates import Limit, Quota, Rate, Unit
from comity.rules.refusals import Refusal
from comity.wire.errors import QUOTA_EXCEEDED, RATE_LIMITED
from comity.wire.parties import Actor
from tests.kernel.carriers import Clock

ANA, BEN = Actor("agent:ana", credential="key:1"), Actor("agent:ben", credential="key:2")
NOON = 1_790_000_000.0


def limit(rate: str = "2/m", *per: Unit, subject: str = "*", target: str = "*") -> Limit:
    return Limit(subject, target, per or ("party",), Rate.parse(rate))


class Counted:
    """Limits with a hand-driven clock."""

    def __init__(self, *written: Limit, most: int = 1000) -> None:
        self.clock, self.wall = Clock(), Clock()
        self.wall.time = NOON
        self.limits = Limits(written, self.clock, self.wall, most)

    def take(self, actor: Actor = ANA, server: str = "s", name: str = "t", cost: int = 1) -> bool:
        """Whether a call may pass."""
        return self.limits.take(actor, server, name, cost) is None

    def refused(self, actor: Actor = ANA, server: str = "s", name: str = "t") -> Refusal:
        refusal = self.limits.take(actor, server, name)
        assert refusal is not None
        return refusal


def test_without_limits_everything_may_pass() -> None:
    counted = Counted()
    assert all(counted.take() for _ in range(100))


def test_a_refusal_says_when_it_may_pass_and_that_is_so() -> None:
    counted = Counted(limit("2/m"))
    assert counted.take()
    assert counted.take()
    refusal = counted.refused()
    assert refusal.fault is RATE_LIMITED
    assert refusal.details == {"limit": 2, "window_secs": 60, "current": 3}
    assert refusal.retry_after is not None
    assert refusal.retry_after.total_seconds() == 30
    assert refusal.because == "rate limited: this party may have 2 calls in a minute"
    counted.clock.time += 29.9
    assert not counted.take()
    counted.clock.time += 0.1
    assert counted.take()


def test_a_limit_of_one_call_is_told_in_the_singular() -> None:
    counted = Counted(limit("1/m"))
    assert counted.take()
    assert counted.refused().because == "rate limited: this party may have 1 call in a minute"


# By what it is counted, and whether another party, key, tool and server has a count of its own.
APART: list[tuple[tuple[Unit, ...], list[bool]]] = [
    (("party",), [True, False, False, False]),
    (("key",), [True, True, False, False]),
    (("tool",), [False, False, True, True]),
    (("server",), [False, False, False, True]),
    (("party", "tool"), [True, False, True, True]),
]


@pytest.mark.parametrize(("per", "apart"), APART)
def test_who_has_a_count_of_its_own_follows_from_what_is_counted(
    per: tuple[Unit, ...], apart: list[bool]
) -> None:
    counted = Counted(limit("1/h", *per))
    assert counted.take()
    assert not counted.take()
    others = [
        counted.take(BEN),
        counted.take(Actor(ANA.party, credential="key:3")),
        counted.take(name="u"),
        counted.take(server="z"),
    ]
    assert others == apart


def test_a_limit_that_is_counted_by_nothing_is_for_everybody_together() -> None:
    counted = Counted(Limit(per=(), rate=Rate.parse("1/h")))
    assert counted.take(ANA)
    assert not counted.take(BEN, "other", "tool")
    assert "everybody together" in counted.refused(BEN).because


def test_only_those_whom_a_limit_names_stand_under_it() -> None:
    counted = Counted(limit("1/h", subject="agent:ana", target="s/*"))
    assert counted.take()
    assert not counted.take()
    assert counted.take(BEN)
    assert counted.take(server="z")


def test_what_one_limit_refuses_is_not_counted_by_the_others() -> None:
    for limits in (
        [limit("3/h", "server", target="s/*"), limit("1/h", "party")],
        [limit("1/h", "party"), limit("3/h", "server", target="s/*")],
        [limit("3/h", "server"), limit("1/h", "party", subject="agent:*")],
        [limit("1/h", "party", subject="agent:*"), limit("3/h", "server")],
    ):
        counted = Counted(*limits)
        assert counted.take()
        assert not any(counted.take() for _ in range(50))
        others = [Actor(f"agent:{number}") for number in range(3)]
        assert [counted.take(other) for other in others] == [True, True, False]


def test_a_risky_call_takes_more_of_a_rate() -> None:
    counted = Counted(limit("10/h"))
    assert counted.take(cost=8)
    assert not counted.take(cost=3)
    assert counted.take(cost=2)


def test_a_quota_says_when_it_renews_and_does() -> None:
    counted = Counted(Limit(quota=Quota.parse("2/d")))
    assert counted.take(cost=5)
    assert counted.take()
    refusal = counted.refused()
    assert refusal.fault is QUOTA_EXCEEDED
    assert refusal.details == {
        "limit": 2,
        "window_secs": 86400,
        "current": 3,
        "renews_at": "2026-09-22T00:00:00Z",
    }
    assert refusal.retry_after is not None
    counted.wall.time += refusal.retry_after.total_seconds()
    assert counted.take()


def test_a_clock_that_is_set_back_makes_nobody_wait_for_days() -> None:
    counted = Counted(Limit(quota=Quota.parse("1/d")))
    assert counted.take()
    counted.wall.time -= 3 * 86400
    assert counted.take()
    assert not counted.take()


def test_a_key_may_have_limits_of_its_own_for_every_request() -> None:
    counted = Counted()
    key = Actor("agent:ana", credential="key:1", requests_per_minute=2, requests_per_hour=3)
    arrive = counted.limits.arrive
    assert [arrive(key) is None for _ in range(3)] == [True, True, False]
    counted.clock.time += 60
    assert [arrive(key) is None for _ in range(2)] == [True, False]
    refusal = arrive(key)
    assert refusal is not None
    assert refusal.details["window_secs"] == 3600
    other = Actor("agent:ana", credential="key:2", requests_per_minute=1)
    assert arrive(other) is None
    raised = Actor("agent:ana", credential="key:1", requests_per_minute=5)
    assert arrive(raised) is None


def test_what_has_been_earned_again_is_forgotten_when_there_is_much_of_it() -> None:
    counted = Counted(limit("1/m", "tool"), most=10)
    for number in range(10):
        assert counted.take(name=f"t{number}")
    counted.clock.time += 30
    counted.take(name="late")
    counted.clock.time += 31
    counted.limits.look()
    assert figure(counted, "comity_limit_counts") == 1
    assert not counted.take(name="late")
    assert counted.take(name="t1")


def test_counts_never_grow_past_their_bound() -> None:
    counted = Counted(limit("1/h", "tool"), most=100)
    for number in range(1000):
        assert counted.take(name=f"t{number}")
    assert figure(counted, "comity_limit_counts") <= 100
    assert figure(counted, "comity_limit_counts_forgotten_total") >= 900
    assert not counted.take(name="t999")


def test_names_that_a_caller_makes_up_have_one_count_together() -> None:
    limits = Limits([limit("2/h", "tool")], Clock(), is_listed=lambda server, name: name == "t")
    made_up = [limits.take(ANA, "s", f"no{number}") is None for number in range(4)]
    assert made_up == [True, True, False, False]
    assert limits.take(ANA, "s", "t") is None
    assert [family.samples[0][1] for family in limits.families()][1] == 2


def test_limits_can_be_replaced_while_calls_go_on() -> None:
    stays, goes = limit("1/h", "party"), limit("1/h", "tool")
    counted = Counted(stays, goes)
    assert counted.take()
    counted.limits.replace([stays])
    assert not counted.take()
    counted.limits.replace([])
    assert counted.take()


def test_refusals_are_counted() -> None:
    counted = Counted(limit("1/h"))
    counted.take()
    counted.refused()
    assert figure(counted, "comity_limited_total") == 1


def figure(counted: Counted, name: str) -> float:
    family = next(each for each in counted.limits.families() if each.name == name)
    value = family.samples[0][1]
    assert isinstance(value, int | float)
    return value
