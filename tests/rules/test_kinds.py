"""What a kind is about, which ones are the gateway's, and when a payload is not what it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules import kinds
from comity.rules.kinds import Kind, is_reserved, mismatch, of_payload, parse

CALL = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "rm"}}
READ = {"jsonrpc": "2.0", "method": "resources/read", "params": {"uri": "file:///a"}}
LIST = {"jsonrpc": "2.0", "method": "tools/list"}


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("chat", Kind("chat")),
        ("chat:a:b", Kind("chat:a:b")),
        ("", Kind("")),
        ("mcp/request", Kind("mcp/request")),
        ("mcp/request:tools/list", Kind("mcp/request", "tools/list")),
        ("mcp/response:tools/call:rm", Kind("mcp/response", "tools/call", "rm")),
        (
            "mcp/proposal:resources/read:file:///a:b",
            Kind("mcp/proposal", "resources/read", "file:///a:b"),
        ),
        ("mcp/request::x", Kind("mcp/request", "", "x")),
        ("MCP/request:tools/list", Kind("MCP/request:tools/list")),
        ("mcp/requests:tools/list", Kind("mcp/requests:tools/list")),
    ],
)
def test_only_the_first_two_colons_part_a_kind(kind: str, parts: Kind) -> None:
    assert parse(kind) == parts


@given(
    st.sampled_from(("mcp/request", "mcp/response", "mcp/proposal")),
    st.text("ab/", min_size=1),
    st.text("ab/:"),
)
def test_a_kind_is_written_as_it_was_read(family: str, method: str, context: str) -> None:
    kind = Kind(family, method, context)
    assert parse(str(kind)) == kind


@pytest.mark.parametrize(
    ("kind", "is_the_gateways"),
    [
        *((each, True) for each in ("system", "presence", "system/", "system/welcome", "system:")),
        *((each, True) for each in ("SYSTEM/error", "Presence", "presence/join", "system//x")),
        *(
            (each, True)
            for each in ("\u017fystem/error", "pre\u017fence", "system/\n", "system:a/b")
        ),
        *((each, False) for each in ("", "chat", "systems", "system.x", "system-x", "presences/x")),
        *((each, False) for each in ("mcp/system/x", "/system/x", " system/x", "syste", "mcp/*")),
    ],
)
def test_system_and_presence_and_all_below_are_reserved(kind: str, is_the_gateways: bool) -> None:
    assert is_reserved(kind) is is_the_gateways


@given(st.text(max_size=12))
def test_what_is_reserved_is_so_in_every_case(kind: str) -> None:
    assert is_reserved(kind.swapcase()) is is_reserved(kind)


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (CALL, "mcp/request:tools/call:rm"),
        (READ, "mcp/request:resources/read:file:///a"),
        ({"method": "prompts/get", "params": {"name": "p"}}, "mcp/request:prompts/get:p"),
        (LIST, "mcp/request:tools/list"),
        ({"method": "tools/list", "params": {"name": "x"}}, "mcp/request:tools/list"),
        ({"method": "tools/call"}, "mcp/request:tools/call"),
        ({"method": "tools/call", "params": ["rm"]}, "mcp/request:tools/call"),
        ({"method": "tools/call", "params": {"name": 7}}, "mcp/request:tools/call"),
        ({"method": "tools/call", "params": {"uri": "rm"}}, "mcp/request:tools/call"),
        ({"method": 7}, "mcp/request"),
        ({}, "mcp/request"),
    ],
)
def test_the_kind_of_a_payload_is_its_method_and_what_it_is_about(
    payload: dict[str, object], kind: str
) -> None:
    assert str(of_payload("mcp/request", payload)) == kind


RESULT: dict[str, object] = {"jsonrpc": "2.0", "id": 1, "result": {}}
ERROR: dict[str, object] = {"jsonrpc": "2.0", "id": 1, "error": {}}
ASKED = Kind("mcp/request", "tools/call", "rm")


@pytest.mark.parametrize(
    ("kind", "payload", "asked", "because"),
    [
        pytest.param("chat", {"text": "hello"}, None, "", id="a chat says nothing about itself"),
        pytest.param("mcp/request:tools/call:rm", CALL, None, "", id="an honest request"),
        pytest.param("mcp/request:tools/call", CALL, None, "", id="without its context"),
        pytest.param(
            "mcp/proposal:tools/call:rm", {**CALL, "jsonrpc": 0}, None, "", id="a proposal"
        ),
        pytest.param(
            "mcp/request:tools/call:ls",
            CALL,
            None,
            "the kind says 'ls', the payload 'rm'",
            id="a lie",
        ),
        pytest.param(
            "mcp/proposal:tools/call:ls",
            CALL,
            None,
            "the kind says 'ls', the payload 'rm'",
            id="in both",
        ),
        pytest.param(
            "mcp/request:tools/list",
            CALL,
            None,
            "the kind says 'tools/list', the payload 'tools/call'",
            id="another method",
        ),
        pytest.param(
            "mcp/request:tools/list:x",
            LIST,
            None,
            "the kind says 'x', the payload ''",
            id="too much",
        ),
        pytest.param("mcp/request", {}, None, "the kind says '', the payload ''", id="no method"),
        pytest.param(
            "mcp/request:tools/list",
            {"method": "tools/list"},
            None,
            "the payload is no JSON-RPC 2.0 message",
            id="no JSON-RPC",
        ),
        pytest.param("mcp/response:tools/call:rm", RESULT, ASKED, "", id="a result"),
        pytest.param("mcp/response:tools/call", ERROR, ASKED, "", id="an error"),
        pytest.param("mcp/response:tools/list", RESULT, None, "", id="of what nobody remembers"),
        pytest.param(
            "mcp/response:tools/call",
            {**RESULT, **ERROR},
            ASKED,
            "a response holds either a result or an error",
            id="both at once",
        ),
        pytest.param(
            "mcp/response:tools/call",
            CALL,
            ASKED,
            "a response holds either a result or an error",
            id="a request as a response",
        ),
        pytest.param(
            "mcp/response:tools/call:ls",
            RESULT,
            ASKED,
            f"it answers {ASKED}, and says that it answers mcp/response:tools/call:ls",
            id="another context",
        ),
        pytest.param(
            "mcp/response:tools/list",
            RESULT,
            ASKED,
            f"it answers {ASKED}, and says that it answers mcp/response:tools/list",
            id="another question",
        ),
    ],
)
def test_a_kind_that_does_not_tell_the_truth_is_found(
    kind: str, payload: dict[str, object], asked: Kind | None, because: str
) -> None:
    assert mismatch(parse(kind), payload, asked) == because


METHODS = st.sampled_from(("tools/call", "tools/list", "resources/read", "prompts/get", "x"))
NAMES = st.text("ab:/", max_size=5)


@given(st.sampled_from(("mcp/request", "mcp/proposal")), METHODS, NAMES, METHODS, NAMES)
def test_a_kind_passes_only_for_the_method_and_context_that_it_names(
    family: str, said: str, about: str, method: str, name: str
) -> None:
    parameter = kinds.CONTEXT_OF.get(method, "other")
    payload = {"jsonrpc": "2.0", "method": method, "params": {parameter: name}}
    context = name if method in kinds.CONTEXT_OF else ""
    is_honest = said == method and about in ("", context)
    assert (mismatch(Kind(family, said, about), payload) == "") is is_honest
