"""Metrics of approval requests: how many are open, how they ended, and how long that took."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import Final

from comity.approvals.model import ApprovalDecision, ApprovalRequest, ApprovalState
from comity.telemetry.metrics import Histogram, MetricFamily

BOUNDS: Final = (1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
"""In seconds. People answer within seconds or within a day."""

_OUTCOMES: Final[Mapping[ApprovalState, str]] = {
    ApprovalState.APPROVED: "approved",
    ApprovalState.DENIED: "denied",
    ApprovalState.CANCELLED: "cancelled",
    ApprovalState.EXPIRED: "expired",
    ApprovalState.WITHDRAWN: "withdrawn",
}


class ApprovalMetrics:
    """Counts the decisions of this node."""

    def __init__(self) -> None:
        self._decided: Counter[tuple[str, str]] = Counter()
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def on_change(self, request: ApprovalRequest) -> None:
        """Count a request that was decided just now."""
        outcome = _OUTCOMES.get(request.state)
        if outcome is None or _was_approved_before(request):
            return
        self._decided[str(request.kind), outcome] += 1
        ended = request.answers[-1].at if request.answers else request.ended_at
        if ended is not None:
            took = max((ended - request.created_at).total_seconds(), 0.0)
            self._counts[bisect_left(BOUNDS, took)] += 1
            self._seconds += took

    def families(self, open_count: int) -> list[MetricFamily]:
        return [
            MetricFamily(
                "comity_approvals_open",
                "gauge",
                "Approval requests of this node that wait for an answer.",
                [((), open_count)],
            ),
            MetricFamily(
                "comity_approvals_decided_total",
                "counter",
                "Approval requests that were decided at this node, by outcome.",
                [
                    ((("kind", kind), ("outcome", outcome)), count)
                    for (kind, outcome), count in self._decided.items()
                ],
            ),
            MetricFamily(
                "comity_approval_decision_seconds",
                "histogram",
                "Time from an approval request to its decision.",
                [((), Histogram(BOUNDS, tuple(self._counts), self._seconds))],
            ),
        ]


def _was_approved_before(request: ApprovalRequest) -> bool:
    """Return whether this is an approval that ended unused; its decision was counted."""
    if request.state is ApprovalState.APPROVED:
        return False
    approved = [each for each in request.answers if each.verdict is ApprovalDecision.ACCEPT]
    return len(approved) >= request.quorum
