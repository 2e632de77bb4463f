"""Whoever assembles a gateway has its servers' questions asked, as the settings say."""

import pytest

from comity.app.questioning import AskedBack
from comity.wire.asks import Kind
from tests.surfaces.upstream import Exchange, scripted
from tests.surfaces.visitor import Frame, at, visiting


@pytest.mark.parametrize(("elicitations", "stand_in"), [("client", False), ("inbox", True)])
async def test_people_stand_in_for_clients_only_where_that_is_wanted(
    elicitations: str, stand_in: bool
) -> None:
    async with (
        scripted() as server,
        visiting(at(server.url), ask_elicitations=elicitations) as visitor,
    ):
        questions = visitor.parts.caring.questions
        assert isinstance(questions, AskedBack)
        assert ("elicitation" in questions.stand_ins) is stand_in
        await visitor.greet()
        reached = visitor.parts.servers.get("up")
        assert reached is not None
        assert reached.reached.pulse.questions is questions


async def test_permissions_are_decided_through_the_inbox() -> None:
    async with scripted() as server, visiting(at(server.url)) as visitor:
        approvals = visitor.parts.asking.approvals
        assert visitor.parts.caring.asked is not None
        assert Kind.PERMISSION in approvals.deeds
        assert Kind.PERMISSION in approvals.scruples


FORMS: Frame = {"form": {}}


@pytest.mark.parametrize(("elicitations", "heard"), [("client", None), ("inbox", FORMS)])
async def test_a_server_over_http_hears_whether_its_clients_can_be_asked(
    elicitations: str, heard: Frame | None
) -> None:
    async with scripted() as server:

        @server.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            await exchange.result({"tools": [{"name": "plain", "inputSchema": {"type": "object"}}]})

        async with visiting(at(server.url), ask_elicitations=elicitations) as visitor:
            merged = visitor.other("/mcp")
            await merged.greet()
            await merged.call("up__plain")
        own, of_session = server.of("initialize")
        assert own.frame["params"]["capabilities"]["elicitation"] == {"form": {}, "url": {}}
        assert of_session.frame["params"]["capabilities"].get("elicitation") == heard
