"""Decides which notifiers tell about a request, and when: filters, quiet hours and digests."""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from comity.approvals.model import ApprovalDecision, ApprovalRequest
from comity.approvals.notifiers.model import DigestSchedule, NotifierSettings, QuietHours
from comity.policy.risk import Risk
from comity.toolkit.patterns import is_glob_match

_RISK_ORDER: Final = tuple(Risk)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DeliveryPlan(NamedTuple):
    """When a message is due, and whether it waits for others to be sent together."""

    due_at: datetime
    is_digest: bool = False


def risk_of(request: ApprovalRequest) -> Risk:
    """Return the risk of a request. One without a known risk counts as dangerous."""
    said = request.about.get("risk")
    return Risk(said) if said in list(Risk) else Risk.DANGEROUS


def is_riskier(risk: Risk, other: Risk) -> bool:
    return _RISK_ORDER.index(risk) > _RISK_ORDER.index(other)


def matches(settings: NotifierSettings, request: ApprovalRequest) -> bool:
    """Return whether a notifier tells about this request."""
    if is_riskier(settings.min_risk, risk_of(request)):
        return False
    if settings.kinds and request.kind not in settings.kinds:
        return False
    patterns = settings.servers
    return not patterns or any(is_glob_match(each, request.server) for each in patterns)


def plan_delivery(
    settings: NotifierSettings, request: ApprovalRequest, now: datetime
) -> DeliveryPlan:
    """Return when the first message about a request is due."""
    risk, due_at = risk_of(request), now
    if settings.quiet_hours is not None and is_riskier(settings.quiet_hours.passes, risk):
        due_at = quiet_until(settings.quiet_hours, now) or now
    if settings.digest is None or is_riskier(risk, settings.digest.max_risk):
        return DeliveryPlan(due_at)
    return DeliveryPlan(next_digest(settings.digest, due_at), is_digest=True)


def quiet_until(hours: QuietHours, now: datetime) -> datetime | None:
    """Return when the present quiet hours end, or None outside of them."""
    local = now.astimezone(hours.zone)
    is_overnight = hours.end <= hours.start
    clock = local.time()
    is_late, is_early = clock >= hours.start, clock < hours.end
    if not (is_late or is_early if is_overnight else is_late and is_early):
        return None
    day = local.date() + timedelta(days=1 if is_overnight and is_late else 0)
    return datetime.combine(day, hours.end, hours.zone).astimezone(UTC)


def next_digest(schedule: DigestSchedule, at: datetime) -> datetime:
    """Return when the digest is due that collects a request of this time."""
    whole = (at - _EPOCH) // schedule.every
    return _EPOCH + (whole + 1) * schedule.every


def quorum_text(request: ApprovalRequest) -> str:
    """Return how many people have approved, where more than one must."""
    if request.quorum == 1:
        return ""
    approved = sum(each.verdict is ApprovalDecision.ACCEPT for each in request.answers)
    return f"{approved} of {request.quorum} approved"
