"""A server is met before it begins, in both eras, and told what was decided on that very link."""

from dataclasses import replace

import pytest

from comity.kernel.grants import Grants
from comity.kernel.permits import Permits
from comity.kernel.servers import ServerOptions
from comity.rules.access import Access
from comity.rules.permissions import ApprovalPolicy
from comity.rules.policies import OnDenied, ServerPolicy
from comity.wire import mcp
from comity.wire.grants import PERMISSION, Effect, Grant
from comity.wire.lifecycle import State
from tests.kernel.carriers import Params, Script, discovered, hello, params_of, until
from tests.kernel.server_house import options, standing

SAYS: Params = {
    "version": "0.3.0",
    "extensions": ["security"],
    "permissions_required": ["camera"],
    "trust_level": "sandboxed",
}
WAIT, TELL = "mgp/permission/request", "mgp/permission/response"
HEARS: dict[str, object] = {WAIT: {}, TELL: {}}
ASKING = ServerPolicy(approval=ApprovalPolicy.INTERACTIVE)


class Office:
    def __init__(self, policy: ServerPolicy = ASKING) -> None:
        self.grants = Grants(Access.of(()))
        self.permits = Permits(lambda _: policy, self.grants, lambda: self.grants.latest)

    @property
    def options(self) -> ServerOptions:
        plain = options()
        return replace(plain, links=replace(plain.links, meet=self.permits.meet))


EXTENDED = discovered(tools={}, extensions={"dev.comity/mgp": SAYS})


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_server_of_either_era_is_told_to_wait_and_what_was_decided(era: str) -> None:
    script = Script(replies={mcp.INITIALIZE: hello(tools={}, mgp=SAYS), **HEARS})
    if era == "modern":
        replies = {mcp.DISCOVER: EXTENDED, **HEARS}
        script = Script(modern=True, handshake=False, replies=replies)
    office = Office()
    async with standing() as house:
        server = house.add("srv", script, office.options)
        house.servers.start()
        await until(lambda: server.state is State.CONNECTED)
        (carrier,) = [each for each in script.open if each.asked(WAIT)]
        methods = [str(sent.frame.method) for sent in carrier.sent]
        opened = mcp.DISCOVER if era == "modern" else mcp.INITIALIZE
        begins = [mcp.INITIALIZED] if era == "handshake" else []
        assert methods[: 2 + len(begins)] == [opened, WAIT, *begins]
        assert methods.index(WAIT) < methods.index(mcp.LIST_TOOLS)
        assert params_of(carrier.asked(WAIT)[0])["permissions"] == ["camera"]
        assert office.permits.of("srv").trust_level == "sandboxed"
        approved = Grant("server:srv", PERMISSION, "camera", Effect.ALLOW, granted_by="person:ana")
        office.grants.replace(Access.of([approved]))
        office.permits.look()
        await office.permits.settle()
        told = params_of(carrier.asked(TELL)[0])
        assert told["grants"] == {"camera": "approved"}
        assert ("_meta" in told) is (era == "modern")


async def test_a_server_that_does_not_speak_of_security_is_told_nothing() -> None:
    silent = {**SAYS, "extensions": ["lifecycle"]}
    script = Script(replies={mcp.INITIALIZE: hello(tools={}, mgp=silent)})
    office = Office()
    async with standing() as house:
        server = house.add("srv", script, office.options)
        house.servers.start()
        await until(lambda: server.state is State.CONNECTED)
        assert not any(each.asked(WAIT) for each in script.carriers)
    assert list(office.permits.of("srv").decided) == ["camera"]


@pytest.mark.parametrize("modern", [False, True])
async def test_a_rejected_server_never_begins(modern: bool) -> None:
    script = Script(replies={mcp.INITIALIZE: hello(tools={}, mgp=SAYS), **HEARS})
    if modern:
        script = Script(modern=True, handshake=False, replies={mcp.DISCOVER: EXTENDED})
    office = Office(ServerPolicy(ApprovalPolicy.DENY_ALL, on_denied=OnDenied.REJECT))
    async with standing() as house:
        server = house.add("srv", script, office.options)
        house.servers.start()
        await until(server.tried.is_set)
        assert server.state is not State.CONNECTED
        assert "needs what it was not given: camera" in server.reason
        sent = [sent.frame.method for each in script.carriers for sent in each.sent]
        assert mcp.INITIALIZED not in sent
        assert mcp.LIST_TOOLS not in sent
