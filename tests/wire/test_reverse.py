"""How requests and notices of a modern server are carried to its host, and answers back."""

import pytest

from comity.wire import jsonrpc, reverse
from comity.wire.errors import METHOD_NOT_FOUND, MalformedMessage
from comity.wire.jsonrpc import UNSET


def carried(kind: str, **said: object) -> jsonrpc.Frame:
    return reverse.carried_in(jsonrpc.notification(kind, said))


def test_a_request_keeps_its_own_id_and_parameters() -> None:
    found = carried(reverse.ASKED, id="q-1", method="push/event", params={"x": [1]})
    assert (found.id, found.method) == ("q-1", "push/event")
    assert found.params is not UNSET
    assert jsonrpc.value(found.params) == {"x": [1]}


def test_a_notice_has_no_id_whatever_it_says() -> None:
    found = carried(reverse.TOLD, id=7, method="featureSets/changed")
    assert found.id is UNSET
    assert found.params is UNSET


@pytest.mark.parametrize(
    "said", [{}, {"method": 7, "id": 1}, {"method": "x"}, {"method": "x", "id": [1]}]
)
def test_what_is_no_request_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage):
        carried(reverse.ASKED, **said)
    with pytest.raises(MalformedMessage):
        reverse.carried_in(jsonrpc.notification(reverse.ASKED))


def test_an_answer_goes_back_with_the_id_it_was_asked_under() -> None:
    well = reverse.response(jsonrpc.result("q-1", {"accepted": True}))
    assert well["id"] == "q-1"
    assert "error" not in well
    failed = reverse.response(jsonrpc.failure(7, METHOD_NOT_FOUND, "no"))
    assert failed["id"] == 7
    assert "result" not in failed
