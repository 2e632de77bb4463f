"""Records in the audit log how servers connect and disconnect."""

from collections.abc import Callable, Mapping
from typing import Final

from comity.kernel.audit_recorder import AuditRecorder
from comity.kernel.standing import Transition
from comity.rules.permissions import SUBJECT
from comity.wire.audit import Type
from comity.wire.lifecycle import Reason, State
from comity.wire.parties import GATEWAY

type Describe = Callable[[str], Mapping[str, object]]

_ENDED: Final = frozenset({State.ERROR, State.DISCONNECTED, State.RESTARTING})
_ORDERS: Final[frozenset[str]] = frozenset(Reason)


class ServerAudit:
    """Records the transitions of servers that concern security."""

    def __init__(self, recorder: AuditRecorder, describe: Describe) -> None:
        self._recorder = recorder
        # How a server is reached, for the reader of the audit log.
        self._describe = describe
        self._connected: set[str] = set()

    def stepped(self, step: Transition) -> None:
        """A server went from one state to another."""
        if step.state is State.CONNECTED:
            self._connected.add(step.server)
            details = self._describe(step.server)
            self._recorder.note(
                Type.SERVER_CONNECTED, step.by or GATEWAY, step.server, details=details
            )
        elif step.state in _ENDED and (step.server in self._connected or step.is_given_up):
            self._disconnected(step)

    def _disconnected(self, step: Transition) -> None:
        was_there = step.server in self._connected
        self._connected.discard(step.server)
        details: dict[str, object] = {"reason": self._recorder.redact(step.reason)}
        if step.is_given_up:
            # By this name MGP §11.5 wants it to be found.
            details["restart_limit_exceeded"] = True
        went_by_itself = was_there and step.reason not in _ORDERS and not step.by
        actor = f"{SUBJECT}{step.server}" if went_by_itself else step.by or GATEWAY
        self._recorder.note(Type.SERVER_DISCONNECTED, actor, step.server, details=details)
        if step.is_given_up:
            self._recorder.note(Type.RESTART_LIMIT_EXCEEDED, GATEWAY, step.server, details=details)
