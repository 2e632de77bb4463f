"""A tool as its server defines it cannot be changed by those who look at it."""

import dataclasses

import pytest

from comity.validation.arguments import ToolDefinition


def test_a_tool_without_a_definition_has_an_empty_one() -> None:
    assert dict(ToolDefinition("files", "read").definition) == {}


def test_a_tool_is_not_changed_by_who_looks_at_it() -> None:
    tool = ToolDefinition("files", "read")
    with pytest.raises(dataclasses.FrozenInstanceError):
        tool.name = "write"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        tool.definition["security"] = {}  # type: ignore[index]
