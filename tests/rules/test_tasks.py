"""Task ids as clients and servers know them."""

import pytest

from comity.rules import tasks
from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage


def renamed(text: bytes) -> object:
    changed = tasks.rename(jsonrpc.to_raw(jsonrpc.value(text)), lambda name: f"s:{name}")
    return jsonrpc.value(changed)


NAMES = tasks.TaskNames(b"k" * 32)
MINE = "agent:mine"


@pytest.mark.parametrize("names", [NAMES, tasks.PLAIN_NAMES])
@pytest.mark.parametrize("party", [MINE, ""])
@pytest.mark.parametrize("task", ["t", "a:b", ":", "ключ"])
def test_a_public_id_leads_back_to_its_server(
    names: tasks.TaskNames, party: str, task: str
) -> None:
    assert names.own(party, names.public(party, "files", task)) == ("files", task)


@pytest.mark.parametrize("names", [NAMES, tasks.PLAIN_NAMES])
@pytest.mark.parametrize("public", [None, "", "plain", ":a", "server:", "server::", ":::"])
def test_an_id_that_was_not_given_out_here_is_refused(
    names: tasks.TaskNames, public: str | None
) -> None:
    if names is tasks.PLAIN_NAMES and public == "server::":
        return
    with pytest.raises(MalformedMessage):
        names.own(MINE, public)


@pytest.mark.parametrize(
    "stolen",
    [
        NAMES.public("agent:other", "files", "t"),
        NAMES.public(MINE, "files", "t").replace(":t", ":u"),
        NAMES.public(MINE, "files", "t").replace("files", "other"),
        tasks.TaskNames(b"q" * 32).public(MINE, "files", "t"),
        "files:t",
        "files::t",
        f"files:{'0' * 16}:t",
    ],
)
def test_a_task_of_another_party_is_no_task(stolen: str) -> None:
    with pytest.raises(MalformedMessage, match="no such task"):
        NAMES.own(MINE, stolen)


def test_the_key_of_the_names_is_in_no_repr() -> None:
    assert "kkkk" not in repr(NAMES)


def test_every_place_that_holds_a_task_id_is_renamed() -> None:
    related = b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"},"kept":1}}'
    assert renamed(b'{"taskId":"t","status":"working"}') == {"taskId": "s:t", "status": "working"}
    assert renamed(b'{"task":{"taskId":"t","ttl":5}}') == {"task": {"taskId": "s:t", "ttl": 5}}
    assert renamed(related) == {
        "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "s:t"}, "kept": 1}
    }


@pytest.mark.parametrize(
    "text", [b"{}", b'{"taskId":7}', b'{"task":"t"}', b'{"_meta":[]}', b'{"_meta":{"a":1}}']
)
def test_what_holds_no_task_id_stays_as_it_is(text: bytes) -> None:
    assert renamed(text) == jsonrpc.value(text)


@pytest.mark.parametrize(
    ("execution", "must"),
    [
        ({"taskSupport": "required"}, True),
        ({"taskSupport": "optional"}, False),
        ({"taskSupport": ["required"]}, False),
        ({}, False),
        ([], False),
        ("taskSupport", False),
    ],
)
def test_a_tool_that_runs_only_as_a_task_says_so(execution: object, must: bool) -> None:
    definition = jsonrpc.to_json({"name": "taskSupport", "execution": execution})
    assert tasks.must_be_task(definition) is must
    assert not tasks.must_be_task(b'{"name":"plain"}')


def test_a_call_is_made_a_task_and_is_otherwise_the_same() -> None:
    frame = jsonrpc.request(1, "tools/call", {"name": "t", "arguments": {}})
    asked = tasks.as_task(frame)
    assert jsonrpc.params_of(asked) == {
        **jsonrpc.params_of(frame),
        "task": jsonrpc.to_raw({}),
    }


def test_the_task_that_was_begun_is_named() -> None:
    begun = jsonrpc.result(1, {"task": {"taskId": "t-1", "status": "working"}})
    assert tasks.task_in(begun) == "t-1"


@pytest.mark.parametrize("result", [{"content": []}, {"task": []}, {"task": {"taskId": 7}}, [], {}])
def test_any_other_answer_names_no_task(result: object) -> None:
    assert tasks.task_in(jsonrpc.result(1, result)) is None
    assert tasks.task_in(jsonrpc.failure(1, INVALID_PARAMS, "no")) is None
