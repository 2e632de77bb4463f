"""The gateway's own tools: their names, what means them, and that models can take them."""

import json
import re

import jsonschema_rs
import pytest

from comity.rules.meta_tools import BY_NAME, DEFINITIONS, LISTED, MetaTool, is_reserved, meant


def test_they_are_listed_under_names_that_every_model_takes() -> None:
    names = [json.loads(DEFINITIONS[tool])["name"] for tool in LISTED]
    assert names == ["search_tools", "request_tools", "call_tool", "session_tools"]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)


@pytest.mark.parametrize("tool", LISTED)
def test_each_schema_is_one_and_its_members_are_typed(tool: MetaTool) -> None:
    schema = json.loads(DEFINITIONS[tool])["inputSchema"]
    jsonschema_rs.meta.validate(schema)
    assert schema["type"] == "object"
    assert all("type" in member for member in schema["properties"].values())


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("mgp.tools.discover", MetaTool.SEARCH),
        ("mgp.tools.request", MetaTool.REQUEST),
        ("mgp.tools.session", MetaTool.SESSION),
        ("mgp.tools.session.evict", MetaTool.EVICT),
        ("mgp/tools/discover", MetaTool.SEARCH),
        ("mgp/tools/session/evict", MetaTool.EVICT),
    ],
)
def test_the_documents_names_mean_them_whether_or_not_they_are_listed(
    name: str, tool: MetaTool
) -> None:
    assert meant(name, is_listed=True) is meant(name, is_listed=False) is tool


def test_their_own_names_mean_them_only_where_they_are_listed() -> None:
    for tool in LISTED:
        assert meant(tool, is_listed=True) is tool
        assert meant(tool, is_listed=False) is None
    assert meant("files__read", is_listed=True) is None


def test_the_prefix_is_kept_for_them() -> None:
    assert all(map(is_reserved, BY_NAME))
    assert is_reserved("mgp.anything")
    assert not is_reserved("mgpx")
    assert not is_reserved("files__search_tools")
