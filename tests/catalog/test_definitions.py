"""Definitions of tools: digest, differences, suspicions, look-alike names and review state."""

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.catalog import definitions
from comity.catalog.definitions import (
    MAX_DEFINITION_BYTES,
    MAX_DIFFERENCE_LENGTH,
    MAX_DIFFERENCES,
    MAX_FINDINGS,
    UNLISTED_DEFINITION,
    AcceptedDefinition,
    DefinitionAnalysis,
    DefinitionSuspicion,
    LookalikeIndex,
    ReviewState,
    SuspicionKind,
    canonical_definition,
    definition_digest,
    definition_findings,
    examine_definition,
    has_same_meaning,
    hidden_characters,
    list_differences,
    name_finding,
    name_skeleton,
    normalized_name,
    refusal_for,
    reveal_hidden,
    state_of,
)
from comity.errors import PERMISSION_DENIED, POLICY_UNKNOWN, TOOL_DISABLED, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.actors import GATEWAY
from comity.policy.risk import (
    DefinitionPolicy,
    PermissionDecision,
    PermissionOutcome,
    Risk,
    ServerPolicy,
    SuspicionPolicy,
    ToolHints,
    ToolPolicy,
)
from comity.toolkit.text import is_hidden
from tests.support.cases import loop_over

type Json = Any

JSON: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)
TABLE = st.dictionaries(st.text(max_size=3), JSON, max_size=4)


def canonical(text: str | Json) -> bytes:
    raw = text if isinstance(text, str) else json.dumps(text)
    return canonical_definition(jsonrpc.decode_members(raw.encode()), "tool")


@loop_over(
    ("one", "other"),
    [
        ('{"a": 1, "b": {"c": 2, "d": 3}}', '{"b":{"d":3,"c":2},"a":1}'),
        ('{"a": 1.0}', '{"a": 1}'),
        ('{"a": 1e2}', '{"a": 100}'),
        ('{"a": -0.0}', '{"a": 0}'),
        ('{"a": 0.10}', '{"a": 0.1}'),
        ('{"a": "\\u0041"}', '{"a": "A"}'),
        ('{"\\u0061": [ ]}', '{"a":[]}'),
    ],
)
def test_what_means_the_same_is_the_same(one: str, other: str) -> None:
    assert canonical(one) == canonical(other)
    assert list_differences(canonical(one), canonical(other)) == []


@loop_over("text", ['{"a": {"b": 1, "b": 2}}', '{"a": [{"b": 1, "\\u0062": 1}]}'])
def test_a_key_that_stands_twice_is_no_definition(text: str) -> None:
    with pytest.raises(MalformedMessage):
        canonical(text)


@given(TABLE, TABLE)
def test_two_definitions_are_equal_when_they_have_no_difference(one: Json, other: Json) -> None:
    first, second = canonical(one), canonical(other)
    told = list_differences(first, second)
    assert (
        (definition_digest(first) == definition_digest(second)) == (first == second) == (not told)
    )
    assert canonical(dict(reversed(list(one.items())))) == first, "the order of keys is no matter"


@loop_over(
    ("before", "after", "told"),
    [
        ({"a": 1}, {"a": 2}, "/a was 1 and is 2"),
        ({"a": 1}, {"a": True}, "/a was 1 and is true"),
        ({}, {"x/y~": "new"}, '/x~1y~0 is new: "new"'),
        ({"l": [1, 2]}, {"l": [1]}, "/l/1 is gone: 2"),
        ({"l": [1]}, {"l": {"0": 1}}, '/l was [1] and is {"0": 1}'),
        ({"d": "go"}, {"d": "go\u200b"}, r'/d was "go" and is "go\u{200b}"'),
        ({"d": "copy"}, {"d": "co\u0440y"}, r'/d was "copy" and is "co\u0440y"'),
        ({"d": "caf\u00e9"}, {"d": "cafe\u0301"}, r'/d was "caf\u00e9" and is "cafe\u0301"'),
        ({"d": "\u4e16"}, {"d": "\u754c"}, '/d was "\u4e16" and is "\u754c"'),
    ],
)
def test_a_difference_can_be_read(before: Json, after: Json, told: str) -> None:
    assert [str(each) for each in list_differences(canonical(before), canonical(after))] == [told]


