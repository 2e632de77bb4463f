"""Records in the audit log who wrote or revoked a grant, or was refused."""

from collections.abc import Mapping
from typing import Final

from comity.kernel.audit_recorder import AuditRecorder
from comity.rules.patterns import parts
from comity.rules.permissions import SUBJECT
from comity.wire.audit import Result, Type, stamp
from comity.wire.grants import PERMISSION, Effect, Grant
from comity.wire.parties import Actor

_OF_EFFECT: Final = {Effect.ALLOW: Type.PERMISSION_GRANTED, Effect.DENY: Type.PERMISSION_DENIED}


class GrantAudit:
    """Records changes of grants."""

    def __init__(self, recorder: AuditRecorder) -> None:
        self._recorder = recorder

    def granted(
        self, actor: Actor, grant: Grant, trace: str = "", *, refused: bool = False
    ) -> None:
        """Somebody wrote an entry, or was not let. (D-16)"""
        about = (grant.subject, grant.verb, grant.target)
        details: dict[str, object] = {"permission": grant.effect}
        kind: Type = Type.ACCESS_GRANTED
        if grant.verb == PERMISSION:
            kind = _OF_EFFECT.get(grant.effect, Type.PERMISSION_REVOKED)
            details = {"permission": grant.target, "decision": grant.effect}
        if grant.justification:
            details["justification"] = self._recorder.redact(grant.justification)
        if grant.expires_at is not None:
            details["expires_at"] = stamp(grant.expires_at)
        if grant.where is not None:
            details["where"] = self._recorder.redact(dict(grant.where))
        self._record(kind, actor, about, details, trace=trace, refused=refused)

    def revoked(
        self, actor: Actor, about: tuple[str, str, str], trace: str = "", *, refused: bool = False
    ) -> None:
        """Somebody took back the entry of that subject, verb and target, or was not let."""
        is_permission = about[1] == PERMISSION
        kind = Type.PERMISSION_REVOKED if is_permission else Type.ACCESS_REVOKED
        details: dict[str, object] = {"permission": about[2]} if is_permission else {}
        self._record(kind, actor, about, details, trace=trace, refused=refused)

    def _record(
        self,
        kind: Type,
        actor: Actor,
        about: tuple[str, str, str],
        details: Mapping[str, object],
        *,
        trace: str,
        refused: bool,
    ) -> None:
        subject, verb, target = about
        server, tool = "", ""
        if verb == PERMISSION and subject.startswith(SUBJECT):
            server = subject.removeprefix(SUBJECT)
        elif "/" in target:
            # A pattern is no name of anything: what has one is found by its details.
            server, tool = ("" if "*" in each else each for each in parts(target))
        said = {"subject": subject, "verb": verb, "target": target, **details}
        result = Result.BLOCKED if refused else Result.SUCCESS
        place = (server, tool)
        self._recorder.put(kind, (actor.party, actor.kind), place, said, result=result, trace=trace)
