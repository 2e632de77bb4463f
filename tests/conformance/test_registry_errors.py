"""The registry's error table through its face: numbers, fields, statuses, and its timeouts."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from comity.app.settings import Settings
from tests.conformance.conftest import standing
from tests.conformance.registry_face import JSON, Face, Said, functions
from tests.conformance.ways import on_pipes

DOCUMENTATION = "https://docs.example.org/comity"
SETTINGS = f"""
[registry]
documentation_url = "{DOCUMENTATION}"

[[forbid]]
subject = "*"
verb = "tools/call"
target = "reg/echo"
"""
HASTY = """
[registry]
tool_timeout = "300ms"
discovery_timeout = "1ms"
"""
CROWDED = """
[registry]
queue_timeout = "20ms"
calls_per_server = 1
tool_timeout = "10m"
"""
ATTEMPTS = 200


@pytest.fixture(scope="module")
def face(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    servers = {"reg": functions(), "near": on_pipes("talker", TALKER_NAME="near")}
    with standing(tmp_path_factory.mktemp("errors"), servers, SETTINGS) as house:
        yield Face(house.origin)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    """A gateway that has hardly any time, before tools that take all of it, and many of them."""
    many = on_pipes("talker", TALKER_NAME="many", TALKER_MANY="1200")
    servers = {"reg": functions(), "many": many}
    with standing(tmp_path_factory.mktemp("hasty"), servers, HASTY) as house:
        yield Face(house.origin)


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Face]:
    """A gateway that has one place at each server."""
    with standing(tmp_path, {"reg": functions()}, CROWDED) as house:
        yield Face(house.origin)


def spoken(face: Face, body: bytes) -> Said:
    return face.ask("POST", "/tools", body, JSON)


def rpc(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 7, **members}).encode()


def called(**params: object) -> bytes:
    return rpc(method="tools/call", params=params)


BAD = {"harbour": "no harbour", "days": 90}
BAD_CALL: dict[str, object] = {"name": "reg__TideForecast", "arguments": BAD}
TABLE = [
    pytest.param(b"{", -32700, "ParseError", 400, id="REG-err-32700"),
    pytest.param(b"[]", -32600, "InvalidRequest", 400, id="REG-err-32600"),
    pytest.param(rpc(method="tools/drop"), -32601, "MethodNotFound", 400, id="REG-err-32601"),
    pytest.param(
        rpc(method="tools/call", params={"name": 7}),
        -32602,
        "InvalidParams",
        400,
        id="REG-err-32602",
    ),
    pytest.param(
        rpc(method="tools/call", params=BAD_CALL),
        -32001,
        "ValidationError",
        400,
        id="REG-err-32001",
    ),
    pytest.param(called(name="reg__none"), -32002, "ToolNotFound", 404, id="REG-err-32002"),
    pytest.param(called(name="reg__crash"), -32003, "ToolExecution", 502, id="REG-err-32003"),
    pytest.param(called(name="reg__echo"), -32005, "AuthorizationError", 403, id="REG-err-32005"),
]


@pytest.mark.requirement(
    "REG-err-shape",
    "REG-err-32700",
    "REG-err-32600",
    "REG-err-32601",
    "REG-err-32602",
    "REG-err-32001",
    "REG-err-32002",
    "REG-err-32003",
    "REG-err-32005",
    "REG-err-error_type",
    "REG-err-reason",
    "REG-err-trace_id",
    "REG-err-suggestions",
    "REG-err-docurl",
)
@pytest.mark.parametrize(("body", "code", "kind", "status"), TABLE)
def test_an_error_has_its_number_its_name_its_fields_and_its_status(
    face: Face, body: bytes, code: int, kind: str, status: int
) -> None:
    said = spoken(face, body)
    assert (said.status, said.error["code"]) == (status, code)
    data = said.data
    assert data["error_type"] == kind
    assert data["reason"] == said.error["message"]
    assert len(data["trace_id"]) == 32
    assert data["suggestions"]
    assert all(isinstance(each, str) for each in data["suggestions"])
    assert data["retryable"] is False
    if code not in (-32700, -32600, -32601):
        # These are refused before anybody knows what they would have been.
        assert data["documentation_url"].startswith(f"{DOCUMENTATION}/reference/errors/#")


@pytest.mark.requirement("REG-err-32001", "REG-err-field", "REG-openapi-400")
def test_what_does_not_fit_a_schema_is_told_by_its_field(face: Face) -> None:
    said = face.call("reg__TideForecast", BAD)
    assert (said.status, said.error["code"]) == (400, -32001)
    assert "harbour" in said.data["field"]
    assert said.data["suggestions"]


@pytest.mark.requirement("REG-ex-suggestions")
@pytest.mark.parametrize("symbol", ["no harbour", ""])
def test_a_name_that_does_not_fit_is_answered_with_how_to_write_one(
    face: Face, symbol: str
) -> None:
    data = face.call("reg__TideForecast", {**BAD, "harbour": symbol}).data
    assert data["field"] == "harbour"
    length = "Give at most 5 characters." if symbol else "Give at least 1 character."
    pattern = 'Give a text that matches "^[A-Z]{1,5}$".'
    assert sorted(data["suggestions"]) == sorted([pattern, length])
    assert "no harbour" not in json.dumps(data)


GOOD = {"harbour": "BREST", "days": 90}


@pytest.mark.requirement("REG-p4-validators", "REG-core-constraints")
@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({**GOOD, "harbour": ""}, "harbour"),
        ({**GOOD, "harbour": "ABCDEF"}, "harbour"),
        ({**GOOD, "harbour": "brest"}, "harbour"),
        ({**GOOD, "harbour": 7}, "harbour"),
        ({**GOOD, "days": 0}, "days"),
        ({**GOOD, "days": 366}, "days"),
        ({**GOOD, "days": 1.5}, "days"),
        ({**GOOD, "datum": "astrology"}, "datum"),
        ({"days": 90}, "harbour"),
        ({**GOOD, "other": 1}, "other"),
    ],
)
def test_every_constraint_of_a_field_holds_beside_the_others(
    face: Face, arguments: dict[str, object], field: str
) -> None:
    assert face.call("reg__TideForecast", GOOD).status == 200
    said = face.call("reg__TideForecast", arguments)
    assert (said.status, said.error["code"]) == (400, -32001)
    assert field in json.dumps(said.data)


@pytest.mark.requirement("REG-err-32004")
def test_whoever_is_not_known_is_told_so(face: Face) -> None:
    said = face.ask("GET", "/tools", headers={"authorization": "Bearer nonsense"})
    assert (said.status, said.error["code"]) == (401, -32004)
    assert said.data["error_type"] == "AuthenticationError"
    assert said.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.requirement("REG-err-32002", "REG-openapi-404")
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_tool_that_does_not_exist_is_not_found(face: Face, method: str) -> None:
    body = b"{}" if method == "POST" else None
    said = face.ask(method, "/tools/reg__none", body, JSON)
    assert (said.status, said.error["code"]) == (404, -32002)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/tools/reg__wait", b"", JSON, 400),
        ("POST", "/tools/reg__wait", b"[1]", JSON, 400),
        ("POST", "/tools/reg__wait", b'{"a":1,"a":2}', JSON, 400),
        ("POST", "/tools/reg__wait", b'{},"name":"reg__crash"', JSON, 400),
        ("POST", "/tools/reg__wait", b"{}", {"content-type": "text/plain"}, 415),
        ("POST", "/tools/reg__wait/other", b"{}", JSON, 404),
        ("GET", "/tools/", None, {}, 404),
        ("GET", "/resources/read", None, {}, 400),
        ("GET", "/tools?cursor=nonsense", None, {}, 400),
        ("GET", "/tools?server=a&server=b", None, {}, 400),
        (
            "POST",
            "/tools",
            rpc(method="tools/list", auth={"type": "bearer", "token": "x"}),
            JSON,
            400,
        ),
    ],
)
def test_what_is_misshapen_is_refused_in_the_registrys_words(
    face: Face, method: str, path: str, body: bytes | None, headers: Any, status: int
) -> None:
    said = face.ask(method, path, body, headers)
    assert said.status == status
    assert said.data["error_type"] in ("ParseError", "InvalidRequest", "InvalidParams")
    assert said.data["retryable"] is False


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/tools", "GET, HEAD, POST"),
        ("PUT", "/tools/reg__wait", "GET, HEAD, POST"),
        ("GET", "/tools/reg__wait/validate", "POST"),
        ("POST", "/openapi.json", "GET, HEAD"),
        ("PATCH", "/resources", "GET, HEAD"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_told(
    face: Face, method: str, path: str, allowed: str
) -> None:
    said = face.ask(method, path, b"{}", JSON)
    assert (said.status, said.headers["allow"]) == (405, allowed)


@pytest.mark.requirement(
    "REG-timeouts",
    "REG-timeouts-tool",
    "REG-timeouts-enforce",
    "REG-timeouts-response",
    "REG-err-32003",
)
def test_a_tool_that_takes_too_long_is_a_timeout_that_says_how_long(hasty: Face) -> None:
    said = hasty.call("reg__wait", {})
    assert (said.status, said.error["code"]) == (504, -32003)
    data = said.data
    assert (data["error_type"], data["tool_name"]) == ("ToolTimeout", "wait")
    assert data["timeout_ms"] == 300
    assert data["suggestions"]
    assert len(data["trace_id"]) == 32


@pytest.mark.requirement("REG-timeouts-discovery")
def test_telling_of_a_thousand_tools_in_a_millisecond_is_too_much(hasty: Face) -> None:
    said = hasty.get("/openapi.json?server=many")
    assert (said.status, said.data["timeout_ms"]) == (504, 1)


@pytest.mark.requirement("REG-timeouts-lock", "REG-err-32603")
def test_whoever_waits_too_long_for_a_place_is_told_when_to_come_again(crowded: Face) -> None:
    with closing(http.client.HTTPConnection(urlsplit(crowded.origin).netloc, timeout=60)) as first:
        first.request("POST", "/tools/reg__wait", b"{}", JSON)
        # From some moment on the first has the only place, and keeps it.
        said = next(each for each in calls(crowded) if each.status == 503)
    assert (said.error["code"], said.data["retryable"]) == (-32603, True)
    assert said.data["error_type"] == "InternalError"
    assert int(said.headers["retry-after"]) >= 1
    assert "places at server 'reg' are taken" in said.data["reason"]
    # With its reader the first call has gone, and its place is free.
    assert next(each for each in calls(crowded) if each.status == 502).error["code"] == -32003


def calls(face: Face) -> Iterator[Said]:
    for _ in range(ATTEMPTS):
        yield face.call("reg__crash", {})


@pytest.mark.requirement(
    "REG-timeouts-tool",
    "REG-timeouts-validation",
    "REG-timeouts-discovery",
    "REG-timeouts-lock",
)
def test_the_four_timeouts_are_what_the_document_says_unless_they_are_set() -> None:
    unset = Settings()
    assert unset.registry.tool_timeout == timedelta(seconds=30)
    assert unset.registry.validation_timeout == timedelta(seconds=5)
    assert unset.registry.discovery_timeout == timedelta(seconds=2)
    assert unset.registry.queue_timeout == timedelta(milliseconds=500)