def test_there_is_an_end_to_what_is_told() -> None:
    many = {str(number): number for number in range(MAX_DIFFERENCES + 50)}
    told = list_differences(canonical({}), canonical(many))
    assert len(told) == MAX_DIFFERENCES + 1
    assert "more differences" in str(told[-1])
    (long,) = list_differences(canonical({"a": ""}), canonical({"a": "x" * 100_000}))
    assert long.after is not None
    assert len(long.after) < MAX_DIFFERENCE_LENGTH + 50


SUSPICIOUS_TOOL = {
    "description": "x\u200b",
    "inputSchema": {"a/b": [{"t~\u202e": "y"}, 1, None, "z\x07"]},
}


def test_what_is_hidden_is_found_at_every_place_of_a_definition() -> None:
    found = {
        (each.kind, each.location): each.description
        for each in definition_findings(SUSPICIOUS_TOOL)
    }
    assert found == {
        (SuspicionKind.HIDDEN, "/description"): r"1 of them: \u{200b}",
        (SuspicionKind.HIDDEN, r"/inputSchema/a~1b/0/t~0\u{202e}"): r"1 of them: \u{202e}",
        (SuspicionKind.HIDDEN, "/inputSchema/a~1b/3"): r"1 of them: \u{7}",
    }


def test_not_every_finding_is_told() -> None:
    assert len(definition_findings({str(n): "\u200b" for n in range(100)})) == MAX_FINDINGS


@given(st.text(string.printable.replace("\x0b", "").replace("\x0c", "") + "\u00a0"))
def test_plain_text_hides_nothing(text: str) -> None:
    assert hidden_characters(text) == ""
    assert reveal_hidden(text) == text


@given(st.text())
def test_a_revealed_text_hides_nothing(text: str) -> None:
    shown = reveal_hidden(text)
    assert shown == text or not any(map(is_hidden, shown))


@given(st.text(min_size=1), st.sampled_from("\u200b\u202e\x00\U000e0041\u00ad\ue000\ud800"))
def test_a_hidden_character_is_found_in_any_text(text: str, hidden: str) -> None:
    assert hidden in hidden_characters(text + hidden + text)


@loop_over(
    ("name", "because"),
    [
        ("read\u200b", r"hidden characters: 'read\\\\u{200b}'"),
        (" read", "hidden characters"),
        ("a" * 257, "257 characters"),
        ("read_*", "a pattern"),
        ("../read", "a path"),
        ("mgp.tools", "the gateway's own"),
        ("\uff52ead", "dressed up"),
        ("re\u0430d", "letters of CYRILLIC and LATIN"),
    ],
)
def test_an_odd_name_is_told_by_what_is_odd(name: str, because: str) -> None:
    found = name_finding(name)
    assert found is not None
    assert found.kind is SuspicionKind.NAME
    assert because.replace("\\\\", "\\") in found.description


NAME = st.text("abil10O_-.", min_size=1, max_size=6)


def test_whoever_was_accepted_first_keeps_the_name() -> None:
    names = LookalikeIndex()
    names.add("files", "delete", 1)
    names.add("rogue", "de1ete", 2)
    assert names.find_older("rogue", "de1ete") == ("files", "delete")
    assert names.find_older("files", "delete") is None
    names.remove("files", "delete")
    assert names.find_older("rogue", "de1ete") is None
    names.add("files", "delete", 3)
    assert names.find_older("files", "delete") == ("rogue", "de1ete")


def test_of_two_that_came_together_the_plainer_name_stays() -> None:
    names = LookalikeIndex()
    for server, name in (("a", "de1ete"), ("b", "delete")):
        names.add(server, name, 1)
    assert names.find_older("a", "de1ete") == ("b", "delete")
    assert names.find_older("b", "delete") is None


