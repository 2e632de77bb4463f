"""What a model reads of the answers of the gateway's own tools."""

from comity.rules import tool_words
from comity.wire import tool_discovery
from comity.wire.security import Risk
from comity.wire.tool_discovery import Lacking, Outcome

LABEL = tool_discovery.security(Risk.MODERATE, [], [])
SCHEMA = '{"type":"object","properties":{"path":{"type":"string"}}}'
DEFINITION = (
    '{"name":"files__read","description":"Reads\\n\\n a file","inputSchema":' + SCHEMA + "}"
).encode()
TOOL = tool_discovery.tool(DEFINITION, "files", LABEL, 0.9)
COUNT = {"method": "bytes/4.3", "exact": False}


def test_a_tool_that_was_found_can_be_called_by_what_is_read() -> None:
    said = tool_words.found({"tools": [TOOL], "total_available": 47})
    assert "1 of 47 tools" in said
    assert "1. files__read (score 0.9, risk moderate): Reads a file" in said
    assert SCHEMA in said
    assert "call_tool" in said


def test_what_was_left_out_and_what_stood_in_is_said() -> None:
    said = tool_words.found(
        {
            "tools": [],
            "total_available": 2,
            "omitted": ["files__big"],
            "fallback_strategy": "keyword",
        }
    )
    assert "files__big" in said
    assert "keyword" in said


def test_nothing_found_says_what_to_try() -> None:
    assert "Try other words" in tool_words.found({"tools": [], "total_available": 47})


def test_a_request_says_what_came_of_it_and_which_ask_is_waited_for() -> None:
    bare = tool_discovery.tool(b'{"name":"a__b"}', "a", LABEL)
    waits = Lacking(Outcome.PENDING_APPROVAL, "fly", "air__fly", "air", "an operator decides", "a1")
    said = tool_words.requested(
        {
            "status": Outcome.PARTIAL,
            "tools_loaded": [bare],
            "tools_unavailable": [waits.told(), Lacking("unavailable", "swim").told()],
            "context_tokens_added": 380,
        }
    )
    assert said.startswith("partial: ")
    assert "1. a__b (risk moderate)\n" in said
    assert "Not available: air__fly: an operator decides (ask a1)" in said
    assert "Not available: swim: unavailable" in said
    assert "380 tokens" in said
    assert {*tool_words.NEXT} == {*Outcome}


def test_a_session_says_what_it_holds_and_whether_that_is_an_estimate() -> None:
    result = {"pinned": [], "cached": ["a__b"], "total_tokens": 5, "max_tokens": 8000}
    said = tool_words.session({**result, "token_count": COUNT})
    assert said == "Your tools take about 5 of 8000 tokens.\npinned: none\ncached: a__b"
    exact = {**result, "token_count": {"method": "o200k", "exact": True}, "evicted": ["c__d"]}
    assert tool_words.session(exact).startswith("Your tools take 5 of 8000 tokens.")
    assert tool_words.session(exact).endswith("evicted: c__d")


def test_a_name_that_is_no_text_breaks_nothing() -> None:
    odd = tool_discovery.tool(b'{"name":7,"description":["x"],"inputSchema":{}}', "a", LABEL)
    assert "1.  (risk moderate)" in tool_words.found({"tools": [odd], "total_available": 1})
