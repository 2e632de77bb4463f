"""The small MCP client, against a gateway that does what one hardly ever does."""

from datetime import timedelta
from typing import Any

import pytest

from comity.cli.api_client import ApiClient
from comity.cli.mcp_client import CliMcpSession
from comity.errors import Unavailable
from tests.cli.scripted_gateway import JSON, STREAM, Heard, Said, Scripted, event, scripted_gateway
from tests.support.cases import loop_over

type Frame = dict[str, Any]

PATIENCE = timedelta(seconds=30)


def greeted(heard: Heard, otherwise: Said) -> Said:
    """The usual beginning and end of a session, around what is tried."""
    if heard.verb == "DELETE" or (heard.verb == "POST" and "id" not in heard.frame):
        return 202, JSON, b""
    if heard.method == "initialize":
        return heard.result({"protocolVersion": "2025-11-25", "capabilities": {}})
    if heard.verb == "POST" and "method" not in heard.frame:
        return 202, JSON, b""
    return otherwise


def answer(heard: Heard) -> Frame:
    return {"jsonrpc": "2.0", "id": heard.frame.get("id"), "result": {"said": "yes"}}


def called(
    scripted: Scripted, patience: timedelta = PATIENCE
) -> tuple[Frame, list[tuple[str, Frame]]]:
    """The answer to one call, and all that was told before it."""
    told: list[tuple[str, Frame]] = []

    def tell(method: str, params: Frame) -> None:
        told.append((method, params))

    async def decline(_: Frame) -> Frame:
        return {"action": "decline"}

    with CliMcpSession(ApiClient(scripted.url), patience, tell, decline) as talk:
        return talk.request("tools/call", {"name": "x"}), told


def test_an_answer_may_be_one_document_or_a_stream() -> None:
    with scripted_gateway(lambda heard: greeted(heard, heard.result({"said": "yes"}))) as gateway:
        assert called(gateway)[0]["result"] == {"said": "yes"}

    def script(heard: Heard) -> Said:
        progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}
        return greeted(heard, (200, STREAM, event(progress) + event(answer(heard))))

    with scripted_gateway(script) as gateway:
        found, told = called(gateway)
    assert (found["result"], told) == (
        {"said": "yes"},
        [("notifications/progress", {"progress": 1})],
    )


def test_a_session_is_named_in_every_request_and_ended() -> None:
    with scripted_gateway(lambda heard: greeted(heard, heard.result({}))) as gateway:
        called(gateway)
    methods = [each.method or each.verb for each in gateway.heard]
    assert methods == ["initialize", "notifications/initialized", "tools/call", "DELETE"]
    for heard in gateway.heard[1:]:
        named = {name.lower(): value for name, value in heard.headers.items()}
        assert named["mcp-session-id"] == "session"
        assert named["mcp-protocol-version"] == "2025-11-25"


def test_what_a_server_asks_amid_a_call_is_answered() -> None:
    questions = [("ping", 7), ("elicitation/create", "q"), ("sampling/createMessage", 8)]

    def script(heard: Heard) -> Said:
        asked = [
            event({"jsonrpc": "2.0", "id": named, "method": method, "params": {}})
            for method, named in questions
        ]
        return greeted(heard, (200, STREAM, b"".join([*asked, event(answer(heard))])))

    with scripted_gateway(script) as gateway:
        assert "result" in called(gateway)[0]
    answers = {
        each.frame["id"]: each.frame
        for each in gateway.heard
        if each.verb == "POST" and "method" not in each.frame
    }
    assert answers[7]["result"] == {}
    assert answers["q"]["result"] == {"action": "decline"}
    assert answers[8]["error"]["code"] == -32601


def test_a_stream_that_rests_is_taken_up_where_it_was_left() -> None:
    def script(heard: Heard) -> Said:
        if heard.verb == "GET":
            call = gateway.of("tools/call")[0]
            return 200, STREAM, event(answer(call), "2")
        return greeted(heard, (200, STREAM, event(None, "1")))

    with scripted_gateway(script) as gateway:
        assert called(gateway)[0]["result"] == {"said": "yes"}
    (resumed,) = gateway.of("GET")
    assert {name.lower(): value for name, value in resumed.headers.items()}["last-event-id"] == "1"


@loop_over(
    "said",
    [
        (200, STREAM, b""),
        (200, STREAM, b"data: {\n\n"),
        (200, JSON, b"{"),
        (503, JSON, b"{}"),
        (200, STREAM, b"data: " + b"x" * 9_000_000 + b"\n\n"),
    ],
    ids=["nothing", "half", "no json", "refused", "huge"],
)
def test_an_answer_that_is_none_is_told_as_the_gateways_fault(said: Said) -> None:
    with (
        scripted_gateway(lambda heard: greeted(heard, said)) as gateway,
        pytest.raises(Unavailable),
    ):
        called(gateway)


def test_a_call_that_takes_too_long_is_withdrawn() -> None:
    with (
        scripted_gateway(lambda heard: greeted(heard, (200, STREAM, event(None, "1")))) as gateway,
        pytest.raises(TimeoutError),
    ):
        called(gateway, timedelta(seconds=1.5))
    (withdrawn,) = gateway.of("notifications/cancelled")
    assert withdrawn.frame["params"] == {"requestId": gateway.of("tools/call")[0].frame["id"]}
