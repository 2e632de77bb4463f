"""`[approvals]`: how long calls are held for a decision."""

from datetime import timedelta

import pytest

from comity.approvals.settings import ApprovalSettings, ClientWait
from comity.mcp import jsonrpc, protocol
from tests.support.asking import AGENT, asking
from tests.support.cases import loop_over
from tests.support.refused import kind_of

SECOND = timedelta(seconds=1)


@loop_over(
    ("settings", "name", "wait"),
    [
        (ApprovalSettings(), "cursor", 45 * SECOND),
        # Less than the five seconds after which the OpenAI Agents SDK gives up.
        (ApprovalSettings(), "mcp", 4 * SECOND),
        (ApprovalSettings(client_wait=SECOND), "mcp", SECOND),
        (ApprovalSettings(clients=(ClientWait("mcp", 30 * SECOND),)), "mcp", 30 * SECOND),
        (ApprovalSettings(clients=(ClientWait("cursor", SECOND),)), "cursor", SECOND),
        (ApprovalSettings(clients=(ClientWait("cursor", SECOND),)), "claude-code", 45 * SECOND),
    ],
)
def test_a_call_is_held_for_less_than_the_limit_of_its_client(
    settings: ApprovalSettings, name: str, wait: timedelta
) -> None:
    assert settings.wait_for_client(name) == wait


HELLO: dict[str, object] = {"protocolVersion": protocol.LATEST_HANDSHAKE, "capabilities": {}}


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
async def test_a_client_is_known_by_the_name_that_it_gives_itself(modern: bool) -> None:
    """Every other client of this gateway is held for an hour."""
    hasty = ClientWait("hasty", timedelta(milliseconds=1))
    async with asking(options=ApprovalSettings(client_wait=3600 * SECOND, clients=(hasty,))) as bed:
        info = {"name": "hasty", "version": "1"}
        if modern:
            call = bed.call_modern(meta={protocol.CLIENT_INFO: info})
        else:
            session = bed.front.sessions.begin("", AGENT.party, actor=AGENT)
            hello = {**HELLO, "clientInfo": info}
            await bed.front.ask(session, protocol.INITIALIZE, hello, AGENT).result()
            greeted = jsonrpc.make_notification(protocol.INITIALIZED)
            bed.front.desk.handle_message(session, greeted, AGENT)
            call = bed.call(session)
        assert kind_of(await call.error()) == "pending_approval"
        assert (await bed.open_ask()).about["client"] == "hasty 1"
