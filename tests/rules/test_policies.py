"""What was decided of a tool by its name, by a pattern, or not at all."""

import pytest

from comity.rules.policies import NO_TOOL_POLICY, ServerPolicy, ToolPolicy
from comity.wire.security import Risk

OWN, WRITES, ALL = ToolPolicy(cost=2), ToolPolicy(cost=3), ToolPolicy(cost=4)
POLICY = ServerPolicy(tools={"write_file": OWN, "write_*": WRITES, "*": ALL, "w*": ToolPolicy()})


@pytest.mark.parametrize(
    ("name", "found"),
    [("write_file", OWN), ("write_all", WRITES), ("read", ALL), ("wri\nte", ToolPolicy())],
)
def test_the_name_that_says_most_of_a_tool_decides(name: str, found: ToolPolicy) -> None:
    assert POLICY.of_tool(name) is found or POLICY.of_tool(name) == found


def test_of_a_tool_that_nobody_thought_of_nothing_is_decided() -> None:
    assert ServerPolicy().of_tool("x") is NO_TOOL_POLICY
    assert ServerPolicy(tools={"a.*": OWN}).of_tool("ab") is NO_TOOL_POLICY


def test_two_patterns_of_one_length_are_told_apart_by_their_letters() -> None:
    tools = {"b*d": ToolPolicy(cost=2), "b*c*": ToolPolicy(cost=5), "*cd": ToolPolicy(cost=3)}
    assert ServerPolicy(tools=tools).of_tool("bcd").cost == 5
    assert (
        ServerPolicy(tools={k: v for k, v in tools.items() if len(k) == 3}).of_tool("bcd").cost == 3
    )


def test_a_call_counts_as_much_as_its_risk_or_its_tool_says_whichever_is_more() -> None:
    policy = ServerPolicy(costs={Risk.DANGEROUS: 5})
    assert policy.cost_of(ToolPolicy(), Risk.SAFE) == 1
    assert policy.cost_of(ToolPolicy(), Risk.DANGEROUS) == 5
    assert policy.cost_of(ToolPolicy(cost=9), Risk.DANGEROUS) == 9
