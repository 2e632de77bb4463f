"""A gateway with an inbox, people who may answer, and questions that are put without a call."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from comity.approvals.model import ANSWER_VERB, ApprovalDraft, ApprovalKind, ApprovalRequest
from comity.approvals.presentation import ApprovalLink, ApprovalLinks
from comity.approvals.service import ApprovalService
from comity.identity.principals import Principal
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, PrincipalKind
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import ADMIN, Governed, Guest, governed
from tests.support.credentials import PEPPER
from tests.support.visitor import Reply

ANA = "person:ana@example.org"
BEN = "person:ben@example.org"
ANSWERS = Grant(ANA, ANSWER_VERB, "files/*", Effect.ALLOW)
GRANTS = (
    ANSWERS,
    *(Grant(ADMIN, verb, "*", Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE, ANSWER_VERB)),
)


@dataclass
class Scene:
    """The gateway, and whoever comes to its inbox."""

    governed: Governed

    @property
    def approvals(self) -> ApprovalService:
        return self.governed.visitor.parts.approval_components.approvals

    def person(self, party: str = ANA, *permissions: str) -> Guest:
        guest = self.governed.guest(party, *permissions)
        self.governed.given_out.parties[party] = Principal(party, PrincipalKind.PERSON)
        return guest

    async def ask(self, number: int = 1, **changed: Any) -> ApprovalRequest:
        """A question that is open."""
        return await self.approvals.open(self.new(number, **changed))

    def new(self, number: int = 1, **changed: Any) -> ApprovalRequest:
        return a_question(self.approvals, number, **changed)

    def token(self, ask: ApprovalRequest, party: str = ANA, **changed: Any) -> str:
        return ApprovalLinks(PEPPER).seal(
            replace(ApprovalLink(ask.id, party, ask.expires_at), **changed)
        )

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
    approvals: ApprovalService, number: int = 1, risk: str = "dangerous", **changed: Any
) -> ApprovalRequest:
    """A question about a call, which is not put yet."""
    about = {
        "tool": "files__write",
        "risk": risk,
        "definition": "d" * 64,
        "arguments": {"path": f"/reports/{number}.txt"},
        "arguments_digest": "a" * 64,
    }
    draft = ApprovalDraft(
        kind=ApprovalKind.CONFIRM,
        asker="agent:ci",
        server="files",
        tool="write",
        digest=f"digest {number}",
        message="agent:ci wants to call files__write",
        about=about,
    )
    return replace(approvals.create(draft), **changed)


def _spelt(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@asynccontextmanager
async def an_inbox(*more: Grant, **chosen: Any) -> AsyncGenerator[Scene]:
    async with governed(grants=(*GRANTS, *more), **chosen) as scene:
        yield Scene(scene)
