"""Tools of the authoring kit that stream, spoken to directly: no gateway stands in between."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator

import pytest
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, ImageContent

from comity.errors import Misconfigured
from comity.sdk.mgp_negotiation import terms_of
from comity.sdk.streaming import StreamingTools, report_progress, send_chunk
from tests.interop.conftest import command_of
from tests.interop.hand_client import Frame
from tests.interop.processes import http_server
from tests.interop.streaming_signals import SECONDS, Signals, signals
from tests.interop.streaming_talks import CANCEL, CHUNK, PROGRESS, SHARE, talk

ASKS: Frame = {"stream": True}


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    with http_server(lambda port: command_of("writer", str(port))) as origin:
        yield f"{origin}/mcp"


@pytest.fixture(params=["handshake", "modern"])
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def lines() -> AsyncGenerator[Signals]:
    async with signals() as made:
        yield made


@pytest.mark.requirement(
    *("MGP-12.2-declare", "MGP-12.4-chunk", "MGP-12.4-index", "MGP-12.5-final", "MGP-12.5-meta")
)
async def test_a_generator_streams_to_who_agreed_and_asked(url: str, era: str) -> None:
    async with talk(url, era) as client:
        made = await client.call("counts", {"name": "n", "many": 3}, named="mine", _mgp=ASKS)
    pieces = [each["params"] for each in made.said(CHUNK)]
    assert [each["index"] for each in pieces] == [0, 1, 2]
    assert {each["request_id"] for each in pieces} == {"mine"}
    assert pieces[0]["content"] == {"type": "text", "text": "n:0 "}
    assert not any(each["done"] for each in pieces)
    assert made.result["content"] == [{"type": "text", "text": "n:0 n:1 n:2 "}]
    said = made.result["_mgp"]
    assert (said["streamed"], said["chunks_sent"]) == (True, 3)
    assert made.result["_meta"]["dev.comity/mgp"] == said


@pytest.mark.requirement("MGP-12.2-declare", "MGP-12.3-ignore")
async def test_to_others_it_is_a_tool_like_any(url: str, era: str) -> None:
    async with talk(url, era) as client:
        unasked = await client.call("counts", {"name": "n", "many": 2})
    async with talk(url, era, {}) as client:
        plain = await client.call("counts", {"name": "n", "many": 2}, _mgp=ASKS)
        refused = (await client.request(CANCEL, {"request_id": 1})).response
    for made in (unasked, plain):
        assert len(made.frames) == 1
        assert made.result["content"] == [{"type": "text", "text": "n:0 n:1 "}]
        assert "_mgp" not in made.result
    assert refused["error"]["code"] == -32601


@pytest.mark.requirement("MGP-12.7-cancel", "MGP-12.7-cancel-result", "MGP-12.7-partial")
async def test_a_cancelled_tool_ends_and_both_requests_have_what_came(
    url: str, era: str, lines: Signals
) -> None:
    heard, arguments = asyncio.Event(), {"name": "a", "port": lines.port}

    async def hear(frame: Frame) -> None:
        heard.set()

    async with talk(url, era) as client:
        calling = asyncio.create_task(
            client.call("speaks", arguments, named="mine", meanwhile=hear, _mgp=ASKS)
        )
        async with asyncio.timeout(SECONDS):
            await heard.wait()
        await lines.when("a", "waits")
        cancelled = await client.cancel("mine")
        await lines.when("a", "cancelled")
        so_far = [{"type": "text", "text": "The first words, "}]
        assert cancelled["partial_result"] == {"content": so_far}
        answer = (await calling).result
        assert answer["content"] == so_far
        assert (answer["_mgp"]["cancelled"], answer["_mgp"]["chunks_sent"]) == (True, 1)
        again = await client.cancel("mine")
        assert (again["cancelled"], again["reason"]) == (False, "not_active")
        wrong = (await client.request(CANCEL, {})).response
    assert wrong["error"]["code"] == -32602


@pytest.mark.requirement("MGP-12.6-progress")
async def test_a_tool_says_how_far_it_is_in_the_words_of_its_client(
    url: str, era: str, lines: Signals
) -> None:
    told: list[Frame] = []
    cases: list[tuple[str, Frame]] = [
        ("m", {"mgp": {"version": "0.3.0", "extensions": ["streaming"]}}),
        ("p", {}),
    ]
    for name, capabilities in cases:
        async with talk(url, era, capabilities) as client:
            given = {"name": name, "port": lines.port}
            calling = asyncio.create_task(client.call("works", given, _meta={"progressToken": 9}))
            await lines.when(name, "waits")
            lines.go(name)
            told += (await calling).frames[:-1]
    assert [each["method"] for each in told] == [SHARE, PROGRESS]
    assert told[0]["params"]["estimated_remaining_ms"] == 300
    assert told[1]["params"] == {
        "progressToken": 9,
        "progress": 0.25,
        "total": 1.0,
        "message": "a quarter",
    }


async def test_pieces_of_other_kinds_stand_between_texts() -> None:
    server = MCPServer("painter")
    picture = ImageContent(type="image", data="", mime_type="image/png")

    @StreamingTools(server).tool(name="paint")
    async def paint_slowly() -> AsyncIterator[str | ImageContent]:
        """Paints."""
        yield "first "
        yield "this: "
        yield picture
        yield "done"

    result = await server.call_tool("paint", {})
    assert isinstance(result, CallToolResult)
    assert [getattr(block, "text", "image") for block in result.content] == [
        "first this: ",
        "image",
        "done",
    ]
    assert [tool.name for tool in await server.list_tools()] == ["paint"]
    assert paint_slowly.__name__ == "paint_slowly"


def test_only_a_generator_of_an_mcpserver_can_be_made_a_streaming_tool() -> None:
    async def plain() -> str:
        return ""

    with pytest.raises(Misconfigured):
        StreamingTools(MCPServer("m")).tool()(plain)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(Misconfigured):
        StreamingTools(Server("s")).tool()


async def test_outside_of_a_call_nobody_hears_anything() -> None:
    await send_chunk("a piece")
    await report_progress(0.5)


def test_a_server_has_one_set_of_terms() -> None:
    server = MCPServer("m")
    assert terms_of(server) is terms_of(server)
