"""Which era a request is of, and what is said to a modern one that is not in order, in order."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.rules.envelopes import Refusal, envelope_of, era_of, refuse_envelope
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    UNSUPPORTED_VERSION,
    Fault,
)
from comity.wire.jsonrpc import Frame
from comity.wire.mcp import Era

META: dict[str, object] = {mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN, mcp.CLIENT_CAPABILITIES: {}}
CALL = "tools/call"


def asked(method: str = CALL, meta: object = META, **params: object) -> Frame:
    return jsonrpc.request(1, method, {**params, "_meta": meta})


def headers(
    method: str = CALL, version: str = mcp.LATEST_MODERN, name: bytes | None = b"add"
) -> dict[bytes, bytes]:
    found = {mcp.VERSION_HEADER: version.encode(), mcp.METHOD_HEADER: method.encode()}
    return found if name is None else {**found, mcp.NAME_HEADER: name}


def fault_of(refusal: Refusal | None) -> Fault | None:
    return None if refusal is None else refusal.fault


@pytest.mark.parametrize(
    ("header", "era"),
    [
        (None, Era.HANDSHAKE),
        *((version.encode(), Era.HANDSHAKE) for version in mcp.HANDSHAKE_VERSIONS),
        (b"2026-07-28", Era.MODERN),
        (b"2031-01-01", Era.MODERN),
        (b"", Era.MODERN),
        (b"2025-11-25 ", Era.MODERN),
    ],
)
def test_the_version_header_tells_the_eras_apart(header: bytes | None, era: Era) -> None:
    assert era_of(header) is era


def test_an_envelope_is_found_only_where_it_names_a_version() -> None:
    assert envelope_of(asked()) is not None
    assert envelope_of(asked(meta={"progressToken": 1})) is None
    assert envelope_of(jsonrpc.request(1, CALL)) is None
    assert envelope_of(jsonrpc.request(1, CALL, {})) is None


def test_a_request_in_order_is_not_refused() -> None:
    assert refuse_envelope(asked(name="add"), headers()) is None
    assert refuse_envelope(asked(name="add"), None) is None


@pytest.mark.parametrize("missing", sorted(META))
def test_a_request_without_its_envelope_is_told_what_is_missing(missing: str) -> None:
    refusal = refuse_envelope(asked(meta={k: v for k, v in META.items() if k != missing}), None)
    assert refusal is not None
    assert refusal.fault is INVALID_PARAMS
    assert missing in refusal.because


@pytest.mark.parametrize(
    "raw",
    [b"[]", b'{"_meta":1}', b'{"_meta":{"a":1,"a":1}}', b'{"_meta":{},"_meta":{}}'],
    ids=["a list", "a number", "a key twice", "two of them"],
)
def test_parameters_that_cannot_be_read_are_refused(raw: bytes) -> None:
    frame = Frame("2.0", 1, CALL, Raw(raw))
    assert fault_of(refuse_envelope(frame, headers())) is INVALID_PARAMS


def test_an_envelope_comes_first_then_the_headers_then_the_version() -> None:
    old = {**META, mcp.PROTOCOL_VERSION: "2031-01-01"}
    wrong_method = headers(method="tools/list", version="2031-01-01")
    assert fault_of(refuse_envelope(asked(meta={}), wrong_method)) is INVALID_PARAMS
    assert fault_of(refuse_envelope(asked(meta=old, name="add"), wrong_method)) is HEADER_MISMATCH
    agreeing = headers(version="2031-01-01")
    assert fault_of(refuse_envelope(asked(meta=old, name="add"), agreeing)) is UNSUPPORTED_VERSION


def test_a_version_nobody_speaks_is_answered_with_those_that_are() -> None:
    refusal = refuse_envelope(asked(meta={**META, mcp.PROTOCOL_VERSION: "v" * 500}), None)
    assert refusal is not None
    assert refusal.data == {"supported": ["2026-07-28"], "requested": "v" * 64}


@pytest.mark.parametrize("version", [1, None, ["2026-07-28"], {"a": 1}])
def test_a_version_that_is_no_string_is_refused(version: object) -> None:
    frame = asked(meta={**META, mcp.PROTOCOL_VERSION: version})
    assert fault_of(refuse_envelope(frame, None)) is INVALID_PARAMS
    assert fault_of(refuse_envelope(frame, headers())) is HEADER_MISMATCH


@pytest.mark.parametrize(
    ("said", "frame"),
    [
        (headers(version="2025-11-25"), asked(name="add")),
        (headers(method="tools/list"), asked(name="add")),
        (headers(method="TOOLS/CALL"), asked(name="add")),
        (headers(name=b"sub"), asked(name="add")),
        (headers(name=None), asked(name="add")),
        (headers(name=b"Add"), asked(name="add")),
        (headers(name=b"=?base64?YWRk"), asked(name="add")),
        (headers(name=b"=?base64?Y?="), asked(name=5)),
        (headers(name=b"5"), asked(name=5)),
        (headers("resources/read", name=b"file:///a"), asked("resources/read", uri="file:///b")),
        ({}, asked(name="add")),
    ],
)
def test_a_header_that_contradicts_the_body_is_refused(
    said: dict[bytes, bytes], frame: Frame
) -> None:
    assert fault_of(refuse_envelope(frame, said)) is HEADER_MISMATCH


def test_white_space_around_a_header_says_nothing() -> None:
    spaced = {name: b" " + value + b"\t" for name, value in headers().items()}
    assert refuse_envelope(asked(name="add"), spaced) is None


def test_a_name_in_base64_is_compared_by_what_it_says() -> None:
    wrapped = b"=?base64?" + base64.b64encode("größe".encode()) + b"?="
    assert refuse_envelope(asked(name="größe"), headers(name=wrapped)) is None
    assert fault_of(refuse_envelope(asked(name="grösse"), headers(name=wrapped))) is HEADER_MISMATCH


def test_a_name_the_body_does_not_have_is_the_servers_to_refuse() -> None:
    assert refuse_envelope(asked(), headers(name=None)) is None
    assert refuse_envelope(asked("tools/list"), headers("tools/list", name=None)) is None


def test_a_huge_envelope_is_read_like_any_other() -> None:
    huge = asked(meta={**META, "x": "y" * 10_000}, name="add")
    assert refuse_envelope(huge, headers()) is None
    assert fault_of(refuse_envelope(asked(meta={"x": "y" * 10_000}), None)) is INVALID_PARAMS


@given(
    st.dictionaries(st.sampled_from([*headers(), b"x"]), st.binary(max_size=12)),
    st.binary(max_size=30),
    st.booleans(),
)
def test_whatever_a_client_sends_it_is_answered(
    said: dict[bytes, bytes], raw: bytes, in_name: bool
) -> None:
    params = b'{"_meta":%b,"name":%b}' % (jsonrpc.to_json(META), raw) if in_name else raw
    refuse_envelope(Frame("2.0", 1, CALL, Raw(params)), {**headers(), **said})
