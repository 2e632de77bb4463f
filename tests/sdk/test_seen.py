"""What was said is known again by its id, for a while and within bounds."""

from comity.rules.kinds import Kind
from comity.sdk.seen import MOST_OF_ONE, Seen
from comity.wire import envelope as wire
from tests.sdk.made import ANA, BOT, ME, WORKER, frame, request


def test_a_request_is_remembered_with_whom_it_was_for() -> None:
    seen = Seen()
    seen.add(wire.decode(request(id="asked", to=[WORKER], correlation_id="proposed")))
    step = seen.get("asked")
    assert step is not None
    assert step == (ANA, (WORKER,), Kind("mcp/request", "tools/call", "write"), "proposed")
    assert step.may_be_answered_by(WORKER)
    assert not step.may_be_answered_by(ME)
    assert seen.get("other") is None


def test_what_was_for_all_may_be_answered_by_anybody() -> None:
    seen = Seen()
    seen.add(wire.decode(request(id="asked")))
    step = seen.get("asked")
    assert step is not None
    assert step.may_be_answered_by(ME)


def test_one_who_says_much_is_forgotten_first() -> None:
    seen = Seen()
    seen.add(wire.decode(request(id="asked")))
    for _ in range(MOST_OF_ONE + 5):
        seen.add(wire.decode(frame("chat", {"text": ""}, BOT)))
    assert len(seen) == MOST_OF_ONE + 1
    assert seen.get("asked") is not None
