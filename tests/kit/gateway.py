"""A whole gateway in this process: the real composition root over scripted servers and clients."""

import itertools
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from unittest.mock import patch

from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.records import RecordStores
from comity.app.settings import ServerSettings
from comity.config.document import ConfigValue
from comity.identity import wiring
from comity.identity.keys import mint_key
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import GROUP_PREFIX, kind_of
from comity.mcp.mgp import ServerLifecycleState, ShutdownReason
from comity.policy.grants import ANY_SUBJECT, Grant
from comity.policy.settings import GRANTS_TYPE
from comity.sessions.calls import GatewayCall
from comity.sessions.upstream import UpstreamConnection
from tests.kit.clients import ApiClient, ApiReply, Client
from tests.kit.clock import happens
from tests.kit.people import Person
from tests.kit.servers import LEGACY, ScriptedServer
from tests.support.inline_store import inline_records
from tests.support.settings import settings_with

OPERATOR: Final = "operator"
QUIET_SECONDS: Final = 10.0
_OPERATOR_TOKEN: Final = "operator-token-of-the-kit"
_USUAL_SETTINGS: Final = {
    # A gateway for tests lets through what no grant, rule or validator of the test is about.
    "policy_require_approval": "never",
    "policy_fallback_validators": "off",
    "policy_sandbox": "none",
}
_EFFECTS: Final = {"may not": "deny", "must ask to": "ask", "may": "allow"}
_SHORT_VERBS: Final = {"call": "tools/call", "answer": "approval/answer"}


def parse_grant(sentence: str) -> Grant:
    """Read `agent:ci may call echo/*`, and with `may not` or `must ask to` the other effects.

    The subject, the verb and the target have the grammar of the configuration, whose reader checks
    them. `call` and `answer` are short for the verbs `tools/call` and `approval/answer`.
    """
    for words, effect in _EFFECTS.items():
        subject, separator, rest = sentence.partition(f" {words} ")
        verb, _, target = rest.partition(" ")
        if separator and verb and target:
            entry = {"subject": subject, "verb": _SHORT_VERBS.get(verb, verb), "target": target}
            values = ConfigValue([{**entry, "effect": effect}], repr(sentence))
            (grant,) = GRANTS_TYPE.read(values)
            return grant
    raise ValueError(f"a grant reads `SUBJECT may VERB TARGET`, not {sentence!r}")


