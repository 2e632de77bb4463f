"""The store that a gateway has where its configuration names none."""

import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.program import EXAMPLE, Desk
from tests.interop.processes import answers, running
from tests.support.fork_server import COMITY


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    # An empty variable counts as unset, and hides the one of the test run.
    state = {"COMITY_STATE_DIR": "", "XDG_STATE_HOME": str(tmp_path / "state")}
    desk = Desk(tmp_path, DATABASE_URL="", **state)
    desk.write("comity.toml", "")
    return desk


@contextmanager
def gateway(desk: Desk, **env: str) -> Generator[str]:
    command = [COMITY, "serve", "-c", str(desk.folder / "comity.toml"), "--port", "0"]
    with running(command, {**desk.env, **env}) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield origin


def stores(desk: Desk) -> Path:
    return Path(desk.env["XDG_STATE_HOME"]) / "comity" / "stores"


def test_records_survive_a_restart_in_files_that_only_their_owner_reads(desk: Desk) -> None:
    with gateway(desk) as origin:
        made = desk.run("grants", "create", "agent:a", "files/*", "--url", origin)
        assert made.status == 0, made
    assert [each.name for each in desk.home.iterdir()] == []
    files = [*stores(desk).iterdir()]
    assert {each.suffix for each in files} >= {".db", ".pepper", ".audit-key"}
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
    assert {stat.S_IMODE(each.stat().st_mode) for each in (stores(desk), stores(desk).parent)} == {
        0o700
    }
    with gateway(desk) as origin:
        assert "agent:a" in desk.run("grants", "list", "--url", origin).out
    # No gateway runs, and the store still answers.
    assert "agent:a" in desk.run("grants", "list", "--offline", "-c", "comity.toml").out
    assert desk.run("audit", "verify", "--offline", "-c", "comity.toml").status == 0


def test_two_gateways_of_one_configuration_share_the_store_and_write_two_chains(
    desk: Desk,
) -> None:
    with gateway(desk) as first, gateway(desk) as second:
        assert desk.run("grants", "create", "agent:a", "files/*", "--url", first).status == 0
        assert desk.run("grants", "create", "agent:b", "files/*", "--url", second).status == 0
        assert desk.run("grants", "list", "--url", first).out.count("agent:") == 2
    assert desk.run("audit", "verify", "--offline", "-c", "comity.toml").status == 0
    assert len([*stores(desk).glob("*.db")]) == 1


def test_the_store_memory_leaves_nothing_behind(desk: Desk) -> None:
    desk.write("comity.toml", '[store]\nurl = "memory"\n')
    with gateway(desk) as origin:
        assert desk.run("grants", "create", "agent:a", "files/*", "--url", origin).status == 0
    assert not stores(desk).exists()


def test_a_state_folder_that_cannot_be_made_is_told_with_what_to_do(desk: Desk) -> None:
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE}})
    desk.write("file", "")
    blocked = str(desk.folder / "file" / "state")
    ran = desk.run("serve", "-c", "mcp.json", "--port", "0", XDG_STATE_HOME=blocked)
    assert (ran.status, "name another one in COMITY_STATE_DIR" in ran.err) == (2, True), ran
