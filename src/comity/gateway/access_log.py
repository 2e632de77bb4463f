"""The access log: one line for each tool call that has ended.

It wraps the audit of calls only where its logger is enabled, so that it costs nothing otherwise.
"""

import logging
from collections.abc import Callable

from comity.gateway.call_audit import CallAudit, target_of
from comity.mcp import protocol
from comity.mcp.refusals import Refusal
from comity.sessions.calls import Call, CallOutcomeRecorder

log = logging.getLogger("comity.access")


def with_access_log(call_audit: CallAudit) -> CallOutcomeRecorder:
    """Return a recorder that also logs calls, if the log level is INFO or lower."""
    return AccessLog(call_audit) if log.isEnabledFor(logging.INFO) else call_audit


class AccessLog:
    """Logs the outcome of each tool call, then records it."""

    def __init__(self, call_audit: CallAudit) -> None:
        self._call_audit = call_audit

    def record_outcome(
        self, call: Call, outcome: str, refusal: Refusal | None, reply: Callable[[], None]
    ) -> None:
        if call.method == protocol.CALL_TOOL and not call.is_recorded:
            _log_call(call, outcome)
        self._call_audit.record_outcome(call, outcome, refusal, reply)


def _log_call(call: Call, outcome: str) -> None:
    server, tool = target_of(call)
    principal = call.client_stream.actor.party
    trace = call.trace or call.ensure_trace_id()
    took = 0.0 if call.active_calls is None else call.active_calls.now() - call.started_at
    milliseconds = round(took * 1000, 1)
    log.info(
        "call principal=%s tool=%s/%s outcome=%s duration_ms=%s trace_id=%s",
        principal or "-",
        server or "-",
        tool or "-",
        outcome,
        milliseconds,
        trace,
        extra={
            "trace_id": trace,
            "server": server or None,
            "fields": {
                "principal": principal,
                "tool": tool,
                "outcome": outcome,
                "duration_ms": milliseconds,
            },
        },
    )
