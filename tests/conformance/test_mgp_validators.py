"""Validators and code safety, through the doors: what a tool is never told. (MGP §4.5, §7, §8.2)"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import standing
from tests.conformance.guarding import answer_to, frames, guarded, guarding, until_error
from tests.conformance.realm import OFFER, PLAIN
from tests.conformance.ways import Frame, House, on_pipes
from tests.security.corpus import document, section

REFUSAL = "dev.comity/refusal"
SETTINGS = '[policy]\nfallback_validators = "on"\nrequire_approval = "never"'
SCOPE = document("paths.toml")["scope"]
TOOLS = {
    "read": {"inspect": {"paths": SCOPE["allowed"], "denied_paths": SCOPE["denied"]}},
    "plain": {"validators": ["sandbox"], "arguments": {"text": "command"}},
}


def _inline(value: object) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, dict):
        table: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return "{" + ", ".join(f"{json.dumps(k)} = {_inline(v)}" for k, v in table.items()) + "}"
    return json.dumps(value)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("validated")
    with standing(folder, {"tools": on_pipes("obedient")}, SETTINGS) as house:
        yield house


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("ruled")
    entry = on_pipes("obedient")
    lines = [f"{key} = {_inline(value)}" for key, value in {"id": "tools", **entry}.items()]
    settings = "\n".join([SETTINGS, "[[servers]]", *lines, f"tools = {_inline(TOOLS)}"])
    with standing(folder, {}, settings) as house:
        yield house


async def called(house: House, tool: str, terms: Frame = PLAIN, /, **arguments: Any) -> Frame:
    async with house.among_all("tools").talk(terms) as talk:
        params = {"name": f"tools__{tool}", "arguments": arguments}
        return (await talk.client.request("tools/call", params)).response


def did(answer: Frame) -> bool:
    """Whether the server was told to do it."""
    return answer.get("result", {}).get("content", [{}])[0].get("text", "").startswith("did ")


async def refused(house: House, tool: str, **arguments: Any) -> Frame:
    """What a client of MGP is told, after a plain one was told the same."""
    plain = await called(house, tool, **arguments)
    assert plain["result"]["isError"] is True
    body = plain["result"]["_meta"][REFUSAL]
    spoken = await called(house, tool, OFFER, **arguments)
    data = spoken["error"]["data"]
    assert (data["error_type"], data["reason"]) == (body["error_type"], body["reason"])
    assert data["_mgp"]["details"]["outcome"] == "not_run"
    return spoken["error"]


@pytest.mark.requirement("MGP-4.5-sandbox", "MGP-4.5-where", "MGP-4.3-validator")
@pytest.mark.requirement("MGP-14.3-1010", "MGP-14.2-range-1000")
async def test_a_hostile_command_never_reaches_a_tool_that_asks_for_the_sandbox(
    house: House,
) -> None:
    for text in ("ls; id", "rm -rf /", "find . -delete", "cat $(id)", "ls\nid"):
        error = await refused(house, "run", command=text)
        assert error["code"] == 1010
        assert error["data"]["field"] == "command"
    assert did(await called(house, "run", command="git log --oneline -n 5"))


@pytest.mark.requirement("MGP-4.5-readonly")
async def test_nothing_that_writes_reaches_a_tool_that_may_only_read(house: House) -> None:
    for text in (
        "DELETE FROM t",
        "SELECT 1; DROP TABLE t",
        "WITH x AS (INSERT INTO t VALUES (1)) SELECT 1",
    ):
        assert (await refused(house, "query", sql=text))["code"] == 1010
    for write in (
        {"command": "tee notes.txt"},
        {"method": "POST"},
        {"mode": "a+"},
        {"action": "deleteAll"},
        {"overwrite": True},
        {"steps": [{"then": {"sql": "DROP TABLE t"}}]},
    ):
        assert (await refused(house, "query", sql="SELECT 1", **write))["code"] == 1010
    assert did(await called(house, "query", sql="SELECT * FROM t", method="GET", mode="r"))


@pytest.mark.requirement("MGP-4.5-network_restricted")
async def test_no_place_that_is_not_public_reaches_a_restricted_tool(house: House) -> None:
    for text in (
        "http://localhost/",
        "http://10.0.0.1/",
        "http://169.254.169.254/",
        "http://0x7f.1/",
    ):
        assert (await refused(house, "fetch", url=text))["code"] == 1010
    assert did(await called(house, "fetch", url="https://93.184.216.34/x"))


@pytest.mark.requirement("MGP-4.5-code_safety", "MGP-7.2-standard", "MGP-14.3-1011")
async def test_dangerous_code_never_reaches_a_tool_that_asks_for_code_safety(house: House) -> None:
    for tool in ("code", "code_standard"):
        error = await refused(house, tool, code="import subprocess\neval('1')")
        assert error["code"] == 1011
    assert did(await called(house, "code_standard", code="import httpx\nprint(1)"))


@pytest.mark.requirement("MGP-7.4-rejection", "MGP-7.4-violations", "MGP-7.4-hints")
@pytest.mark.requirement("MGP-7.3-level", "MGP-7.3-blocked_imports", "MGP-7.3-max_code_size_bytes")
async def test_a_rejection_says_what_to_write_instead(house: House) -> None:
    error = await refused(house, "code_standard", code="import csv\nexec('1')")
    details = error["data"]["_mgp"]["details"]
    assert (details["status"], details["reason"]) == ("rejected", "The code is not allowed here")
    assert details["violations"] == ["Blocked import: 'csv'", "Blocked name: 'exec'"]
    assert {"csv", "subprocess"} <= set(details["hints"]["blocked_imports"])
    strict = (await refused(house, "code_strict", code="x = 1\n" * 100))["data"]["_mgp"]["details"]
    assert strict["violations"] == ["Code too large: 600 bytes, at most 500"]
    assert strict["hints"]["max_code_size_bytes"] == 500
    assert "json" in strict["hints"]["allowed_imports"]
    plain = await called(house, "code_strict", code="import os")
    shown = json.loads(plain["result"]["content"][1]["text"])
    assert shown["status"] == "rejected"
    assert shown["violations"] == ["Blocked import: 'os'"]


@pytest.mark.requirement("MGP-7.4-correct")
async def test_a_program_corrects_its_code_by_what_the_rejection_says_alone(house: House) -> None:
    """It removes the imports that a violation names, cuts to the size, and tries again."""
    code = "import subprocess\nimport json\n" + "# filling\n" * 60 + "print(json.dumps(1))"
    tries = 0
    while not did(answer := await called(house, "code_strict", OFFER, code=code)):
        tries += 1
        assert tries < 4, answer
        details = answer["error"]["data"]["_mgp"]["details"]
        allowed = set(details["hints"]["allowed_imports"])
        named = [each.split("'")[1] for each in details["violations"] if "import" in each]
        lines = [line for line in code.split("\n") if line.removeprefix("import ") not in named]
        if len(code) > details["hints"]["max_code_size_bytes"]:
            lines = [line for line in lines if not line.startswith("#")]
        assert not allowed & set(named)
        code = "\n".join(lines)
    assert code == "import json\nprint(json.dumps(1))"
    assert tries > 0


@pytest.mark.requirement("MGP-7.2-unrestricted", "MGP-7.2-strict", "MGP-7.2-readonly")
async def test_each_level_lets_through_less_than_the_one_before(house: House) -> None:
    code = ("import os", "import httpx", "print('x', file=f)\nf = 1", "x = 1")
    passing = {
        tool: [did(await called(house, tool, code=each)) for each in code]
        for tool in ("code_free", "code_standard", "code_strict", "code_readonly")
    }
    assert passing == {
        "code_free": [True, True, True, True],
        "code_standard": [False, True, True, True],
        "code_strict": [False, False, True, True],
        "code_readonly": [False, False, False, True],
    }


@pytest.mark.requirement("MGP-4.5-none")
async def test_a_tool_that_wants_no_validator_gets_whatever_it_is_sent(house: House) -> None:
    assert did(await called(house, "free", text="rm -rf /; http://localhost; import os"))


@pytest.mark.requirement("MGP-1.2-depth")
async def test_the_schema_the_validators_and_the_server_each_refuse_by_themselves(
    house: House,
) -> None:
    """What one of them lets pass another still stops, and it is told which one did."""
    by_protocol = await refused(house, "guarded", command="ls", count="many")
    by_kernel = await refused(house, "guarded", command="rm -rf /", count=1)
    by_server = (await called(house, "guarded", command="ls", count=13))["result"]
    assert (by_protocol["code"], by_protocol["data"]["field"]) == (4000, "count")
    assert (by_kernel["code"], by_kernel["data"]["field"]) == (1010, "command")
    assert by_server["isError"] is True
    assert by_server["content"][0]["text"] == "the server itself refuses 13"
    assert did(await called(house, "guarded", command="ls", count=1))


@pytest.mark.requirement("MGP-4.5-where")
async def test_a_validator_that_nobody_has_blocks(house: House) -> None:
    error = await refused(house, "strange", text="hello")
    assert error["code"] == 1010
    assert "frobnicate" in error["message"]


@pytest.mark.requirement("MGP-4.5-compromised")
@pytest.mark.parametrize("silently", [False, True])
async def test_a_server_cannot_take_the_validator_off_its_own_tool(
    tmp_path: Path, *, silently: bool
) -> None:
    """A definition that changed is not used; one that changed unsaid is not even read."""
    label: Frame = {"risk_level": "safe", "permissions_required": [], "validator": "sandbox"}
    run: Frame = {"name": "run", "security": label}
    with guarding(tmp_path, SETTINGS, up=guarded(tools=[run])) as house:
        assert (await answer_to(house, "up", "run", command="ls; id"))["error"]["code"] == 1010
        ran = await answer_to(house, "up", "run", command="ls")
        assert ran["result"]["structuredContent"] == {"ran": "run"}
        freed = {"security": {**label, "validator": "none"}}
        told: Frame = {"tool": "run", "members": freed, "silently": silently}
        await answer_to(house, "up", "become", **told)
        if not silently:
            await until_error(house, "up", "run", 4002)
        refused = await answer_to(house, "up", "run", command="ls; id")
        assert refused["error"]["code"] == (1010 if silently else 4002)
        heard = [each["params"] for each in await frames(house, "up") if "params" in each]
        given = [each["arguments"]["command"] for each in heard if each.get("name") == "run"]
        assert given == ["ls"]


@pytest.mark.requirement("MGP-8.2-fallbackvalidators")
async def test_a_plain_tool_is_looked_at_by_the_names_of_its_arguments(house: House) -> None:
    assert (await refused(house, "shell_command", command="ls; id"))["code"] == 1010
    assert did(await called(house, "shell_command", command="ls"))


async def test_an_operator_says_which_paths_and_which_argument(ruled: House) -> None:
    for path in ("/etc/passwd", "/project/../etc/passwd", "/project/.env", "/project/%2e%2e/x"):
        assert (await refused(ruled, "read", path=path))["code"] == 1010
    assert did(await called(ruled, "read", path="/project/x.txt"))
    assert (await refused(ruled, "plain", text="rm -rf /"))["code"] == 1010
    assert did(await called(ruled, "plain", text="ls"))


@pytest.mark.requirement("REG-core-constraints", "MCP-10.3-closedworld", "REG-p4-validators")
@pytest.mark.requirement("MGP-14.3-4000")
async def test_an_argument_that_does_not_fit_is_named_with_what_would(house: House) -> None:
    error = await refused(house, "bounded", ticker="AAPL", days=400)
    assert error["code"] == 4000
    assert error["data"]["field"] == "days"
    assert error["data"]["suggestions"] == ["Give a number of at most 365."]
    plain = await called(house, "bounded", ticker="aapl secret", days=5)
    text = plain["result"]["content"][0]["text"]
    assert "ticker" in text
    assert "secret" not in text
    for wrong in (
        {"ticker": "AAPL"},
        {"ticker": "A", "days": "5"},
        {"ticker": "A", "days": 5, "x": 1},
    ):
        assert not did(await called(house, "bounded", **wrong))
    assert did(await called(house, "bounded", ticker="AAPL", days=30, kind="technical"))


SAMPLES = [
    *(("run", "command", text) for text in list(section("shell.toml", "hostile").values())[::9]),
    *(("code", "code", text) for text in list(section("python.toml", "hostile").values())[::9]),
    *(
        ("fetch", "url", text)
        for text in list(section("network.toml", "hostile-url").values())[::7]
    ),
    *(
        ("query", "sql", text)
        for text in list(section("readonly.toml", "hostile-sql").values())[::4]
    ),
]


async def test_a_sample_of_every_kind_of_attack_stops_at_the_gate(house: House) -> None:
    async with house.among_all("tools").talk(PLAIN) as talk:
        for tool, argument, text in SAMPLES:
            params = {"name": f"tools__{tool}", "arguments": {argument: text}}
            answer = (await talk.client.request("tools/call", params)).response
            assert not did(answer), (tool, text[:100])


async def test_a_sample_of_hostile_paths_stops_at_the_gate(ruled: House) -> None:
    async with ruled.among_all("tools").talk(PLAIN) as talk:
        for text in list(section("paths.toml", "hostile").values())[::4]:
            params = {"name": "tools__read", "arguments": {"path": text}}
            answer = (await talk.client.request("tools/call", params)).response
            assert not did(answer), text[:100]
