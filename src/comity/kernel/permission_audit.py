"""Records in the audit log what becomes of the permissions of servers."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from comity.kernel.audit_recorder import LEFT_OUT, AuditRecorder
from comity.rules.permissions import SUBJECT, Decided
from comity.wire.audit import Result, Type
from comity.wire.parties import GATEWAY, PartyKind
from comity.wire.security import Decision

_OF_DECISION: Final = {
    Decision.APPROVED: Type.PERMISSION_GRANTED,
    Decision.DENIED: Type.PERMISSION_DENIED,
}


class PermissionAudit:
    """Records decisions about server permissions that no person wrote."""

    def __init__(self, recorder: AuditRecorder) -> None:
        self._recorder = recorder
        self._permissions: dict[tuple[str, str], Decided] = {}

    def decided(self, server: str, permissions: Mapping[str, Decided]) -> None:
        """The permissions of a server stand otherwise than before.

        Whoever decides one is written down with that decision; here it is told what follows without
        anybody's word: a policy has decided it, or what was decided has come to its end. (D-11)
        """
        for name, now in permissions.items():
            self._decided(server, name, now)

    def _decided(self, server: str, name: str, now: Decided) -> None:
        if now.by == GATEWAY:
            # Nobody can know just now; what was known before is not undone by that.
            return
        before = self._permissions.get((server, name))
        self._permissions[server, name] = now
        has_ended = before is not None and _has_ended(before, self._recorder.clock())
        kind = _change(before, now, has_ended=has_ended)
        if kind is None:
            return
        details: dict[str, object] = {
            "permission": name,
            "decision": now.decision,
            "by": now.by,
            "because": self._recorder.redact(now.because),
        }
        if kind is Type.PERMISSION_REVOKED and has_ended:
            details["expired"] = True
        self._recorder.note(kind, GATEWAY, server, details=details)

    def claimed(self, server: str, asserted: object) -> None:
        """A server said that something was decided which others decide: it counts for nothing."""
        left_out = self._recorder.bound.take(server)
        if left_out is not None:
            details = {"asserted": self._recorder.redact(asserted)}
            if left_out:
                details[LEFT_OUT] = left_out
            actor, place = (f"{SUBJECT}{server}", PartyKind.SERVER), (server, "")
            self._recorder.put(Type.TESTIMONY, actor, place, details, result=Result.UNKNOWN)

    def dismissed(self, server: str) -> None:
        """A server is gone for good: if one of its name comes, all is decided anew."""
        for each in [each for each in self._permissions if each[0] == server]:
            del self._permissions[each]


def _change(before: Decided | None, now: Decided, *, has_ended: bool) -> Type | None:
    """What is to be told of how a permission stands now; None where nothing is."""
    was = None if before is None else before.decision
    if now.decision is was:
        return None
    if before is not None and was is Decision.APPROVED:
        # Who took it back, or denied it, was written down with that.
        return None if ":" in before.by + now.by and not has_ended else Type.PERMISSION_REVOKED
    return None if ":" in now.by else _OF_DECISION.get(now.decision)


def _has_ended(decided: Decided, now: datetime) -> bool:
    return decided.expires_at is not None and decided.expires_at <= now
