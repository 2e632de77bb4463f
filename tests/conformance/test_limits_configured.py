"""Limits and retries from the file to the door: the whole program, as an operator starts it."""

import json
import sys
from collections.abc import Iterator

import pytest

from tests.conformance.realm import OFFER
from tests.conformance.registry_face import Face
from tests.conformance.ways import House
from tests.interop.peers import ROOT
from tests.interop.processes import comity

CONFIGURATION = """
[[limits.rates]]
target = "near/echo"
rate = "2/h"

[[limits.rates]]
target = "near/seen"
quota = "1/d"

[[servers]]
id = "near"
command = {python}
args = ["-m", "tests.conformance.servers.talker"]
cwd = {root}
env = {{ TALKER_NAME = "near" }}

[servers.tools.answer]
idempotent = true
max_retries = 1
fallback_tool = "report"
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    config = tmp_path_factory.mktemp("limited") / "comity.toml"
    python, root = json.dumps(sys.executable), json.dumps(str(ROOT))
    config.write_text(CONFIGURATION.format(python=python, root=root))
    with comity(config) as origin:
        yield House(origin, config)


@pytest.mark.requirement("MGP-14.3-3000")
async def test_a_rate_of_the_file_is_in_force(house: House) -> None:
    async with house.among_all("near").talk(OFFER) as talk:
        answers = [(await talk.call("echo")).response for _ in range(3)]
    assert ["error" in answer for answer in answers] == [False, False, True]
    error = answers[-1]["error"]
    assert (error["code"], error["data"]["_mgp"]["details"]["limit"]) == (3000, 2)


@pytest.mark.requirement("MGP-14.3-3002")
async def test_a_quota_of_the_file_is_in_force(house: House) -> None:
    async with house.own("near").talk() as talk:
        first, second = [(await talk.call("seen")).result for _ in range(2)]
    assert "isError" not in first or first["isError"] is False
    refusal = second["_meta"]["dev.comity/refusal"]
    assert refusal["error_type"] == "quota_exceeded"
    assert refusal["details"]["renews_at"].endswith("T00:00:00Z")


@pytest.mark.requirement("REG-p4-recovery")
def test_the_registry_s_caller_gets_what_the_other_tool_says(house: House) -> None:
    recovery = {"category": "resource", "retryable": True, "retry_after_ms": 10}
    error = {"code": 3001, "message": "no room", "data": {"_mgp": recovery}}
    said = Face(house.origin).call("near__answer", {"members": {"error": error}})
    assert said.status == 200
    assert "reported" in json.dumps(said.body)


@pytest.mark.requirement("MGP-14.6-stop", "MGP-14.6-fallback")
@pytest.mark.parametrize("door", ["own", "merged"])
async def test_a_tool_that_the_file_marks_is_called_again_and_then_replaced(
    house: House, door: str
) -> None:
    recovery = {"category": "resource", "retryable": True, "retry_after_ms": 10}
    error = {"code": 3001, "message": "no room", "data": {"_mgp": recovery}}
    async with house.way(f"{door} near").talk() as talk:
        result = (await talk.call("answer", {"members": {"error": error}})).result
    told = result["_meta"]["dev.comity/fallback"]
    prefix = "" if door == "own" else "near__"
    assert told == {"tool": f"{prefix}report", "instead_of": f"{prefix}answer"}