@dataclass(slots=True)
class TestGateway:
    """A running gateway. Servers, clients and principals come and go while it runs."""

    __test__ = False

    parts: GatewayParts
    servers: list[ScriptedServer] = field(default_factory=list[ScriptedServer])
    is_spoiled: bool = False
    """Whether a test left something behind. The fixture gives the next test another gateway."""
    _credentials: dict[str, str] = field(default_factory=lambda: {OPERATOR: _OPERATOR_TOKEN})
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def add(self, server: ScriptedServer) -> ScriptedServer:
        """Add a server, and wait until it is connected. Without a name it gets one of its own."""
        server.name = server.name or f"server{next(self._numbers)}"
        url = f"http://{server.name}.test/mcp"
        settings = ServerSettings(server.name, server.name, "http", url=url)
        self.parts.upstream_registry.add(settings, server)
        self.servers.append(server)
        await self.parts.servers.wait_for_first_starts(timedelta(seconds=30))
        upstream = self.parts.servers.get(server.name)
        assert upstream is not None
        assert upstream.state is ServerLifecycleState.CONNECTED, upstream.state
        return server

    async def remove(self, server: ScriptedServer) -> None:
        """Remove a server, its endpoint and the sessions of its clients there."""
        self.servers.remove(server)
        await self.parts.upstream_registry.remove(server.name, ShutdownReason.OPERATOR_REQUEST)

    async def add_principals(self, *principals: str) -> None:
        """Store each principal with a key, which its clients use from now on."""
        records, now = self.parts.snapshot.records, datetime.now(UTC)
        for principal in principals:
            key = ApiKey("", principal, b"", created_at=now)
            credential, key = mint_key(self.parts.authenticator.pepper, key)
            await records.parties.put(Principal(principal, kind_of(principal)))
            await records.keys.put(key, now)
            self._credentials[principal] = credential
        await self.parts.snapshot.refresh()

    async def grant(self, *sentences: str) -> None:
        """Store grants, and a key for each principal that they name first."""
        grants = [parse_grant(sentence) for sentence in sentences]
        await self.parts.snapshot.records.grants.put(*grants)
        subjects = dict.fromkeys(grant.subject for grant in grants)
        await self.add_principals(*filter(self._is_unknown_principal, subjects))

    async def connect(
        self,
        who: str = OPERATOR,
        *,
        to: ScriptedServer | None = None,
        version: str = LEGACY,
        **capabilities: object,
    ) -> Client:
        """Return a client, at the endpoint of all servers or `to` one."""
        path = "/mcp" if to is None else f"/servers/{to.name}/mcp"
        headers = self._headers_of(who)
        client = Client(self.parts.http_app, path, version, headers, capabilities)
        await client.initialize()
        return client

    def person(self, who: str) -> Person:
        return Person(who, ApiClient(self.parts.http_app, self._headers_of(who)))

    async def api(
        self, method: str, path: str, body: object = None, *, who: str = OPERATOR
    ) -> ApiReply:
        """Send a request to the operator API."""
        return await ApiClient(self.parts.http_app, self._headers_of(who)).request(
            method, path, body
        )

    @property
    def waiting_calls(self) -> int:
        """How many calls wait for an answer of their client."""
        return len(self.parts.parked_calls)

    def is_quiet(self) -> bool:
        """Whether every call, every question and every request to a server is settled."""
        transports = (each for server in self.servers for each in server.open_transports)
        return (
            not self.waiting_calls
            and not len(self.parts.active_calls)
            and not any(_open_requests(transport.listener) for transport in transports)
            and all(not len(session.conversation) for session in self.parts.sessions)
        )

    async def becomes_quiet(self) -> None:
        """Wait until it is quiet. Otherwise the gateway is spoiled, and the test fails."""
        try:
            await happens(self.is_quiet, QUIET_SECONDS)
        except TimeoutError:
            self.is_spoiled = True
            raise AssertionError("calls, questions or requests to servers are left open") from None

    def _is_unknown_principal(self, subject: str) -> bool:
        is_principal = subject != ANY_SUBJECT and not subject.startswith(GROUP_PREFIX)
        return is_principal and subject not in self._credentials

    def _headers_of(self, who: str) -> dict[str, str]:
        known = ", ".join(self._credentials)
        assert who in self._credentials, f"no principal {who!r} was added, only {known}"
        return {"authorization": f"Bearer {self._credentials[who]}"}


def _open_requests(listener: object) -> int:
    """The open requests of a connection, without those that the gateway keeps open itself."""
    assert isinstance(listener, UpstreamConnection)
    requests = listener.conversation.pending_requests
    return len([each for each in requests if not isinstance(each, GatewayCall)])


@asynccontextmanager
async def running_gateway(
    *,
    servers: Iterable[ScriptedServer] = (),
    grants: Sequence[str] = (),
    principals: Iterable[str] = (),
    **settings: object,
) -> AsyncGenerator[TestGateway]:
    """Run a gateway. `settings` are those of the configuration: `limits_call_idle_timeout=…`.

    Whoever a grant names, and each of `principals`, has a key. `operator` has the operator token,
    which a gateway accepts in local mode. At the end every call has to be settled.
    """
    chosen = settings_with(**{**_USUAL_SETTINGS, **settings})
    async with AsyncExitStack() as stack:
        # The composition root opens its store by URL. This one is the same on SQLite without
        # threads: virtual time jumps where it sees nothing at work.
        with patch.object(wiring, "open_store", _open_inline_store):
            assembled = assemble_gateway(chosen, None, _OPERATOR_TOKEN)
            gateway = TestGateway(await stack.enter_async_context(assembled))
        await gateway.add_principals(*principals)
        await gateway.grant(*grants)
        for server in servers:
            await gateway.add(server)
        yield gateway
        if not gateway.is_spoiled:
            await gateway.becomes_quiet()


def _open_inline_store(url: str) -> RecordStores:
    return inline_records()
