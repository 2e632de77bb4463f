"""Which gateway a command asks: of this folder's configuration, unless another is named."""

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from comity.cli.gateway_records import find_gateway
from comity.cli.gateway_url import DEFAULT_URL, find_url
from tests.cli.program import EXAMPLE, Desk
from tests.interop.processes import answers, free_port, running
from tests.surfaces.piped import COMITY

CONFIG = """
port = {port}
[store]
url = "sqlite:///{folder}/comity.db"
[[servers]]
id = "try"
command = {command}
args = {args}
"""
# Every command is a program of its own, on a machine that may have much else to do.
pytestmark = pytest.mark.timeout(300)


def written(desk: Desk, port: int) -> Path:
    command, args = json.dumps(EXAMPLE["command"]), json.dumps(EXAMPLE["args"])
    text = CONFIG.format(port=port, folder=desk.folder, command=command, args=args)
    return desk.write("comity.toml", text)


@pytest.fixture
def here(desk: Desk) -> Generator[str]:
    """The gateway of the configuration in the folder of the desk; gives its address."""
    with running([COMITY, "serve", str(written(desk, free_port()))], desk.env) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield origin


def test_commands_find_the_gateway_of_the_configuration_in_this_folder(
    desk: Desk, here: str
) -> None:
    assert desk.run("status", "--json").json["url"] == here
    assert [each["id"] for each in desk.run("servers", "--json").json["servers"]] == ["try"]
    made = desk.run("keys", "create", "agent:ci", "--json")
    assert made.status == 0, made.err
    added = desk.run("grants", "add", "agent:ci", "try__echo", "--json")
    assert (added.status, added.json["granted_by"]) == (0, "person:local")
    listed = desk.run("keys", "--json")
    assert [key["party"] for key in listed.json["keys"]] == ["agent:ci"]
    assert desk.run("call", "try__echo", "message=hello").out.strip() == "hello"
    for ran in (made, added, listed):
        assert "store" not in ran.err
    # The gateway itself has them: it lets the holder of the key in.
    seen = desk.run("tools", "--json", COMITY_KEY=made.json["key"]).json["tools"]
    assert [tool["name"] for tool in seen] == ["try__echo"]


def test_a_configuration_that_is_named_stands_over_the_folder(
    desk: Desk, here: str, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    named = ("--config", str(desk.folder / "comity.toml"))
    desk.folder = folder
    assert desk.run("keys", "--json", *named).json == {"keys": []}
    ran = desk.run("call", "try__echo", "message=hello", *named)
    assert ran.out.strip() == "hello", ran.err


def test_an_address_stands_over_the_configuration(desk: Desk, here: str) -> None:
    for ran in (
        desk.run("status", "--url", "http://127.0.0.1:9"),
        desk.run("status", COMITY_URL="http://127.0.0.1:9"),
    ):
        assert ran.status == 3
        assert "http://127.0.0.1:9" in ran.err
    away = {"COMITY_URL": "http://127.0.0.1:9"}
    assert desk.run("status", "--url", here, **away).status == 0
    assert desk.run("status", "--url", here.replace("127.0.0.1", "localhost")).status == 0


def test_a_gateway_is_found_where_its_port_is_another_each_time(desk: Desk) -> None:
    config = written(desk, 0)
    with running([COMITY, "serve", str(config)], desk.env) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        assert desk.run("status", "--json").json["url"] == origin


def test_without_a_gateway_the_port_of_the_file_is_named(desk: Desk) -> None:
    port = free_port()
    written(desk, port)
    ran = desk.run("servers")
    assert ran.status == 3
    assert f"no gateway answers at http://127.0.0.1:{port} " in ran.err


def test_a_file_that_cannot_be_read_names_no_other_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COMITY_URL", raising=False)
    assert find_url() == DEFAULT_URL
    (tmp_path / "comity.toml").write_text("port = [")
    assert find_url() == DEFAULT_URL
    (tmp_path / "comity.toml").write_text('port = 2801\nhost = "::"\n')
    assert find_url() == "http://[::1]:2801"
    monkeypatch.setenv("COMITY_URL", "http://127.0.0.1:9")
    assert find_url() == "http://127.0.0.1:9"


def test_a_token_of_another_gateway_is_not_shown(desk: Desk, here: str) -> None:
    record = find_gateway(desk.folder / "comity.toml", os.environ)
    assert record is not None
    ran = desk.run("status", "--url", here, COMITY_STATE_DIR=str(desk.home / "none"))
    assert ran.status == 2
    assert "operator token" in ran.err
    assert record.token not in ran.err