def test_one_name_at_two_servers_is_no_rival() -> None:
    names = LookalikeIndex()
    for server, name in (("a", "create_issue"), ("b", "create_issue"), ("c", "Create-Issue")):
        names.add(server, name, 1)
    assert [names.find_older(s, "create_issue") for s in "ab"] == [None] * 2
    assert names.find_older("c", "Create-Issue") is None
    places = [("a", "create_issue"), ("b", "create_issue"), ("c", "Create-Issue")]
    assert names.find_lookalikes("create_issue") == places
    names.add("c", "create.issue", 2)
    assert names.find_older("c", "create.issue") == ("c", "Create-Issue")


def test_what_is_not_there_has_its_rivals_too() -> None:
    names = LookalikeIndex()
    names.add("a", "list", 1)
    names.add("a", "other", 1)
    names.remove("a", "unknown")
    assert names.find_older("b", "Iist") is None
    names.add("b", "Iist", 5)
    assert names.find_older("c", "1ist") == ("a", "list")
    assert names.find_lookalikes("unknown") == []


@given(st.lists(st.tuples(st.sampled_from("ab"), NAME, st.integers(0, 3)), max_size=12))
def test_of_all_that_look_alike_in_a_server_one_is_left(
    tools: list[tuple[str, str, int]],
) -> None:
    names, places = LookalikeIndex(), {(server, name): since for server, name, since in tools}
    for (server, name), since in places.items():
        names.add(server, name, since)
    left = [place for place in places if names.find_older(*place) is None]
    looks = [(server, name_skeleton(name)) for server, name in left]
    assert len(looks) == len(set(looks))
    for one, other in ((a, b) for a in left for b in left if a < b):
        alike = name_skeleton(one[1]) == name_skeleton(other[1])
        assert not alike or normalized_name(one[1]) == normalized_name(other[1])


def test_a_name_that_a_thousand_servers_share_is_compared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = LookalikeIndex()
    for number in range(1000):
        names.add(f"server-{number}", "list", number)
    names.add("rogue", "1ist", 5)
    compared: list[str] = []

    def compare(name: str) -> str:
        compared.append(name)
        return normalized_name(name)

    monkeypatch.setattr(definitions, "normalized_name", compare)
    assert names.find_older("server-900", "list") == ("rogue", "1ist")
    assert names.find_older("server-3", "list") is None
    assert names.find_older("rogue", "1ist") == ("server-0", "list")
    assert len(compared) <= 6


@given(NAME)
def test_a_skeleton_is_its_own(name: str) -> None:
    assert name_skeleton(name_skeleton(name)) == name_skeleton(name)


LABEL = {"risk_level": "safe", "permissions_required": ["shell"]}
TOOL: dict[str, object] = {
    "name": "srv__run",
    "description": "Runs.",
    "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}},
    "annotations": {"readOnlyHint": True},
    "security": LABEL,
}


def written(**members: object) -> bytes:
    return json.dumps({**TOOL, **members}).encode()


def test_everything_is_told_at_once() -> None:
    found = examine_definition(written(), "run")
    assert found.label is not None
    assert found.label.risk is Risk.SAFE
    assert found.hints == ToolHints(is_read_only=True)
    assert (found.permissions, found.suggested_validators, found.findings) == (
        ("shell.execute",),
        ("sandbox",),
        (),
    )
    assert found.digest == examine_definition(written(name="other__run"), "run").digest
    assert found.digest != examine_definition(written(), "walk").digest
    assert b'"name":"run"' in found.canonical_bytes()


def test_a_tool_that_says_nothing_of_its_needs_has_those_of_its_server() -> None:
    silent = examine_definition(written(security={"risk_level": "safe"}), "run")
    assert silent.required_permissions(("camera",)) == ("camera",)
    modest = examine_definition(written(security={"permissions_required": []}), "run")
    assert modest.required_permissions(("camera",)) == ()


@loop_over(
    ("definition", "because"),
    [
        (b'{"a": 1, "a": 2}', "more than one way"),
        (b'{"x": {"a": 1, "a": 2}}', "more than one way"),
        (b"[]", "more than one way"),
        (b'{"a": "' + b"x" * MAX_DEFINITION_BYTES + b'"}', "more than"),
    ],
)
def test_what_cannot_be_read_in_one_way_is_told(definition: bytes, because: str) -> None:
    found = examine_definition(definition, "run")
    assert because in found.fault
    assert (found.digest, found.canonical_bytes(), list(found.possible_tool_names())) == (
        "",
        b"",
        [],
    )


