"""What is counted of calls: by whom, how they ended, how long they took, and never too many."""

import pytest
from msgspec import UNSET, Raw, UnsetType

from comity.mcp import jsonrpc
from comity.mcp.protocol import CALL_TOOL
from comity.telemetry import metrics
from comity.telemetry.metrics import (
    BOUNDS,
    CallMetrics,
    Histogram,
    MetricFamily,
    ServerCounters,
    Summary,
    outcome_of,
)
from tests.support.cases import loop_over


def calling(name: str, **more: object) -> Raw:
    return jsonrpc.to_raw({"name": name, **more})


def files(*offered: str) -> ServerCounters:
    return CallMetrics(lambda server, tool: server == "files" and tool in offered).at("files")


def tool_of(server: ServerCounters, params: Raw | UnsetType, told: str | None = None) -> str:
    """Where a call with these parameters is counted."""
    return server.add(CALL_TOOL, params, told, "ok", 0.1).tool


def family(counted: CallMetrics, name: str) -> MetricFamily:
    return next(each for each in counted.families() if each.name == name)


def test_a_method_is_counted_by_its_outcome() -> None:
    counted = CallMetrics()
    for outcome in ("ok", "ok", "timeout"):
        counted.at("files").add("tools/list", UNSET, None, outcome, 0.1)
    told = dict(family(counted, "comity_calls_total").samples)
    labels = (("server", "files"), ("method", "tools/list"))
    assert told == {
        (*labels, ("class", "done"), ("outcome", "ok")): 2,
        (*labels, ("class", "failed"), ("outcome", "timeout")): 1,
    }


@loop_over(("seconds", "place"), [(0.0, 0), (0.001, 0), (0.0011, 1), (300, 15), (301, 16)])
def test_a_duration_falls_into_the_first_bucket_that_holds_it(seconds: float, place: int) -> None:
    tally = files().add("ping", UNSET, None, "ok", seconds)
    assert tally.counts == [1 if each == place else 0 for each in range(len(BOUNDS) + 1)]
    assert tally.seconds == seconds


def _method(server: ServerCounters, method: str) -> str:
    return server.add(method, UNSET, None, "ok", 0.1).method


def test_a_method_that_mcp_does_not_know_is_no_label() -> None:
    server = files()
    assert [_method(server, f"made/up{number}") for number in range(3)] == ["other"] * 3
    assert len(server.methods) == 1


def test_a_tool_is_told_apart_only_if_it_is_offered() -> None:
    server = files("read")
    named = [tool_of(server, calling(name)) for name in ("read", "reda", "read", "x")]
    assert named == ["read", "other", "read", "other"]


def test_a_server_that_renames_its_tools_for_ever_fills_its_places_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "MOST_TOOLS", 3)
    server = CallMetrics(lambda server, tool: True).at("files")
    named = [tool_of(server, calling(f"tool-{number}")) for number in range(5)]
    assert named == ["tool-0", "tool-1", "tool-2", "other", "other"]


def test_a_name_behind_or_before_long_arguments_is_found() -> None:
    server = files("read")
    long = "x" * 5000
    assert tool_of(server, calling("read", arguments={"a": long})) == "read"
    behind = jsonrpc.to_raw({"arguments": {"a": long, "name": "other"}, "name": "read"})
    assert tool_of(server, behind) == "read"


@loop_over("params", [b"[]", b'{"name":1}', b"{}", b'"read"', b"null"])
def test_parameters_that_name_no_tool_are_counted_all_the_same(params: bytes) -> None:
    assert tool_of(files("read"), Raw(params)) == "other"


def test_a_call_without_parameters_is_counted_and_one_whose_tool_is_told_needs_none() -> None:
    assert tool_of(files("read"), UNSET) == "other"
    assert tool_of(files("read"), UNSET, "read") == "read"


def test_a_servers_tools_add_up_to_its_calls() -> None:
    counted = CallMetrics(lambda server, tool: True)
    for tool, outcome, seconds in (
        ("read", "ok", 0.002),
        ("write", "ok", 2.0),
        ("write", "tool_error", 3.0),
    ):
        counted.at("files").add(CALL_TOOL, calling(tool), None, outcome, seconds)
    method = (("server", "files"), ("method", CALL_TOOL))
    calls = dict(family(counted, "comity_calls_total").samples)
    assert calls[*method, ("class", "done"), ("outcome", "ok")] == 2
    ((_, spread),) = family(counted, "comity_call_duration_seconds").samples
    assert isinstance(spread, Histogram)
    assert (sum(spread.counts), spread.total) == (3, 5.002)
    by_tool = dict(family(counted, "comity_tool_call_duration_seconds").samples)
    assert by_tool[("server", "files"), ("tool", "write")] == Summary(2, 5.0)
    errors = dict(family(counted, "comity_tool_calls_total").samples)
    failed = (("class", "failed"), ("outcome", "tool_error"))
    assert errors[("server", "files"), ("tool", "write"), *failed] == 1


@loop_over(
    ("result", "outcome"),
    [
        ('{"content":[],"isError":true}', "tool_error"),
        ('{"isError": true ,"content":[]}', "tool_error"),
        ('{"content":[],"isError":false}', "ok"),
        ('{"content":[]}', "ok"),
        ('{"content":[],"structuredContent":{"isError":true}}', "ok"),
        ('{"content":[],"isError":"true"}', "ok"),
        ('{"content":[{"type":"text","text":"\\"isError\\":true"}]}', "ok"),
        ("[]", "ok"),
        ('["isError",true]', "ok"),
    ],
)
def test_a_tools_own_error_is_no_success(result: str, outcome: str) -> None:
    frame = jsonrpc.decode_frame(f'{{"jsonrpc":"2.0","id":1,"result":{result}}}'.encode())
    assert outcome_of(CALL_TOOL, frame, jsonrpc.encode_frame(frame)) == outcome
    assert outcome_of("tools/list", frame, jsonrpc.encode_frame(frame)) == "ok"


def test_a_servers_error_is_an_error() -> None:
    frame = jsonrpc.decode_frame(b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"isError"}}')
    assert outcome_of(CALL_TOOL, frame, jsonrpc.encode_frame(frame)) == "error"
