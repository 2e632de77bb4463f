"""The results of approved calls, for the people who approved them.

Results stay in memory for a short time and never reach the store. Each node has those of all nodes.
"""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import UNSET

from comity.mcp.jsonrpc import Frame, error_of
from comity.telemetry.outcomes import OutcomeClass, class_of

MAX_RESULTS: Final = 1000
RESULT_LIFETIME: Final = timedelta(minutes=15)
MAX_TEXT: Final = 2000
MAX_DECODED_BYTES: Final = 64 * 1024
"""A longer result is not decoded for its text, because that would hold the event loop."""


class ApprovedCallResult(msgspec.Struct, frozen=True, array_like=True):
    """The end of an approved call. The text is short, and its secrets are masked."""

    approval: str
    outcome: OutcomeClass
    text: str
    ended_at: datetime
    duration_ms: float
    is_cut: bool = False


class CallResults:
    """The latest results, by the id of their approval request."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        # Called with each result of this node.
        self.watchers: list[Callable[[ApprovedCallResult], None]] = []
        self._clock = clock
        self._results: OrderedDict[str, ApprovedCallResult] = OrderedDict()

    def get(self, approval: str) -> ApprovedCallResult | None:
        found = self._results.get(approval)
        if found is None or self._clock() - found.ended_at > RESULT_LIFETIME:
            return None
        return found

    def keep(self, result: ApprovedCallResult) -> None:
        """Keep the result of a call of any node. The last attempt of a call counts."""
        self._results[result.approval] = result
        self._results.move_to_end(result.approval)
        while len(self._results) > MAX_RESULTS:
            self._results.popitem(last=False)

    def add(self, result: ApprovedCallResult) -> None:
        """Keep the result of a call of this node, and tell the watchers."""
        self.keep(result)
        for watcher in self.watchers:
            watcher(result)


class _ContentBlock(msgspec.Struct, gc=False):
    text: Any = ""


class _ToolResult(msgspec.Struct, gc=False):
    content: list[_ContentBlock] = []


_decode: Final = msgspec.json.Decoder(_ToolResult).decode


def read_result(
    approval: str,
    outcome: str,
    answer: Frame | None,
    began_at: datetime,
    now: datetime,
    redact: Callable[[object], object],
) -> ApprovedCallResult:
    """Return what an approver reads of the answer to a call."""
    text = redact(_text_in(answer))
    text = text if isinstance(text, str) else ""
    duration = round((now - began_at).total_seconds() * 1000, 3)
    is_cut = len(text) > MAX_TEXT
    return ApprovedCallResult(
        approval, class_of(outcome), text[:MAX_TEXT], now, duration, is_cut=is_cut
    )


def _text_in(answer: Frame | None) -> str:
    if answer is None:
        return ""
    error = error_of(answer)
    if error is not None:
        return error.message
    if answer.result is UNSET or len(answer.result) > MAX_DECODED_BYTES:
        return ""
    try:
        blocks = _decode(answer.result).content
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return "\n".join(each.text for each in blocks if isinstance(each.text, str) and each.text)