def test_of_what_was_never_listed_nothing_is_known() -> None:
    found = examine_definition(UNLISTED_DEFINITION, "run")
    assert (found.digest, found.fault, found.findings) == ("", "", ())


@loop_over(
    ("members", "name", "looks"),
    [
        ({"description": "a\u200b"}, "run", {SuspicionKind.HIDDEN}),
        ({"description": "\x7f"}, "run", {SuspicionKind.HIDDEN}),
        ({"description": "\x1b[8m"}, "run", {SuspicionKind.HIDDEN}),
        ({"description": "\b"}, "run", {SuspicionKind.HIDDEN}),
        ({"description": "a" + "\n" * 200}, "run", {SuspicionKind.HIDDEN}),
        ({"description": "x" * 20_000}, "run", {SuspicionKind.LONG}),
        ({"description": "Gr\u00fc\u00dfe \U0001f389"}, "run", frozenset[SuspicionKind]()),
        ({"description": 'a "quoted" \\path \n line'}, "run", frozenset[SuspicionKind]()),
        ({}, "run\u200b", {SuspicionKind.NAME}),
    ],
    ids=str,
)
def test_what_it_hides_is_found(
    members: dict[str, object], name: str, looks: set[SuspicionKind] | frozenset[SuspicionKind]
) -> None:
    assert {each.kind for each in examine_definition(written(**members), name).findings} == looks


def test_words_that_could_be_names_are_told() -> None:
    said = "Use read_file, `search` or 'x' before sendMail. See well-known e.g. Foo and run. run"
    found = list(examine_definition(written(description=said), "run").possible_tool_names())
    assert found == ["read_file", "search", "sendMail", "well-known", "e.g"]
    assert list(
        examine_definition(written(description="a_b " * 5000), "run").possible_tool_names()
    ) == ["a_b"]


@loop_over(
    ("shown", "same"),
    [
        (TOOL, True),
        ({name: TOOL[name] for name in TOOL if name != "security"}, True),
        ({**TOOL, "_meta": {"x": 1}, "execution": {"taskSupport": "optional"}}, True),
        ({**TOOL, "description": "Runs!"}, False),
        ({**TOOL, "security": {"risk_level": "moderate"}}, False),
        ({**TOOL, "annotations": {}}, False),
    ],
)
def test_a_reader_is_told_the_same_or_not(shown: dict[str, object], same: bool) -> None:
    assert has_same_meaning(written(), json.dumps(shown).encode(), "run") is same


def test_what_nobody_knows_or_can_read_says_nothing_the_same() -> None:
    assert not has_same_meaning(UNLISTED_DEFINITION, written(), "run")
    assert not has_same_meaning(written(), b'{"a": 1, "a": 1}', "run")


SEEN = examine_definition(json.dumps({"name": "run", "description": "Runs."}).encode(), "run")
BROKEN = examine_definition(b'{"a":1,"a":2}', "run")
NEVER_LISTED = examine_definition(UNLISTED_DEFINITION, "run")
AT_SIGHT = AcceptedDefinition(SEEN.digest, GATEWAY, None)
BY_ANA = AcceptedDefinition(SEEN.digest, "person:ana", None)
OLD = AcceptedDefinition("other", "person:ana", None)
ODD = (DefinitionSuspicion(SuspicionKind.HIDDEN, "/description", "1"),)
FIRST, APPROVE, OFF = (ServerPolicy(definitions=each) for each in DefinitionPolicy)


REFUSE = ServerPolicy(suspicious=SuspicionPolicy.REFUSE)
STRICT = ServerPolicy(suspicious=SuspicionPolicy.STRICT)
SHOW = ServerPolicy(suspicious=SuspicionPolicy.SHOW)


