"""The audit trail, joined: what happens is written down, and told to those who may know it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from comity.app.caring import Caring
from comity.app.governing import Governance
from comity.app.journaling import Journaling
from comity.kernel.audit import Notices
from comity.kernel.audit_recorder import AuditRecorder
from comity.kernel.audit_servers import AuditServers
from comity.kernel.definition_audit import DefinitionAudit
from comity.kernel.grant_audit import GrantAudit
from comity.kernel.identity import Identity
from comity.kernel.permission_audit import PermissionAudit
from comity.kernel.server_audit import ServerAudit
from comity.kernel.servers import Servers
from comity.kernel.switchboard import AllServers
from comity.kernel.testimony import Testimony
from comity.kernel.toolcare import ToolCare
from comity.wire.parties import Actor
from comity.wire.security import Risk

KEY = "key:"
"""How the credential of whoever came in by a key begins."""


@dataclass(frozen=True, slots=True)
class Auditing:
    """Who writes down what is no call, who is told of everything, and who hears servers."""

    recorder: AuditRecorder
    notices: Notices
    servers: AuditServers
    testimony: Testimony
    counts: Callable[[Actor], bool]


def audited(
    journaling: Journaling,
    identity: Identity,
    servers: Servers,
    caring: Caring,
    governance: Governance,
    everything: AllServers,
) -> Auditing:
    """Have everything written down that is about security, and told where that was agreed on."""
    journal, redact = journaling.journal, journaling.redact
    recorder = AuditRecorder(journal, redact)
    servers.watch(ServerAudit(recorder, partial(_described, servers)).stepped)
    journaling.recorder.known = partial(_known, caring.tools)
    caring.tools.audit = DefinitionAudit(recorder)
    caring.tools.permits.audit = PermissionAudit(recorder)
    governance.administration.audit = GrantAudit(recorder)

    def counts(actor: Actor) -> bool:
        """Whether somebody who came in once would still be let in."""
        if not actor.credential.startswith(KEY):
            return True
        return identity.named(actor.party, actor.credential.removeprefix(KEY)) is not None

    notices = Notices(governance.snapshot.grants, counts)
    everything.presence.audit = everything.subscriptions.audit = notices
    told = AuditServers(servers, lambda name: caring.policy(name).audit)
    journal.listeners += [notices.happened, told.happened]
    return Auditing(recorder, notices, told, Testimony(journal, redact, servers), counts)


def _described(servers: Servers, name: str) -> Mapping[str, object]:
    """How a server is reached that has just connected, and what was agreed on with it."""
    server = servers.get(name)
    if server is None:
        return {}
    shared = server.reached.own or server.reached.modern
    terms = None if shared is None else shared.link.mgp
    said: dict[str, object] = {"eras": sorted(server.reached.eras), "restarts": server.restarts}
    if terms is not None:
        said["mgp"] = {"version": terms.version, "extensions": sorted(terms.extensions)}
    return said


def _known(tools: ToolCare, server: str, tool: str) -> tuple[Risk, Sequence[str]] | None:
    offer = tools.offered(server, tool)
    if offer is None:
        return None
    standing = tools.standing(offer)
    return standing.risk, standing.validators
