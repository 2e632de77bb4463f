"""Records in the audit log which tool definitions changed and which were accepted."""

from collections.abc import Iterable, Mapping

from comity.kernel.audit_recorder import LEFT_OUT, MOST_NAMED, AuditRecorder
from comity.rules.permissions import SUBJECT
from comity.wire.audit import Type
from comity.wire.pins import Pin


class DefinitionAudit:
    """Records changes of tool definitions."""

    def __init__(self, recorder: AuditRecorder) -> None:
        self._recorder = recorder

    def changed(self, server: str, tools: Mapping[str, str]) -> None:
        """Tools are described otherwise than was accepted; each by its name, with its digest."""
        left_out = self._recorder.bound.take(server)
        if left_out is not None:
            said = {LEFT_OUT: left_out} if left_out else {}
            details = {**_tools(tools.items()), **said}
            self._recorder.note(
                Type.DEFINITION_CHANGED, f"{SUBJECT}{server}", server, details=details
            )

    def accepted(self, server: str, pins: Iterable[Pin], by: str) -> None:
        """Tools may be used as they are described now."""
        details = _tools([(pin.tool, pin.digest) for pin in pins])
        self._recorder.note(Type.DEFINITION_ACCEPTED, by, server, details=details)


def _tools(named: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Tools with the digests of their definitions, as far as one entry goes."""
    found = list(named)
    details: dict[str, object] = {"number": len(found), "tools": dict(found[:MOST_NAMED])}
    if len(found) > MOST_NAMED:
        details["more"] = len(found) - MOST_NAMED
    return details