@loop_over(
    ("policy", "findings", "accepted", "expected"),
    [
        (FIRST, (), None, ReviewState.ACCEPTED),
        (FIRST, (), AT_SIGHT, ReviewState.ACCEPTED),
        (FIRST, (), OLD, ReviewState.CHANGED),
        (APPROVE, (), None, ReviewState.NEW),
        (APPROVE, (), AT_SIGHT, ReviewState.ACCEPTED),
        (APPROVE, (), OLD, ReviewState.CHANGED),
        (OFF, (), None, ReviewState.ACCEPTED),
        (OFF, (), OLD, ReviewState.ACCEPTED),
        (REFUSE, ODD, None, ReviewState.SUSPECT),
        (REFUSE, ODD, AT_SIGHT, ReviewState.SUSPECT),
        (REFUSE, ODD, BY_ANA, ReviewState.ACCEPTED),
        (REFUSE, ODD, OLD, ReviewState.CHANGED),
        (STRICT, ODD, None, ReviewState.SUSPECT),
        (SHOW, ODD, None, ReviewState.ACCEPTED),
    ],
)
def test_state_follows_from_policy_and_accepted_definition(
    policy: ServerPolicy,
    findings: tuple[DefinitionSuspicion, ...],
    accepted: AcceptedDefinition | None,
    expected: ReviewState,
) -> None:
    assert state_of(SEEN, policy, ToolPolicy(), findings, accepted, True) is expected


@loop_over(
    ("seen", "policy", "tool", "known", "expected"),
    [
        (SEEN, FIRST, ToolPolicy(disabled=True), True, ReviewState.DISABLED),
        (BROKEN, FIRST, ToolPolicy(), True, ReviewState.UNREADABLE),
        (SEEN, FIRST, ToolPolicy(), False, ReviewState.UNKNOWN),
        (SEEN, OFF, ToolPolicy(), False, ReviewState.ACCEPTED),
        (NEVER_LISTED, FIRST, ToolPolicy(), True, ReviewState.ACCEPTED),
        (NEVER_LISTED, APPROVE, ToolPolicy(), True, ReviewState.NEW),
    ],
)
def test_disabled_unreadable_and_unknown_tools_have_their_own_state(
    seen: DefinitionAnalysis,
    policy: ServerPolicy,
    tool: ToolPolicy,
    known: bool,
    expected: ReviewState,
) -> None:
    assert state_of(seen, policy, tool, (), None, known) is expected


@loop_over("state", [state for state in ReviewState if state is not ReviewState.ACCEPTED])
def test_every_other_state_is_a_refusal(state: ReviewState) -> None:
    refusal = refusal_for(state, "srv", "run", {}, ODD)
    assert refusal is not None
    unknown = state is ReviewState.UNKNOWN
    assert refusal.fault is (POLICY_UNKNOWN if unknown else TOOL_DISABLED)
    if state in (ReviewState.NEW, ReviewState.CHANGED, ReviewState.SUSPECT):
        assert "`comity tools accept srv run`" in refusal.reason
    if state is ReviewState.SUSPECT:
        assert refusal.details["findings"] == ["hidden characters"]


def test_a_missing_permission_is_named_with_its_remedy() -> None:
    assert refusal_for(ReviewState.ACCEPTED, "srv", "run", {}) is None
    missing = {
        "shell.execute": PermissionDecision(PermissionOutcome.DENIED, "x", ""),
        "camera": PermissionDecision(PermissionOutcome.DEFERRED, "x", ""),
    }
    refusal = refusal_for(ReviewState.ACCEPTED, "srv", "run", missing)
    assert refusal is not None
    assert refusal.fault is PERMISSION_DENIED
    assert "shell.execute and 1 more" in refusal.reason
    assert "`comity servers permissions approve srv shell.execute`" in refusal.reason
    assert refusal.details == {"permissions": {"shell.execute": "denied", "camera": "deferred"}}


def test_a_name_that_a_server_chose_is_spoken_of_carefully() -> None:
    refusal = refusal_for(ReviewState.NEW, "srv", "\x1b[8m" + "x" * 500, {})
    assert refusal is not None
    assert "\x1b" not in refusal.reason
    assert len(refusal.reason) < 400


def test_digest_is_not_that_of_the_plain_text() -> None:
    plain = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert definition_digest(b"{}") != plain
