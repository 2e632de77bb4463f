"""Task ids as clients and servers know them."""

import pytest

from comity.rules import tasks
from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage


def renamed(text: bytes) -> object:
    changed = tasks.rename(jsonrpc.to_raw(jsonrpc.value(text)), lambda name: f"s:{name}")
    return jsonrpc.value(changed)


def test_a_public_id_leads_back_to_its_server() -> None:
    assert tasks.own_task(tasks.public_task("files", "a:b")) == ("files", "a:b")


@pytest.mark.parametrize("public", [None, "", "plain", ":a", "server:"])
def test_an_id_that_was_not_given_out_here_is_refused(public: str | None) -> None:
    with pytest.raises(MalformedMessage):
        tasks.own_task(public)


def test_every_place_that_holds_a_task_id_is_renamed() -> None:
    related = b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"},"kept":1}}'
    assert renamed(b'{"taskId":"t","status":"working"}') == {"taskId": "s:t", "status": "working"}
    assert renamed(b'{"task":{"taskId":"t","ttl":5}}') == {"task": {"taskId": "s:t", "ttl": 5}}
    assert renamed(related) == {
        "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "s:t"}, "kept": 1}
    }


@pytest.mark.parametrize("text", [b"{}", b'{"taskId":7}', b'{"task":"t"}', b'{"_meta":[]}'])
def test_what_holds_no_task_id_stays_as_it_is(text: bytes) -> None:
    assert renamed(text) == jsonrpc.value(text)
