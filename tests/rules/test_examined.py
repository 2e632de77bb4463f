"""All that is told of a tool from its definition alone."""

import json

import pytest

from comity.rules.examined import UNLISTED, examine, says_the_same
from comity.rules.looks import Look
from comity.rules.pins import LONGEST
from comity.wire.security import Hints, Risk

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
    found = examine(written(), "run")
    assert found.label is not None
    assert found.label.risk is Risk.SAFE
    assert found.hints == Hints(reads_only=True)
    assert (found.needs, found.suggested, found.findings) == (("shell.execute",), ("sandbox",), ())
    assert found.digest == examine(written(name="other__run"), "run").digest
    assert found.digest != examine(written(), "walk").digest
    assert b'"name":"run"' in found.written()


def test_a_tool_that_says_nothing_of_its_needs_has_those_of_its_server() -> None:
    silent = examine(written(security={"risk_level": "safe"}), "run")
    assert silent.needs_of(("camera",)) == ("camera",)
    modest = examine(written(security={"permissions_required": []}), "run")
    assert modest.needs_of(("camera",)) == ()


@pytest.mark.parametrize(
    ("definition", "because"),
    [
        (b'{"a": 1, "a": 2}', "more than one way"),
        (b'{"x": {"a": 1, "a": 2}}', "more than one way"),
        (b"[]", "more than one way"),
        (b'{"a": "' + b"x" * LONGEST + b'"}', "more than"),
    ],
)
def test_what_cannot_be_read_in_one_way_is_told(definition: bytes, because: str) -> None:
    found = examine(definition, "run")
    assert because in found.fault
    assert (found.digest, found.written(), list(found.words())) == ("", b"", [])


def test_of_what_was_never_listed_nothing_is_known() -> None:
    found = examine(UNLISTED, "run")
    assert (found.digest, found.fault, found.findings) == ("", "", ())


@pytest.mark.parametrize(
    ("members", "name", "looks"),
    [
        ({"description": "a\u200b"}, "run", {Look.HIDDEN}),
        ({"description": "\x7f"}, "run", {Look.HIDDEN}),
        ({"description": "\x1b[8m"}, "run", {Look.HIDDEN}),
        ({"description": "\b"}, "run", {Look.HIDDEN}),
        ({"description": "a" + "\n" * 200}, "run", {Look.HIDDEN}),
        ({"description": "x" * 20_000}, "run", {Look.LONG}),
        ({"description": "Gr\u00fc\u00dfe \U0001f389"}, "run", frozenset[Look]()),
        ({"description": 'a "quoted" \\path \n line'}, "run", frozenset[Look]()),
        ({}, "run\u200b", {Look.NAME}),
    ],
    ids=str,
)
def test_what_it_hides_is_found(
    members: dict[str, object], name: str, looks: set[Look] | frozenset[Look]
) -> None:
    assert {each.look for each in examine(written(**members), name).findings} == looks


def test_words_that_could_be_names_are_told() -> None:
    said = "Use read_file, `search` or 'x' before sendMail. See well-known e.g. Foo and run. run"
    found = list(examine(written(description=said), "run").words())
    assert found == ["read_file", "search", "sendMail", "well-known", "e.g"]
    assert list(examine(written(description="a_b " * 5000), "run").words()) == ["a_b"]


@pytest.mark.parametrize(
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
    assert says_the_same(written(), json.dumps(shown).encode(), "run") is same


def test_what_nobody_knows_or_can_read_says_nothing_the_same() -> None:
    assert not says_the_same(UNLISTED, written(), "run")
    assert not says_the_same(written(), b'{"a": 1, "a": 1}', "run")
