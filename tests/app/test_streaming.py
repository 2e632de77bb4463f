"""Whoever assembles a gateway has calls streamed, as the settings say."""

import pytest

from comity.kernel.streaming import Streaming
from comity.wire.streaming import CANCEL
from tests.surfaces.upstream import Exchange, scripted
from tests.surfaces.visitor import Frame, at, visiting

PIECES: Frame = {"version": "0.3.0", "extensions": ["streaming"]}


@pytest.mark.parametrize(("wanted", "heard"), [(True, PIECES), (False, None)])
async def test_a_plain_clients_server_is_offered_pieces_only_where_that_is_wanted(
    wanted: bool, heard: Frame | None
) -> None:
    async with scripted() as server:

        @server.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            await exchange.result({"tools": [{"name": "plain", "inputSchema": {"type": "object"}}]})

        async with visiting(at(server.url), stream_for_progress=wanted) as visitor:
            streaming = visitor.parts.caring.streaming
            assert isinstance(streaming, Streaming)
            assert streaming.for_progress is wanted
            assert visitor.parts.everything.methods.takes(CANCEL)
            merged = visitor.other("/mcp")
            await merged.greet()
            await merged.call("up__plain")
        _, of_session = server.of("initialize")
        assert of_session.frame["params"]["capabilities"].get("mgp") == heard
