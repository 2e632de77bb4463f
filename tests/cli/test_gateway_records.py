"""Records of running gateways: who may read them, and which of them count."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from comity.cli.gateway_records import (
    find_gateway,
    find_gateway_by_url,
    new_token,
    prepare_folder,
    remove_record,
    state_folder,
    write_record,
)
from comity.wire.errors import Misconfigured
from tests.interop.processes import answers, running
from tests.surfaces.piped import COMITY

LISTENING = r"listening on (http://\S+)$"


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    return {"COMITY_STATE_DIR": str(tmp_path / "state")}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {}}')
    return path


def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(30)
    return process.pid


def test_the_state_folder_follows_the_environment(tmp_path: Path) -> None:
    home = Path.home() / ".local" / "state" / "comity"
    assert state_folder({}) == home
    assert state_folder({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "comity"
    both = {"XDG_STATE_HOME": str(tmp_path), "COMITY_STATE_DIR": str(tmp_path / "x")}
    assert state_folder(both) == tmp_path / "x"


def test_a_record_is_found_by_its_configuration_and_by_its_address(
    config: Path, environ: Mapping[str, str]
) -> None:
    token = new_token()
    file = write_record("http://127.0.0.1:2801", config, token, environ)
    for found in (
        find_gateway(config, environ),
        find_gateway_by_url("http://127.0.0.1:2801/", environ),
        find_gateway_by_url("http://localhost:2801", environ),
    ):
        assert found is not None
        assert (found.url, found.pid, found.token) == ("http://127.0.0.1:2801", os.getpid(), token)
        assert found.config == str(config)
        assert token not in repr(found)
    assert find_gateway(config.with_name("other.json"), environ) is None
    for other in (
        "http://127.0.0.1:2802",
        "http://example.org:2801",
        "https://127.0.0.1:2801",
        ":",
    ):
        assert find_gateway_by_url(other, environ) is None
    remove_record(file)
    assert find_gateway(config, environ) is None


def test_an_address_for_every_interface_is_recorded_as_one_to_connect_to(
    config: Path, environ: Mapping[str, str]
) -> None:
    write_record("http://0.0.0.0:2801", config, "", environ)
    write_record("http://[::]:2802", config, "", environ)
    first = find_gateway_by_url("http://127.0.0.1:2801", environ)
    second = find_gateway_by_url("http://localhost:2802", environ)
    assert (first and first.url, second and second.url) == (
        "http://127.0.0.1:2801",
        "http://[::1]:2802",
    )


def test_folder_and_file_are_for_their_user_alone(config: Path, environ: Mapping[str, str]) -> None:
    folder = prepare_folder(environ)
    folder.chmod(0o755)
    file = write_record("http://127.0.0.1:2801", config, "t", environ)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (folder.parent, folder, file)]
    assert modes == [0o700, 0o700, 0o600]
    assert [each.name for each in folder.iterdir()] == ["2801.json"]


def test_a_record_that_others_may_read_is_not_used(
    config: Path, environ: Mapping[str, str]
) -> None:
    file = write_record("http://127.0.0.1:2801", config, "t", environ)
    for mode in (0o640, 0o604, 0o660):
        file.chmod(mode)
        assert find_gateway(config, environ) is None
    file.chmod(0o600)
    assert find_gateway(config, environ) is not None


def test_a_record_of_another_user_is_not_used(
    config: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record("http://127.0.0.1:2801", config, "t", environ)
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert find_gateway(config, environ) is None
    with pytest.raises(Misconfigured, match="belongs to another user"):
        prepare_folder(environ)


def test_a_link_in_the_place_of_a_record_is_not_followed(
    config: Path, environ: Mapping[str, str]
) -> None:
    file = write_record("http://127.0.0.1:2801", config, "t", environ)
    elsewhere = config.with_name("elsewhere.json")
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert find_gateway(config, environ) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "{}", '{"url": 1}', "[" * 100_000, '{"pid": "7", "url": ""}']
)
def test_a_record_that_cannot_be_read_is_not_used(
    config: Path, environ: Mapping[str, str], text: str
) -> None:
    write_record("http://127.0.0.1:2801", config, "t", environ).write_text(text)
    assert find_gateway(config, environ) is None


def test_the_record_of_a_dead_process_is_removed(config: Path, environ: Mapping[str, str]) -> None:
    file = write_record("http://127.0.0.1:2801", config, "t", environ)
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": ended_process()}))
    assert find_gateway(config, environ) is None
    assert not file.exists()


def test_the_record_of_a_pid_that_was_reused_is_removed(
    config: Path, environ: Mapping[str, str]
) -> None:
    file = write_record("http://127.0.0.1:2801", config, "t", environ)
    file.write_text(json.dumps({**json.loads(file.read_text()), "started": "1"}))
    assert find_gateway(config, environ) is None
    assert not file.exists()


def test_a_process_removes_no_record_but_its_own(config: Path, environ: Mapping[str, str]) -> None:
    file = write_record("http://127.0.0.1:2801", config, "t", environ)
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": os.getppid()}))
    remove_record(file)
    assert file.exists()


def test_a_folder_that_cannot_be_made_is_explained(config: Path) -> None:
    with pytest.raises(Misconfigured, match="COMITY_STATE_DIR"):
        prepare_folder({"COMITY_STATE_DIR": str(config / "state")})


def test_two_gateways_leave_two_records_and_take_them_with_them(
    config: Path, environ: Mapping[str, str]
) -> None:
    other = config.with_name("other.json")
    other.write_text(config.read_text())
    serve = [COMITY, "serve", "--port", "0"]
    with (
        running([*serve, str(config)], environ) as one,
        running([*serve, str(other)], environ) as two,
    ):
        origins = [each.wait_for_line(LISTENING).group(1) for each in (one, two)]
        found = [find_gateway(each, environ) for each in (config, other)]
        assert [each and each.url for each in found] == origins
        tokens = {each.token for each in found if each}
        assert len(tokens) == 2
        shown = one.wait_for_line(r"the operator token for `comity` commands is in (\S+)$").group(1)
        assert json.loads(Path(shown).read_text())["token"] in tokens
        assert not any(token in each.said for token in tokens for each in (one, two))
    assert [*(state_folder(environ) / "gateways").iterdir()] == []


def test_a_gateway_that_was_killed_is_not_found(config: Path, environ: Mapping[str, str]) -> None:
    # A child of this process: it stays a zombie until somebody waits for it.
    serve = [COMITY, "serve", str(config), "--port", "0"]
    with running(serve, environ, may_fork=False) as gateway:
        gateway.wait_for_line(LISTENING)
        assert find_gateway(config, environ) is not None
        os.kill(gateway.pid, signal.SIGKILL)
        # It has ended, and its parent has not looked yet.
        os.waitid(os.P_PID, gateway.pid, os.WEXITED | os.WNOWAIT)
        assert find_gateway(config, environ) is None
    assert [*(state_folder(environ) / "gateways").iterdir()] == []


def test_a_gateway_with_keys_leaves_a_record_without_a_token(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    config = tmp_path / "comity.toml"
    config.write_text('[identity]\nmode = "required"\n')
    with running([COMITY, "serve", str(config), "--port", "0"], environ) as gateway:
        origin = gateway.wait_for_line(LISTENING).group(1)
        found = find_gateway(config, environ)
        assert found is not None
        assert (found.url, found.token) == (origin, "")


def test_a_gateway_in_local_mode_needs_a_place_for_its_token(config: Path) -> None:
    done = subprocess.run(
        [COMITY, "serve", str(config), "--port", "0"],
        env={**os.environ, "COMITY_STATE_DIR": str(config / "state")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "name another one in COMITY_STATE_DIR" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gateway_with_keys_starts_without_such_a_place(tmp_path: Path) -> None:
    config = tmp_path / "comity.toml"
    config.write_text('[identity]\nmode = "required"\n')
    nowhere = {"COMITY_STATE_DIR": str(config / "state")}
    with running([COMITY, "serve", str(config), "--port", "0"], nowhere) as gateway:
        origin = gateway.wait_for_line(LISTENING).group(1)
        assert answers(f"{origin}/health")
        gateway.wait_for_line("commands do not find this gateway by its configuration")
