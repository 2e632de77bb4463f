"""The care for servers and their tools as the settings say: permissions, risks, definitions.

One person at one machine is the authority over everything that runs there: what stands in that
person's file runs with that person's rights, whoever approves it. So there nobody is asked, and
servers get what they need. Where others come in, an operator decides.
"""

from dataclasses import replace
from typing import Any, Final

from comity.config import ServerSettings, Settings
from comity.config.live_servers import live_policy_of
from comity.kernel.administration import Administration
from comity.kernel.catalog import Catalog
from comity.kernel.life import ServerOptions
from comity.kernel.live.enabling import Enabling
from comity.kernel.live.hosting import Hosting
from comity.kernel.permission_asks import PermissionAsks
from comity.kernel.permits import Permits
from comity.kernel.pinned import Pinned
from comity.kernel.pulse import Questions, Streams
from comity.kernel.servers import Servers
from comity.kernel.snapshot import Snapshot
from comity.kernel.toolcare import ToolCare
from comity.ports import Kept
from comity.rules.live_policy import NOTHING as LIVE_NOTHING
from comity.rules.live_policy import LivePolicy
from comity.rules.permissions import ApprovalPolicy, full_names
from comity.rules.policies import (
    Definitions,
    Fallback,
    OnDenied,
    RequireApproval,
    ServerPolicy,
    Suspicious,
)
from comity.surfaces.asked import Room
from comity.surfaces.care_api import CareApi, needs_of
from comity.wire.security import Risk, Trust

_UNWRITTEN: Final = ServerPolicy(
    approval=ApprovalPolicy.DENY_ALL,
    trust=Trust.SANDBOXED,
    require_approval=RequireApproval.DANGEROUS,
)
"""For a server of which nobody wrote anything."""


class Caring:
    """The policies in force, and who looks after tools by them."""

    def __init__(self, settings: Settings, catalog: Catalog, snapshot: Snapshot) -> None:
        self._settings = settings
        self._policies: dict[str, ServerPolicy] = {}
        self._live: dict[str, LivePolicy] = {}
        grants, pins = snapshot.grants, Pinned(snapshot.records.pins)
        permits = Permits(self.policy, grants, lambda: grants.latest)
        self.tools = ToolCare(catalog, self.policy, permits, pins)
        snapshot.watch(Kept.PINS, self.tools.pins_changed)
        self.questions: Questions | None = None
        self.streaming: Streams | None = None
        enabling = Enabling(self.live_policy, grants, lambda: grants.latest)
        self.live = Hosting(self.live_policy, enabling)
        snapshot.watch(Kept.GRANTS, lambda _: self.live.look())
        self.asked: PermissionAsks | None = None

    def look(self, patience: float) -> None:
        self.tools.look()
        self.live.look()
        if self.asked is not None:
            self.asked.look()

    def policy(self, server: str) -> ServerPolicy:
        return self._policies.get(server, _UNWRITTEN)

    def live_policy(self, server: str) -> LivePolicy:
        """What a server may do beyond answering."""
        return self._live.get(server, LIVE_NOTHING)

    def admit(self, server: ServerSettings, options: ServerOptions) -> ServerOptions:
        """Take over what is decided of a server; gives how it is treated with that."""
        self._policies[server.id] = policy_of(server, self._settings)
        self.tools.refresh(server.id)
        meet, questions = self.tools.permits.meet, self.questions
        links = replace(options.links, meet=meet, questions=questions, streaming=self.streaming)
        self.decide_live(server)
        return replace(options, links=replace(links, live=self.live))

    def decide_live(self, server: ServerSettings) -> None:
        """Take over what a server may do beyond answering, though it runs already."""
        self._live[server.id] = live_policy_of(server.live)
        self.live.refresh(server.id)

    def rooms(self, servers: Servers, administration: Administration) -> dict[str, Room]:
        """What operators find of it under /api."""
        return CareApi(self.tools, servers, administration).rooms

    def needs(self, server: str) -> list[dict[str, object]]:
        return needs_of(self.tools.permits.of(server))

    def dismiss(self, server: str) -> None:
        self._policies.pop(server, None)
        self._live.pop(server, None)
        self.live.dismiss(server)
        self.tools.permits.forget(server)
        if self.asked is not None:
            self.asked.dismissed(server)


def policy_of(server: ServerSettings, settings: Settings) -> ServerPolicy:
    """What is decided of a server: by its own tables, else by the whole file, else by default."""
    is_local = settings.identity_mode == "local"
    own: dict[str, Any] = dict(server.policy)
    approval = own.get("approval_policy", settings.approval_policy)
    if approval == "auto":
        approval = ApprovalPolicy.AUTO_APPROVE if is_local else ApprovalPolicy.CONFIG_ONLY
    require_approval = settings.require_approval
    if require_approval == "auto":
        require_approval = RequireApproval.NEVER if is_local else RequireApproval.DANGEROUS
    # The preset is the operator's word that the servers of the file tell the truth of their tools.
    trust = Trust.TRUSTED if require_approval == "destructive" else Trust.STANDARD
    if require_approval == "destructive":
        require_approval = RequireApproval.DANGEROUS
    fallback = settings.fallback_validators
    if fallback == "auto":
        fallback = Fallback.WARN if is_local else Fallback.ON
    listed = (*own.get("permissions", ()), *full_names(server.permissions_required))
    risk = own.get("risk")
    return ServerPolicy(
        ApprovalPolicy(approval),
        tuple(dict.fromkeys(listed)),
        OnDenied(own.get("on_denied", OnDenied.DEGRADE)),
        Trust(own.get("trust") or server.trust_level or trust),
        None if risk is None else Risk(risk),
        Definitions(own.get("definitions", settings.definitions)),
        Suspicious(own.get("suspicious", settings.suspicious)),
        Fallback(fallback),
        RequireApproval(require_approval),
        settings.require_approval == "never",
        server.tools,
        {Risk.MODERATE: settings.moderate_cost, Risk.DANGEROUS: settings.dangerous_cost},
        bool(own.get("audit", False)),
    )
