"""A gateway with an inbox, people who may answer, and questions that are put without a call."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from comity.kernel.approvals import Approvals
from comity.rules.ask_links import Link, Links
from comity.wire.asks import ANSWER, Ask, Kind
from comity.wire.grants import ADMIN_READ, ADMIN_WRITE, Effect, Grant
from comity.wire.parties import Party, PartyKind
from tests.conformance.governed import ADMIN, Governed, Guest, governed
from tests.surfaces.credentials import PEPPER
from tests.surfaces.visitor import Reply

ANA = "person:ana@example.org"
BEN = "person:ben@example.org"
ANSWERS = Grant(ANA, ANSWER, "files/*", Effect.ALLOW)
GRANTS = (
    ANSWERS,
    *(Grant(ADMIN, verb, "*", Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE, ANSWER)),
)


@dataclass
class Scene:
    """The gateway, and whoever comes to its inbox."""

    governed: Governed

    @property
    def approvals(self) -> Approvals:
        return self.governed.visitor.parts.asking.approvals

    def person(self, party: str = ANA, *permissions: str) -> Guest:
        guest = self.governed.guest(party, *permissions)
        self.governed.given_out.parties[party] = Party(party, PartyKind.PERSON)
        return guest

    async def ask(self, number: int = 1, **changed: Any) -> Ask:
        """A question that is open."""
        return await self.approvals.open(self.new(number, **changed))

    def new(self, number: int = 1, **changed: Any) -> Ask:
        return a_question(self.approvals, number, **changed)

    def token(self, ask: Ask, party: str = ANA, **changed: Any) -> str:
        return Links(PEPPER).seal(replace(Link(ask.id, party, ask.expires_at), **changed))

    async def look(self, path: str, **headers: str) -> Reply:
        """Open a page as a browser does, which shows no credentials by itself."""
        said = {"accept": "text/html", **_spelt(headers)}
        return await self.governed.visitor.send("GET", said.items(), path=path)

    async def fill_in(self, path: str, fields: dict[str, str], **headers: str) -> Reply:
        """Post a form of that page, from where the page is."""
        said = {
            "content-type": "application/x-www-form-urlencoded",
            "origin": self.governed.visitor.place.address,
            "sec-fetch-site": "same-origin",
            **_spelt(headers),
        }
        body = urlencode(fields).encode()
        return await self.governed.visitor.send("POST", said.items(), body, path)


def a_question(
    approvals: Approvals, number: int = 1, risk: str = "dangerous", **changed: Any
) -> Ask:
    """A question about a call, which is not put yet."""
    about = {
        "tool": "files__write",
        "risk": risk,
        "definition": "d" * 64,
        "arguments": {"path": f"/reports/{number}.txt"},
        "arguments_digest": "a" * 64,
    }

    def made(id: str, at: datetime, until: datetime) -> Ask:
        whose = (id, Kind.CONFIRM, "agent:ci", "files", "write", f"digest {number}")
        return Ask(*whose, "agent:ci wants to call files__write", about, at, until)

    return replace(approvals.new(made), **changed)


def _spelt(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@asynccontextmanager
async def an_inbox(*more: Grant, **chosen: Any) -> AsyncGenerator[Scene]:
    async with governed(grants=(*GRANTS, *more), **chosen) as scene:
        yield Scene(scene)
