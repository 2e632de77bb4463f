"""What is sent is whole, true to its kind, and allowed; or it is not sent."""

from uuid import UUID

import pytest

from comity.rules.capabilities import PROPOSE, RESPOND, Capabilities
from comity.rules.kinds import mismatch, parse
from comity.sdk import writing
from comity.sdk.events import Request
from comity.sdk.writing import Draft
from comity.wire import envelope as wire
from comity.wire.errors import MalformedMessage
from tests.sdk.made import ANA, BOT, ME, PARAMS, request


def test_an_envelope_is_sealed_with_an_id_and_a_moment_of_its_own() -> None:
    one, data = writing.sealed(writing.chat("hello", [ANA, ANA]), ME)
    other, _ = writing.sealed(writing.chat("hello"), ME)
    assert one.id != other.id
    assert UUID(one.id).version == 4
    assert one.ts.endswith("Z")
    assert (one.sender, one.to, other.to) == (ME, (ANA,), ())
    assert wire.decode(data) == one


@pytest.mark.parametrize(
    ("method", "params", "context"),
    [
        ("tools/call", {"name": "write"}, ":write"),
        ("resources/read", {"uri": "file:///srv/a:b"}, ":file:///srv/a:b"),
        ("prompts/get", {"name": "greet"}, ":greet"),
        ("tools/list", {"name": "write"}, ""),
        ("tools/call", {"name": "wríte"}, ""),
        ("tools/call", {"name": "two words"}, ""),
        ("tools/call", {"name": "line\nbreak"}, ""),
        ("tools/call", {"name": "x" * 2_000}, ""),
    ],
)
def test_a_kind_says_what_its_payload_says(
    method: str, params: dict[str, object], context: str
) -> None:
    for draft in (
        writing.request(method, params, 1, ANA),
        writing.proposal(method, params, ANA),
    ):
        assert draft.kind.partition(":")[2] == method + context
        assert mismatch(parse(draft.kind), draft.payload) == ""
        writing.sealed(draft, ME)


def test_a_proposal_refers_to_nothing_and_is_no_json_rpc() -> None:
    made = writing.proposal("tools/call", PARAMS, None)
    assert made.correlation_id == ""
    assert made.payload.keys() == {"method", "params"}


def test_a_response_refers_to_its_request_and_goes_to_the_proposer_too() -> None:
    envelope = wire.decode(request(to=[ME], sender=ANA))
    asked = Request(envelope, "tools/call", PARAMS, 7)
    made = writing.response(asked, {"result": {}}, BOT)
    assert (made.kind, made.correlation_id) == ("mcp/response:tools/call:write", asked.id)
    assert made.to == (ANA, BOT)
    assert made.payload == {"jsonrpc": "2.0", "id": 7, "result": {}}
    assert writing.response(asked, {"result": {}}, ANA).to == (ANA,)


@pytest.mark.parametrize("method", ["", "a:b", "tools/call:write"])
def test_a_method_that_no_kind_can_hold_is_refused(method: str) -> None:
    with pytest.raises(MalformedMessage, match="is no method"):
        writing.request(method, {}, 1, ANA)


@pytest.mark.parametrize(
    "draft",
    [
        Draft("chat", {"text": object()}),
        Draft("chat", {"text": "\ud800"}),
        Draft("chat", {"text": "x" * 2_000_000}),
        Draft("chat", {"text": "x"}, ("",)),
        Draft("chat", {"text": "x"}, ("line\nbreak",)),
        Draft("chat", {"text": "x"}, tuple(map(str, range(2_000)))),
        Draft("chat", {"text": "x"}, (), "x" * 300),
        Draft("two words", {}),
        Draft("", {}),
    ],
)
def test_what_a_gateway_would_not_take_is_not_sent(draft: Draft) -> None:
    with pytest.raises(MalformedMessage):
        writing.sealed(draft, ME)


def test_what_is_not_allowed_is_refused_with_what_to_do() -> None:
    may = Capabilities(PROPOSE)
    refused = writing.why_not("mcp/request:tools/call:write", may, has_later_kinds=False)
    assert isinstance(refused, PermissionError)
    assert "propose it instead" in str(refused)
    neither = writing.why_not("mcp/request:ping", Capabilities(RESPOND), has_later_kinds=False)
    assert "ask an operator" in str(neither)
    assert writing.why_not("mcp/proposal:ping", may, has_later_kinds=False) is None


def test_nothing_lets_us_speak_for_the_gateway() -> None:
    may = Capabilities(("*", "system/*"))
    for kind in ("system/error", "presence", "System"):
        refused = writing.why_not(kind, may, has_later_kinds=True)
        assert isinstance(refused, MalformedMessage)


def test_later_kinds_need_to_be_asked_for() -> None:
    may = Capabilities(("mcp/*",))
    assert isinstance(writing.why_not(wire.REJECT, may, has_later_kinds=False), PermissionError)
    assert writing.why_not(wire.REJECT, may, has_later_kinds=True) is None
