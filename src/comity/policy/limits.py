"""Rules for rate limits and quotas of calls, and the refusals of calls beyond them."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, Self

from comity.errors import QUOTA_EXCEEDED, RATE_LIMITED
from comity.mcp.refusals import Refusal
from comity.policy.grants import TargetSpecificity, is_pattern_match, level_of, target_covers
from comity.toolkit.resilience import PERIODS, RateLimit
from comity.toolkit.text import count_noun

type Unit = Literal["principal", "key", "server", "tool"]
"""The unit for which a limit counts separately."""

type Window = Literal["day", "month"]

UNITS: Final[tuple[Unit, ...]] = ("principal", "key", "server", "tool")
WINDOWS: Final[Mapping[str, Window]] = {"d": "day", "mo": "month"}
QUOTA_FORM: Final = r"([1-9][0-9]{0,11})/(d|mo)"


@dataclass(frozen=True, slots=True)
class Quota:
    """A number of calls for each day or month."""

    count: int
    window: Window

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a quota such as `10000/d` or `500000/mo`. Raises ValueError."""
        found = re.fullmatch(QUOTA_FORM, text)
        if found is None:
            raise ValueError(f"{text!r:.40} is no quota, as 10000/d")
        return cls(int(found[1]), WINDOWS[found[2]])

    def span(self, now: datetime) -> tuple[datetime, datetime]:
        """Return the start and the end of the window that contains `now`."""
        day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self.window == "day":
            return day, day + timedelta(days=1)
        first = day.replace(day=1)
        return first, (first + timedelta(days=32)).replace(day=1)

    def window_at(self, time: float) -> tuple[float, float]:
        """Return the same for a time, start and end in seconds since 1970."""
        start, end = self.span(datetime.fromtimestamp(time, UTC))
        return start.timestamp(), end.timestamp()


@dataclass(frozen=True, slots=True)
class LimitRule:
    """A limit of the operator: the subject, the target, the unit of counting and the amounts."""

    subject: str = "*"
    target: str = "*"
    per: tuple[Unit, ...] = ("principal",)
    rate: RateLimit | None = None
    quota: Quota | None = None


@dataclass(frozen=True, slots=True)
class LimitShare:
    """Units of a limit that the store granted to a node, and the count after that."""

    granted: int
    used: int
    ends_at: float
    now: float


@dataclass(slots=True)
class _SubjectLimits:
    """The limits of one subject, indexed so that a call examines only a few of them."""

    limits_by_entry: dict[str, list[LimitRule]] = field(default_factory=dict[str, list[LimitRule]])
    limits_by_server: dict[str, list[LimitRule]] = field(default_factory=dict[str, list[LimitRule]])
    pattern_limits: list[LimitRule] = field(default_factory=list[LimitRule])

    def add(self, limit: LimitRule) -> None:
        match level_of(limit.target):
            case TargetSpecificity.OFFER:
                self.limits_by_entry.setdefault(limit.target, []).append(limit)
            case TargetSpecificity.SERVER:
                self.limits_by_server.setdefault(limit.target.partition("/")[0], []).append(limit)
            case TargetSpecificity.EVERYTHING:
                self.pattern_limits.append(limit)

    def limits_for(self, server: str, name: str) -> Iterable[LimitRule]:
        yield from self.limits_by_entry.get(f"{server}/{name}", ())
        for limit in (*self.limits_by_server.get(server, ()), *self.pattern_limits):
            if target_covers(limit.target, server, name):
                yield limit


class LimitIndex:
    """All limits, indexed by subject and target. Only patterns need a scan."""

    def __init__(self, limits: Iterable[LimitRule] = ()) -> None:
        self.limits = tuple(limits)
        self._limits_by_subject: dict[str, _SubjectLimits] = {}
        self._limits_by_pattern: dict[str, _SubjectLimits] = {}
        for limit in self.limits:
            shelf = self._limits_by_pattern if "*" in limit.subject else self._limits_by_subject
            shelf.setdefault(limit.subject, _SubjectLimits()).add(limit)

    def limits_for(self, party: str, server: str, name: str) -> list[LimitRule]:
        """The limits that apply to a call of a catalog entry by this principal."""
        targets = [self._limits_by_subject[party]] if party in self._limits_by_subject else []
        targets += [
            each for said, each in self._limits_by_pattern.items() if is_pattern_match(said, party)
        ]
        return [limit for each in targets for limit in each.limits_for(server, name)]


def key_rate_limits(per_minute: int | None, per_hour: int | None) -> tuple[RateLimit, ...]:
    """The limits of an API key, in the terms of the registry. (REG RateLimit)"""
    both = ((per_minute, PERIODS["m"]), (per_hour, PERIODS["h"]))
    return tuple(RateLimit(count, period, count) for count, period in both if count is not None)


def rate_refusal(rate: RateLimit, current: int, wait: float, owner: str) -> Refusal:
    """The refusal of a call beyond a rate. `current` counts this call too."""
    details: dict[str, object] = {
        "limit": rate.count,
        "window_secs": round(rate.period),
        "current": current,
    }
    allowed = count_noun(rate.count, "call")
    reason = f"rate limited: {owner} may have {allowed} in {_period_name(rate.period)}"
    return Refusal(RATE_LIMITED, reason, _rounded_up(wait), details=details)


def quota_refusal(
    quota: Quota, window: tuple[float, float], current: int, wait: float, owner: str
) -> Refusal:
    """The refusal of a call beyond a quota, in the window with this start and end."""
    start, end = window
    details: dict[str, object] = {
        "limit": quota.count,
        "window_secs": round(end - start),
        "current": current,
        "renews_at": datetime.fromtimestamp(end, UTC).isoformat().replace("+00:00", "Z"),
    }
    reason = (
        f"quota exceeded: {owner} may have {count_noun(quota.count, 'call')} "
        f"a {quota.window}, and the next one begins at {details['renews_at']}"
    )
    return Refusal(QUOTA_EXCEEDED, reason, _rounded_up(wait), details=details)


def _rounded_up(seconds: float) -> timedelta:
    """Round a wait up to milliseconds, so that a client that waits exactly that long passes."""
    return timedelta(milliseconds=math.ceil(seconds * 1000))


def _period_name(period: float) -> str:
    named = {1.0: "a second", 60.0: "a minute", 3600.0: "an hour", 86400.0: "a day"}
    return named[period]
