"""Whether a call that failed is made again by the gateway itself, when, and how often. (MGP §14.6)

Rule 1: what a server says of its own failure is advice. It can forbid a retry, or delay one; only
        an operator, who knows that calling twice does no harm, can allow it. (S9, D-78)
Rule 2: what certainly never reached its server may be sent again, whatever it does.
Rule 3: at least as long is waited as was asked for; who asks for too much is not asked again.
Rule 4: no more attempts than the server and the operator both allow.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, cast

from comity.wire import jsonrpc
from comity.wire.errors import (
    CUT_OFF,
    FAULT_OF_MGP,
    INTERRUPTED,
    MGP_CODES,
    TIMEOUT,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    Fault,
)
from comity.wire.jsonrpc import Frame

type Strategy = Literal["immediate", "fixed_delay", "exponential_backoff"]

FIRST: Final = timedelta(milliseconds=250)
LONGEST: Final = timedelta(seconds=30)
SPREAD: Final = 0.25
"""By how much of itself a wait may be longer, so that many who failed at once do not come back at
once."""

# No set: what a server says may be anything, and not everything can be looked for in one.
_STRATEGIES: Final = ("immediate", "fixed_delay", "exponential_backoff")
_MAY_HAVE_RUN: Final = frozenset({INTERRUPTED, TIMEOUT, UPSTREAM_FAILED, UPSTREAM_SLOW, CUT_OFF})
_NEVER: Final = frozenset({TIMEOUT})
"""After its deadline there is no time for another attempt."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an operator allows for one tool; `fallback_tool` is empty where there is none."""

    idempotent: bool = False
    most: int = 0
    fallback_tool: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """What is known of an attempt that failed."""

    why: str
    retryable: bool
    not_run: bool = False
    after: timedelta = timedelta(0)
    strategy: Strategy = "exponential_backoff"
    most: int | None = None


def told_by_server(frame: Frame) -> Failure:
    """A server's error; without MGP's fields, or with odd ones, nothing is to be repeated."""
    error = jsonrpc.error_of(frame)
    assert error is not None
    data = _members(error.data)
    said = _members(data.get("_mgp"))
    known = FAULT_OF_MGP.get(error.code)
    why = "server_error" if known is None else known.error_type
    if error.code not in MGP_CODES or said.get("retryable") is not True:
        return Failure(why, retryable=False)
    after, most = _number(said.get("retry_after_ms")), _number(said.get("max_retries"))
    strategy = said.get("retry_strategy")
    return Failure(
        why,
        retryable=True,
        # A day is more than anybody waits, and no larger number can be told from it.
        after=timedelta(milliseconds=min(after or 0, 86_400_000)),
        strategy=strategy if strategy in _STRATEGIES else "exponential_backoff",
        most=None if most is None else int(min(most, 1_000)),
    )


def of_fault(fault: Fault, after: timedelta | None, *, sent: bool) -> Failure:
    """A failure on the way, that the gateway itself has seen."""
    not_run = not (sent and fault in _MAY_HAVE_RUN)
    retryable = fault.retryable and fault not in _NEVER
    strategy: Strategy = "exponential_backoff" if after is None else "fixed_delay"
    return Failure(fault.error_type, retryable, not_run, after or timedelta(0), strategy)


def may_be_repeated(plan: Plan, failure: Failure) -> bool:
    return failure.retryable and (plan.idempotent or failure.not_run)


def pause(plan: Plan, failure: Failure, made: int, chance: float) -> timedelta | None:
    """How long to wait before the next attempt, after so many repeated ones; None: make none.

    `chance` in [0, 1) spreads a herd.
    """
    most = plan.most if failure.most is None else min(plan.most, failure.most)
    if not may_be_repeated(plan, failure) or made >= most or failure.after > LONGEST:
        return None
    wait = failure.after
    if failure.strategy != "immediate":
        wait = wait or FIRST
    if failure.strategy == "exponential_backoff":
        wait = min(wait * 2 ** min(made, 30), LONGEST)
    return wait * (1 + SPREAD * chance)


def _members(said: object) -> dict[str, object]:
    return cast("dict[str, object]", said) if isinstance(said, dict) else {}


def _number(said: object) -> float | None:
    """A number of something; whatever else a server says is as good as nothing."""
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return max(said, 0)
