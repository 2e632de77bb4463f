"""`comity doctor` in a home where all is well, and in some where it is not."""

import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from comity.cli import machine, met
from comity.cli.machine import look_at_the_machine
from tests.cli.program import EXAMPLE, Desk

QUIET = {"HTTP_PROXY": "", "HTTPS_PROXY": "", "http_proxy": "", "https_proxy": "", "ALL_PROXY": ""}


@pytest.fixture
def taken() -> Generator[int]:
    """A port on which something listens that is no gateway."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def diagnosed(desk: Desk, *arguments: str, **env: str) -> dict[str, dict[str, Any]]:
    ran = desk.run("doctor", "--json", *arguments, **{**QUIET, **env})
    findings = ran.json["findings"]
    assert ran.status == any(each["verdict"] == "problem" for each in findings)
    return {each["about"]: each for each in findings}


def configured(desk: Desk, port: int, **servers: dict[str, Any]) -> None:
    lines = [f"port = {port}"]
    for name, entry in servers.items():
        lines += ["[[servers]]", f'id = "{name}"']
        lines += [f"{key} = {value!r}" for key, value in entry.items()]
    desk.write("comity.toml", "\n".join(lines))


def test_where_all_is_well_that_is_said(desk: Desk) -> None:
    configured(desk, 0, example=EXAMPLE)
    ran = desk.run("doctor", **QUIET)
    assert ran.status == 0
    assert any(line.split()[:3] == ["ok", "server", "example"] for line in ran.lines)
    assert "problem" not in ran.out


def test_a_configuration_that_is_not_there_is_a_problem_with_a_remedy(desk: Desk) -> None:
    found = diagnosed(desk)
    assert found["configuration"]["verdict"] == "problem"
    assert "comity init" in found["configuration"]["remedy"]


def test_each_mistake_in_the_configuration_is_told_with_its_remedy(desk: Desk) -> None:
    desk.write("comity.toml", "prot = 5\n")
    found = diagnosed(desk)["configuration"]
    assert "comity.toml:1" in found["told"]
    assert "'port'" in found["remedy"]


def test_a_program_that_is_missing_is_told_with_how_to_get_it(desk: Desk) -> None:
    empty = str(desk.home)
    configured(
        desk,
        0,
        npx={"command": "npx"},
        other={"command": "no-such-program"},
        folder={"command": "sh", "cwd": "/no/such/folder"},
        there={"command": "/bin/sh"},
    )
    found = diagnosed(desk, PATH=empty)
    assert "Node.js" in found["server npx"]["remedy"]
    assert found["server other"]["verdict"] == "problem"
    assert "folder" in found["server folder"]["told"]
    assert found["server there"]["verdict"] == "ok"


def test_an_address_is_tried_and_its_trouble_told(desk: Desk, taken: int, gateway: str) -> None:
    configured(
        desk,
        0,
        there={"url": f"http://127.0.0.1:{taken}/canary"},
        gone={"url": "http://127.0.0.1:9/canary"},
        unknown={"url": "http://no-such-host.invalid/canary"},
        untrusted={"url": gateway.replace("http:", "https:") + "/canary"},
    )
    found = diagnosed(desk)
    assert found["server there"]["verdict"] == "ok"
    assert "127.0.0.1:9" in found["server gone"]["told"]
    assert found["server unknown"]["verdict"] == "problem"
    assert "cannot be trusted" in found["server untrusted"]["told"]
    assert "canary" not in str(found)


def test_a_variable_that_is_nothing_is_told(desk: Desk) -> None:
    configured(desk, 0, example={**EXAMPLE, "cwd": "${NO_SUCH_VARIABLE:-}"})
    assert diagnosed(desk)["variable NO_SUCH_VARIABLE"]["verdict"] == "warning"
    assert "variable NO_SUCH_VARIABLE" not in diagnosed(desk, NO_SUCH_VARIABLE="/tmp")


def test_a_gateway_that_would_call_itself_is_a_problem(desk: Desk) -> None:
    configured(desk, 0, comity={"url": "http://127.0.0.1:2664/mcp"})
    assert "circles" in diagnosed(desk)["server comity"]["told"]


def test_a_port_that_another_program_holds_is_told_with_its_name(desk: Desk, taken: int) -> None:
    configured(desk, taken, example=EXAMPLE)
    found = diagnosed(desk)["port"]
    assert found["verdict"] == "problem"
    assert str(taken) in found["told"]
    assert "--port" in found["remedy"]


def test_a_gateway_that_runs_already_is_known(desk: Desk, gateway: str) -> None:
    configured(desk, int(gateway.rpartition(":")[2]), example=EXAMPLE)
    found = diagnosed(desk)["port"]
    assert (found["verdict"], gateway in found["told"]) == ("ok", True)


def test_a_client_that_calls_another_port_is_told_the_right_one(desk: Desk, gateway: str) -> None:
    configured(desk, int(gateway.rpartition(":")[2]), example=EXAMPLE)
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"comity": {"url": "http://127.0.0.1:9/mcp"}}})
    desk.write("~/.lmstudio/mcp.json", {"mcpServers": {"comity": {"url": f"{gateway}/mcp"}}})
    started = {"command": "comity", "args": ["serve", "--stdio", "/no/such.toml"]}
    desk.write("~/.gemini/settings.json", {"mcpServers": {"comity": started}})
    found = diagnosed(desk)
    assert found["client cursor"]["remedy"] == f"comity client connect cursor --url {gateway}"
    assert found["client lm-studio"]["verdict"] == "ok"
    assert found["client gemini"]["verdict"] == "problem"
    desk.run("client", "connect", "cursor", "--url", gateway)
    assert diagnosed(desk)["client cursor"]["verdict"] == "ok"


def test_a_proxy_in_the_way_of_loopback_is_told(desk: Desk) -> None:
    assert diagnosed(desk)["proxies"]["verdict"] == "ok"
    proxied = diagnosed(desk, http_proxy="http://proxy:3128")["proxies"]
    assert (proxied["verdict"], "NO_PROXY" in proxied["remedy"]) == ("warning", True)
    spared = diagnosed(desk, http_proxy="http://proxy:3128", NO_PROXY="localhost, 127.0.0.1")
    assert spared["proxies"]["verdict"] == "ok"


def test_a_folder_that_cannot_be_written_and_a_low_limit_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))

    def few(kind: int) -> tuple[int, int]:
        return 256, 256

    monkeypatch.setattr("resource.getrlimit", few)
    found = {each.about: each for each in look_at_the_machine({})}
    assert found["temporary folder"].verdict == "problem"
    assert found["open files"].verdict == "warning"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(machine, "LITTLE_SPACE", 2**80)
    found = {each.about: each for each in look_at_the_machine({})}
    assert found["temporary folder"].verdict == "warning"


def test_who_listens_on_a_port_is_found(taken: int) -> None:
    assert "process" in met.holder_of(taken)
    assert met.holder_of(1) == ""
