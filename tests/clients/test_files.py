"""Files of clients, connected and disconnected: they come back byte for byte."""

import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.clients.applications import BY_NAME, CLIENTS
from comity.clients.files import ClientFile, find_record, save_record, write_whole
from comity.clients.json_format import parse_json
from comity.clients.takeover import plan_takeover
from comity.config.files import state_folder
from comity.errors import Misconfigured
from tests.clients.documents import json_with_comments

CURSOR = BY_NAME["cursor"]
ENTRY = CURSOR.http_entry("http://127.0.0.1:2664/mcp")
TWO = '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}} // mine\n'


def connect(file: ClientFile, *, replace: bool = False) -> list[str]:
    takeover = plan_takeover([(file, file.servers())] if replace else [])
    plan = file.plan_connect(ENTRY, takeover.of(file))
    file.connect(plan)
    return plan.moved


@given(json_with_comments(), st.booleans())
def test_disconnect_gives_back_the_same_bytes(text: str, replace: bool) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "mcp.json")
        path.write_bytes(text.encode())
        file = ClientFile(CURSOR, path)
        moved = connect(file, replace=replace)
        left = file.entries()
        assert left["comity"] == ENTRY
        assert not left.keys() & set(moved)
        assert {*moved, *left} == {*parse_json(text).get("mcpServers", {}), "comity"}
        assert "exactly" in file.disconnect()
        assert path.read_bytes() == text.encode()
        assert find_record(path.resolve()) is None


@given(json_with_comments(), st.booleans())
def test_a_changed_file_gets_its_servers_back_and_keeps_the_change(
    text: str, replace: bool
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "mcp.json")
        path.write_bytes(text.encode())
        file = ClientFile(CURSOR, path)
        connect(file, replace=replace)
        path.write_bytes(path.read_bytes() + b"\n// changed\n")
        assert "changed since" in file.disconnect()
        before = parse_json(text)
        assert parse_json(path.read_bytes().decode()) == {"mcpServers": {}, **before}
        assert path.read_bytes().endswith(b"\n// changed\n")


@pytest.fixture
def file(tmp_path: Path) -> ClientFile:
    path = tmp_path / "mcp.json"
    path.write_text(TWO)
    return ClientFile(CURSOR, path)


def test_servers_that_were_moved_stay_moved_and_are_known(file: ClientFile) -> None:
    assert connect(file, replace=True) == ["a", "b"]
    assert {each.name for each in file.servers()} == {"a", "b", "comity"}
    other = file.plan_connect(CURSOR.http_entry("http://127.0.0.1:9/mcp"))
    assert (other.is_changed, other.moved) == (True, ["a", "b"])
    file.connect(other)
    assert set(file.entries()) == {"comity"}
    file.disconnect()
    assert file.path.read_text() == TWO


def test_servers_come_back_after_somebody_removed_comity_by_hand(file: ClientFile) -> None:
    connect(file, replace=True)
    file.path.write_text('{"mcpServers": {"b": {"command": "mine"}}}')
    assert "put back: a" in file.disconnect()
    assert file.entries() == {"b": {"command": "mine"}, "a": {"command": "x"}}
    assert file.disconnect() == ""


def test_a_file_that_changes_between_plan_and_write_is_left_alone(file: ClientFile) -> None:
    plan = file.plan_connect(ENTRY)
    file.path.write_text("{}")
    with pytest.raises(Misconfigured, match="another program"):
        file.connect(plan)
    assert file.path.read_text() == "{}"


def test_a_connect_that_was_killed_can_be_repeated(file: ClientFile) -> None:
    """The record is written first, so it may describe a file that was never written."""
    save_record(file.plan_connect(ENTRY, file.servers()).record)
    assert file.disconnect() == ""
    assert file.path.read_text() == TWO
    assert connect(file, replace=True) == ["a", "b"]
    file.disconnect()
    assert file.path.read_text() == TWO


def test_a_broken_record_is_no_reason_to_fail(file: ClientFile) -> None:
    connect(file)
    for record in (state_folder() / "clients").glob("*.json"):
        if str(file.path) in record.read_text():
            record.write_text('{"moved": 5}')
    assert "no record" in file.disconnect()
    assert parse_json(file.path.read_text()) == parse_json(TWO)


def test_a_server_of_another_that_is_named_comity_is_given_back(file: ClientFile) -> None:
    file.path.write_text('{"mcpServers": {"comity": {"command": "other"}}}')
    connect(file)
    file.disconnect()
    assert file.entries() == {"comity": {"command": "other"}}


def test_a_file_with_a_key_is_for_one_person_until_it_is_gone(file: ClientFile) -> None:
    file.path.chmod(0o644)
    file.connect(file.plan_connect(CURSOR.http_entry("http://x/mcp", "secret")))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    file.path.write_text(file.path.read_text() + "\n")
    file.connect(file.plan_connect(CURSOR.http_entry("http://x/mcp", "other")))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    file.disconnect()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o644


def test_an_entry_without_a_record_is_removed_all_the_same(file: ClientFile) -> None:
    file.path.write_text('{"mcpServers": {"comity": {"url": "https://elsewhere/mcp"}, "a": {}}}')
    assert "no record" in file.disconnect()
    assert file.entries() == {"a": {}}


def test_links_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    write_whole(link, "x")
    assert (link.is_symlink(), real.read_text()) == (True, "x")
    real.unlink()
    real.symlink_to(link)
    for path in (link, real, link / "below"):
        with pytest.raises(Misconfigured, match="circle"):
            write_whole(path, "x")
    assert (link.readlink(), real.readlink()) == (real, link)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(Misconfigured, match="regular"):
        write_whole(folder, "x")


def test_the_guide_lists_every_client_with_its_file() -> None:
    guide = Path(__file__).parents[2] / "docs/how-to/connect-clients.md"
    rows = {
        line.split("`")[1]: line for line in guide.read_text().splitlines() if line[:3] == "| `"
    }
    for client in CLIENTS:
        path = client.user_file({}, "linux")
        assert path is not None
        assert f"`~/{path.relative_to(Path.home())}`" in rows[client.name]
        assert not client.project or f"project: `{client.project}`" in rows[client.name]
        assert ("| stdio |" in rows[client.name]) == (not client.called)
        place = ".".join(client.headers) if client.called else client.env
        assert f"| `{place}` |" in rows[client.name]
