"""What an operator decided of who may do what, from the settings to what is judged by."""

from dataclasses import dataclass
from typing import Final

from comity.app.limiting import Limiting
from comity.config import Settings
from comity.kernel.access_methods import AccessMethods
from comity.kernel.administration import Administration
from comity.kernel.catalog import Catalog, Kind
from comity.kernel.certainty import Certainty
from comity.kernel.grants import Grants
from comity.kernel.precedents import Notes, Past, Precedents
from comity.kernel.snapshot import Snapshot
from comity.kernel.subscribing import Subscriptions
from comity.kernel.switchboard import AllServers
from comity.kernel.toolcare import ToolCare
from comity.ports import Kept, Records
from comity.rules.access import Decided, DefaultPolicy
from comity.rules.precedents import Known, Measure
from comity.surfaces.asked import Room, View
from comity.surfaces.grants_api import GrantsApi
from comity.surfaces.suggestions_api import SuggestionsApi
from comity.wire.grants import Effect, Grant, Source
from comity.wire.parties import LOCAL

BUILT_IN: Final = (
    Grant(
        LOCAL.party,
        "*",
        "*",
        Effect.ALLOW,
        source=Source.BUILT_IN,
        justification="whoever runs the gateway on this machine for itself",
    ),
)


@dataclass(frozen=True, slots=True)
class Governance:
    """The grants in force, and those who have to do with a change of them."""

    snapshot: Snapshot
    administration: Administration
    limiting: Limiting

    async def decide(self, settings: Settings) -> None:
        """Go by what the operator has written down anew; everybody may see other things then."""
        self.limiting.decide(settings)
        decided = decided_of(settings)
        if decided != self.snapshot.decided:
            await self.snapshot.decide(decided)


def govern(
    snapshot: Snapshot, everything: AllServers, subscriptions: Subscriptions, limiting: Limiting
) -> Governance:
    """Have grants administered at the door of all servers, and every change of them told."""
    administration = Administration(snapshot.records.grants, snapshot.grants, snapshot.refresh)
    AccessMethods(administration).join(everything.methods)
    snapshot.watch(Kept.GRANTS, subscriptions.regranted)
    return Governance(snapshot, administration, limiting)


def suggestions_rooms(
    governance: Governance, catalog: Catalog, care: ToolCare, notes: Notes, settings: Settings
) -> dict[str, Room]:
    """What operators find of suggested grants under /api."""

    def known(server: str, name: str) -> Known | None:
        offer = catalog.offered(server, Kind.TOOL, name)
        if offer is None:
            return None
        found = care.standing(offer)
        return Known(found.digest, found.asked_each_time)

    records = governance.snapshot.records
    measure = Measure(
        settings.suggest_after,
        settings.suggest_people,
        settings.suggest_span,
        settings.suggest_window,
    )
    past = Past(records.asks, records.journal, known)
    return SuggestionsApi(Precedents(past, governance.administration, notes, measure)).rooms


def grants_rooms(governance: Governance, catalog: Catalog, care: ToolCare) -> dict[str, Room]:
    """What operators find of grants under /api, with what is known of the tools."""

    def find_tool(name: str) -> tuple[str, str] | None:
        offer = catalog.find(Kind.TOOL, name)
        return None if offer is None else (offer.server, offer.name)

    def standing(server: str, name: str) -> View | None:
        offer = catalog.offered(server, Kind.TOOL, name)
        if offer is None:
            return None
        found = care.standing(offer)
        refusal = None if found.refusal is None else found.refusal.because
        return {"refusal": refusal, "is_asked": found.must_be_confirmed, "risk": found.risk}

    keys = governance.snapshot.keys
    return GrantsApi(governance.administration, keys.get, find_tool, standing).rooms


async def stored_grants_rooms(records: Records, settings: Settings) -> dict[str, Room]:
    """The same over a store alone, where no gateway runs and no tool is known."""
    certainty = Certainty()
    snapshot = Snapshot(records, Grants(certainty=certainty), certainty, decided_of(settings))
    await snapshot.refresh()
    administration = Administration(records.grants, snapshot.grants, snapshot.refresh)
    return GrantsApi(administration, snapshot.keys.get).rooms


def decided_of(settings: Settings) -> Decided:
    """What stands beside the records, whatever they hold."""
    policies = {
        server.id: DefaultPolicy(server.default_policy)
        for server in settings.servers
        if server.default_policy != "inherit"
    }
    default = DefaultPolicy(settings.default_policy)
    return Decided((*BUILT_IN, *settings.grants), settings.forbid, policies, default)
