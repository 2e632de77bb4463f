"""The inbox as the settings say: how long asks last, and by which doors authorities meet it."""

from dataclasses import dataclass, field, replace
from typing import Final

from comity.adapters.secret_files import read_secret
from comity.adapters.webhooks import Webhook
from comity.app.client_forms import put_to_clients
from comity.app.governing import decided_of
from comity.app.journaling import Journaling, journaled
from comity.app.reaching import proxies_of
from comity.config import Settings
from comity.kernel.administration import Administration
from comity.kernel.admission import Admission
from comity.kernel.approvals import Approvals, AskOptions
from comity.kernel.ask_notices import Authorities, Notices
from comity.kernel.audit_recorder import AuditRecorder
from comity.kernel.certainty import Certainty
from comity.kernel.gate import Gate
from comity.kernel.grant_audit import GrantAudit
from comity.kernel.grants import Grants
from comity.kernel.held import Holding
from comity.kernel.identity import Identity, Register
from comity.kernel.inbox import Inbox
from comity.kernel.journal import Journal
from comity.kernel.snapshot import Snapshot
from comity.ports import Kept, Records
from comity.rules.ask_links import Links
from comity.surfaces.asked import Asked, Room, View
from comity.surfaces.asks_api import AsksApi
from comity.surfaces.asks_page import AsksPage
from comity.surfaces.asks_stream import AsksStream
from comity.surfaces.gateway import Door
from comity.surfaces.reception import Reception
from comity.wire.errors import Misconfigured

_SECRET_BYTES: Final = 4096


@dataclass(slots=True)
class Asking:
    """Every ask of this node, the calls that wait for one, and the doors to answer at."""

    approvals: Approvals
    holding: Holding
    admission: Admission
    settings: Settings
    snapshot: Snapshot
    journal: Journal
    rooms: dict[str, Room] = field(default_factory=dict[str, Room])
    doors: dict[str, Door] = field(default_factory=dict[str, Door])
    stream: AsksStream | None = None
    notices: Notices | None = None

    def open(
        self, identity: Identity, administration: Administration, reception: Reception
    ) -> None:
        """Let authorities in: at /api/asks, on the page, and by notices to elsewhere."""
        links = Links(identity.pepper)
        own_tasks = put_to_clients(self.holding, identity.pepper, links)
        self.admission.own_tasks = own_tasks
        inbox = Inbox(self.approvals, links, identity.named, self.journal)
        self.stream = AsksStream(inbox)
        self.stream.recognise = reception.admit
        self.snapshot.watch(Kept.ASKS, self.stream.changed)
        self.approvals.watchers.append(self.stream.hear)
        self.notices = make_notices(self.settings, inbox, self.snapshot.grants)
        if self.notices is not None:
            self.approvals.tellers.append(self.notices.hear)
        self.rooms = AsksApi(inbox, administration).rooms
        self.doors = self.stream.doors | AsksPage(inbox, identity).doors

    def listens_at(self, origin: str) -> None:
        """Where pages are, unless the operator said by what name others know the gateway."""
        if not self.settings.public_url:
            self.approvals.options = replace(self.approvals.options, public_url=origin)

    def end_streams(self) -> None:
        """Nobody is to wait for a reader that would read for ever, nor for a person."""
        self.holding.end()
        if self.stream is not None:
            self.stream.end()

    def stop(self) -> None:
        self.end_streams()
        if self.notices is not None:
            self.notices.stop()
        self.holding.stop()
        self.approvals.stop()


def make_asking(
    settings: Settings, snapshot: Snapshot, journaling: Journaling, gate: Gate
) -> Asking:
    """Have calls put before people that need one."""
    journal = journaling.journal
    approvals = Approvals(snapshot.records.asks, snapshot.grants, journal, options_of(settings))
    snapshot.watch(Kept.ASKS, approvals.changed)
    holding = Holding(approvals, gate.admission, snapshot.grants, gate.catalog)
    holding.redact = journaling.redact
    gate.admission.asking = holding
    return Asking(approvals, holding, gate.admission, settings, snapshot, journal)


def options_of(settings: Settings) -> AskOptions:
    return AskOptions(
        settings.ask_expires,
        settings.ask_lasts,
        settings.ask_hold,
        settings.ask_declined_for,
        settings.ask_most_open,
        settings.ask_most_of_one,
        settings.public_url or f"http://{settings.host}:{settings.port}",
        settings.approve_own,
    )


def make_notices(settings: Settings, inbox: Inbox, grants: Grants) -> Notices | None:
    """Who tells elsewhere of asks, where that is wanted. Raises Misconfigured."""
    if not settings.ask_webhook:
        return None
    if not settings.ask_webhook_secret_file:
        raise Misconfigured(
            "a webhook wants a secret to sign with: `openssl rand -hex 32 > webhook.secret`, and "
            "name the file with webhook_secret_file in [asks]"
        )
    secret = read_secret(settings.ask_webhook_secret_file, "asks.webhook_secret_file")
    webhook = Webhook(settings.ask_webhook, secret, proxies=proxies_of(settings))
    return Notices(inbox, Authorities(grants, inbox), webhook)


def stored_asks_rooms(records: Records, settings: Settings, pepper: bytes) -> dict[str, Room]:
    """The inbox over a store alone, where no gateway runs: whoever opens the store answers."""

    async def asks(asked: Asked) -> View:
        certainty = Certainty()
        grants = Grants(certainty=certainty)
        snapshot = Snapshot(records, grants, certainty, decided_of(settings))
        await snapshot.refresh()
        if asked.method == "GET":
            return await _stored(settings, snapshot, pepper).asks(asked)
        # What is said here is kept, and signed, as a gateway would do it.
        async with journaled(settings, snapshot, pepper) as journaling:
            return await _stored(settings, snapshot, pepper, journaling).asks(asked)

    return {"asks": asks}


def _stored(
    settings: Settings, snapshot: Snapshot, pepper: bytes, journaling: Journaling | None = None
) -> AsksApi:
    journal = None if journaling is None else journaling.journal
    approvals = Approvals(snapshot.records.asks, snapshot.grants, journal, options_of(settings))
    identity = Identity(Register(snapshot.keys, snapshot.parties, pepper))
    inbox = Inbox(approvals, Links(pepper), identity.named, journal)
    written = snapshot.records.grants
    administration = Administration(written, snapshot.grants, snapshot.refresh)
    if journaling is not None:
        recorder = AuditRecorder(journaling.journal, journaling.redact)
        administration.audit = GrantAudit(recorder)
    return AsksApi(inbox, administration)
