"""An event tells what its envelope says, and what follows from it."""

from comity.rules.kinds import Kind
from comity.sdk.events import Presence, Request, Response, Said
from comity.wire import envelope as wire
from tests.sdk.made import ANA, BOT, ME, PARAMS, request, response


def test_what_was_said_has_a_sender_a_kind_and_what_it_follows() -> None:
    said = Said(wire.decode(request(id="one", to=[ME], correlation_id="zero")))
    assert (said.id, said.sender, said.to, said.correlation_id) == ("one", ANA, (ME,), "zero")
    assert said.kind == Kind("mcp/request", "tools/call", "write")


def test_a_request_without_an_id_is_a_notification() -> None:
    envelope = wire.decode(request())
    assert Request(envelope, "tools/call", PARAMS).is_notification
    assert not Request(envelope, "tools/call", PARAMS, 0).is_notification
    assert not Request(envelope, "tools/call", PARAMS, "").is_notification


def test_a_response_to_what_nobody_saw_is_an_orphan() -> None:
    envelope = wire.decode(response("never"))
    assert Response(envelope, {}).is_orphan
    assert not Response(envelope, {}, None, Kind("mcp/request", "ping")).is_orphan


def test_who_came_has_come_and_who_went_has_not() -> None:
    assert Presence("join", BOT).has_come
    assert not Presence("leave", BOT).has_come
