"""What the parts of the live plane are joined by; each finds here what the others brought."""

from dataclasses import dataclass, field
from typing import Protocol

from comity.app.asking import Asking
from comity.app.caring import Caring
from comity.app.conversing import Conversing
from comity.app.eventing import Eventing
from comity.app.governing import Governance
from comity.app.journaling import Journaling
from comity.app.residents import Residents
from comity.config import Settings
from comity.kernel.identity import Identity
from comity.kernel.live.channels import Channels
from comity.kernel.live.hook_watch import HookWatch
from comity.kernel.live.hosting import Hosting
from comity.kernel.live.parts import Engine, Places, Turns
from comity.kernel.servers import Servers
from comity.kernel.snapshot import Snapshot
from comity.kernel.switchboard import AllServers
from comity.surfaces.asked import Room
from comity.surfaces.gateway import Gateway


class Joined(Protocol):
    """All of the gateway that they have to do with."""

    @property
    def servers(self) -> Servers: ...
    @property
    def everything(self) -> AllServers: ...
    @property
    def gateway(self) -> Gateway: ...
    @property
    def residents(self) -> Residents: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def caring(self) -> Caring: ...
    @property
    def governance(self) -> Governance: ...
    @property
    def journaling(self) -> Journaling: ...
    @property
    def asking(self) -> Asking: ...
    @property
    def conversing(self) -> Conversing: ...
    @property
    def eventing(self) -> Eventing: ...
    @property
    def rooms(self) -> dict[str, Room]: ...


@dataclass(slots=True)
class LiveParts:
    """The live plane while it is put together. Who needs a part looks when it is needed."""

    settings: Settings
    parts: Joined
    hosting: Hosting
    # Whose hooks are awaited just now: those servers may not ask a model for them. (D-69)
    hooks: HookWatch = field(default_factory=HookWatch)
    engine: Engine | None = None
    turns: Turns | None = None
    places: Places | None = None
    channels: Channels | None = None

    def channel_of(self, server: str, label: str) -> str | None:
        """The id of a server's channel that has this label, if it is just one."""
        return None if self.channels is None else self.channels.named(server, label)
