"""A tool's own word, the only set for tools, the server as a whole: in this order. (D-65)"""

import msgspec
import pytest

from comity.rules.features_of_tools import WHOLE, feature_of_tool, named_in
from comity.wire.features import FeatureSet, Use

NOTES = FeatureSet("notes.edit", "", frozenset({Use.TOOLS}))
GIT = FeatureSet("git.commit", "", frozenset({Use.TOOLS, Use.PUSH}))
PUSH = FeatureSet("push", "", frozenset({Use.PUSH}))
BOTH = {each.name: each for each in (NOTES, GIT, PUSH)}
ONE = {each.name: each for each in (NOTES, PUSH)}


def _tool(**meta: object) -> bytes:
    return msgspec.json.encode({"name": "add_note", "inputSchema": {}, "_meta": meta})


def test_a_tool_says_which_set_it_is_of() -> None:
    assert feature_of_tool(_tool(featureSet="git.commit"), BOTH) == "git.commit"
    assert feature_of_tool(_tool(featureSet="notes.edit"), BOTH) == "notes.edit"


def test_a_tool_that_says_nothing_is_of_the_only_set_for_tools() -> None:
    assert feature_of_tool(_tool(), ONE) == "notes.edit"
    assert feature_of_tool(None, ONE) == "notes.edit"


def test_a_tool_that_says_nothing_among_several_sets_is_of_the_server() -> None:
    assert feature_of_tool(_tool(), BOTH) == WHOLE
    assert feature_of_tool(None, BOTH) == WHOLE
    assert feature_of_tool(_tool(), {}) == WHOLE


@pytest.mark.parametrize("named", ["git.nothing", "push", 7, None, ["notes.edit"], {}])
def test_a_tool_chooses_only_among_sets_that_are_declared_for_tools(named: object) -> None:
    assert feature_of_tool(_tool(featureSet=named), BOTH) == WHOLE
    assert feature_of_tool(_tool(featureSet=named), ONE) == "notes.edit"


@pytest.mark.parametrize(
    "definition",
    [
        b"",
        b"[]",
        b'"featureSet"',
        b'{"featureSet":"notes.edit"}',
        b'{"_meta":"featureSet"}',
        b'{"_meta":{"featureSet":"notes.edit","featureSet":"git.commit"}}',
        b'{"_meta":[{"featureSet":"notes.edit"}]}',
    ],
)
def test_what_cannot_be_read_names_no_set(definition: bytes) -> None:
    assert named_in(definition) == WHOLE
    assert feature_of_tool(definition, BOTH) == WHOLE
