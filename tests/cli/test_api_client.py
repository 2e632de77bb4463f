"""How a command finds a gateway and reads its answers."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from comity.cli.api_client import (
    ApiClient,
    find_gateway,
    find_gateway_by_url,
    new_token,
    prepare_folder,
    remove_record,
    write_record,
)
from comity.cli.options import CliOptions
from comity.cli.target import DEFAULT_URL, find_target
from comity.config.files import state_folder
from comity.errors import Misconfigured, Unavailable
from tests.cli.program import EXAMPLE, Desk
from tests.cli.scripted_gateway import JSON, Heard, Said, scripted_gateway
from tests.interop.processes import answers, comity, free_port, running
from tests.support.approved_files import approve_files
from tests.support.cases import loop_over
from tests.support.piped import COMITY

pytestmark = pytest.mark.timeout(300)


@loop_over(
    ("status", "kind", "body"),
    [
        (200, "text/html", b"<html>"),
        (200, JSON, b"[]"),
        (200, JSON, b"{"),
        (404, "text/html", b"not here"),
        (404, JSON, b'{"detail": "Not Found"}'),
        (500, JSON, b'{"error": {"message": "a bug"}}'),
    ],
)
def test_what_is_no_gateway_is_told_apart_from_one(status: int, kind: str, body: bytes) -> None:
    with (
        scripted_gateway(lambda _: (status, kind, body)) as stranger,
        pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:\d+"),
    ):
        ApiClient(stranger.url).status()


@loop_over("banner", [b'INFO {"server_id":"N1"}\r\n', b"220 mail\r\n" * 9000])
def test_a_service_that_does_not_speak_http_is_told_without_its_words(banner: bytes) -> None:
    with _service(banner) as url, pytest.raises(Unavailable) as refused:
        ApiClient(url).status()
    assert str(refused.value) == (
        f"{url} does not answer as an HTTP server, so it is no Comity gateway; name yours "
        "with --url or --context"
    )


def test_a_connection_that_ends_without_an_answer_is_told_so() -> None:
    with (
        _service(b"") as url,
        pytest.raises(Unavailable, match=r"before its answer was whole.*comity serve"),
    ):
        ApiClient(url).status()


@contextmanager
def _service(banner: bytes) -> Generator[str]:
    """A service that greets whoever comes, and speaks another protocol than HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            with listening.accept()[0] as connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(banner)

        greeting = threading.Thread(target=greet, daemon=True)
        greeting.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        greeting.join(10)


def test_a_refusal_is_told_in_the_gateways_own_words() -> None:
    refusal = b'{"error": {"message": "there is no server \'x\'"}}'
    with (
        scripted_gateway(lambda _: (404, JSON, refusal)) as gateway,
        pytest.raises(Misconfigured, match="there is no server 'x'"),
    ):
        ApiClient(gateway.url).get("servers", "x")


def test_every_page_of_the_tools_is_read() -> None:
    def script(heard: Heard) -> Said:
        if "cursor=more" in heard.path:
            return 200, JSON, b'{"tools": [{"name": "b"}]}'
        return 200, JSON, b'{"tools": [{"name": "a"}], "next": "more"}'

    with scripted_gateway(script) as gateway:
        tools = ApiClient(gateway.url).tools(search="x y")
        assert [tool["name"] for tool in tools] == ["a", "b"]
    assert gateway.heard[0].path == "/api/tools?search=x+y"


def test_no_name_leads_out_of_its_place() -> None:
    with scripted_gateway(lambda _: (200, JSON, b"{}")) as gateway:
        ApiClient(gateway.url).get("servers", "../status?x=#y")
    assert gateway.heard[0].path == "/api/servers/..%2Fstatus%3Fx%3D%23y"


@loop_over(
    ("given", "url"),
    [
        ("http://127.0.0.1:2664", "http://127.0.0.1:2664"),
        ("http://127.0.0.1:2664/mcp", "http://127.0.0.1:2664"),
        ("127.0.0.1:3000", "http://127.0.0.1:3000"),
        ("https://user:secret@gw.example.org/x", "https://gw.example.org"),
        ("http://[::1]:5", "http://[::1]:5"),
    ],
)
def test_an_address_is_understood_as_people_give_it(given: str, url: str) -> None:
    assert ApiClient(given).url == url


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
    # Nor is a link in the place of a record followed.
    elsewhere = config.with_name("elsewhere.json")
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert find_gateway(config, environ) is None


def test_a_record_of_another_user_is_not_used(
    config: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record("http://127.0.0.1:2801", config, "t", environ)
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert find_gateway(config, environ) is None
    with pytest.raises(Misconfigured, match="belongs to another user"):
        prepare_folder(environ)


def test_a_record_that_cannot_be_read_is_not_used(config: Path, environ: Mapping[str, str]) -> None:
    file = write_record("http://127.0.0.1:2801", config, "t", environ)
    for text in ("", "[]", "{", "{}", '{"url": 1}', "[" * 100_000, '{"pid": "7", "url": ""}'):
        file.write_text(text)
        assert find_gateway(config, environ) is None, text[:40]


def test_record_of_an_ended_process_is_removed(config: Path, environ: Mapping[str, str]) -> None:
    # The second has the pid of another process by now.
    for changed in ({"pid": ended_process()}, {"started": "1"}):
        file = write_record("http://127.0.0.1:2801", config, "t", environ)
        file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
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
        running([*serve, "-c", str(config)], environ) as one,
        running([*serve, "-c", str(other)], environ) as two,
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
    serve = [COMITY, "serve", "-c", str(config), "--port", "0"]
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
    with running([COMITY, "serve", "-c", str(config), "--port", "0"], environ) as gateway:
        origin = gateway.wait_for_line(LISTENING).group(1)
        found = find_gateway(config, environ)
        assert found is not None
        assert (found.url, found.token) == (origin, "")


def test_a_gateway_in_local_mode_needs_a_place_for_its_token(config: Path) -> None:
    done = subprocess.run(
        [COMITY, "serve", "-c", str(config), "--port", "0"],
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
    with running([COMITY, "serve", "-c", str(config), "--port", "0"], nowhere) as gateway:
        origin = gateway.wait_for_line(LISTENING).group(1)
        assert answers(f"{origin}/health")
        gateway.wait_for_line("Commands cannot find this gateway by its configuration")


CONFIG = """
port = {port}
[store]
url = "sqlite:///{folder}/comity.db"
[[servers]]
id = "try"
command = {command}
args = {args}
"""


def write_config(desk: Desk, port: int) -> Path:
    command, args = json.dumps(EXAMPLE["command"]), json.dumps(EXAMPLE["args"])
    text = CONFIG.format(port=port, folder=desk.folder, command=command, args=args)
    return desk.write("comity.toml", text)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Desk, str]]:
    """A folder whose configuration a gateway runs, and the address of the gateway."""
    desk = Desk(tmp_path_factory.mktemp("served"))
    with comity(write_config(desk, free_port()), desk.env) as origin:
        yield desk, origin


def test_commands_find_the_gateway_of_the_configuration_in_this_folder(
    served: tuple[Desk, str],
) -> None:
    desk, here = served
    assert desk.run("status", "-o", "json").json["url"] == here
    assert [each["id"] for each in desk.run("servers", "-o", "json").json["servers"]] == ["try"]
    made = desk.run("keys", "create", "agent:ci", "-o", "json")
    assert made.status == 0, made.err
    added = desk.run("grants", "create", "agent:ci", "try__echo", "-o", "json")
    assert (added.status, added.json["granted_by"]) == (0, "person:local")
    listed = desk.run("keys", "-o", "json")
    assert [key["principal"] for key in listed.json["keys"]] == ["agent:ci"]
    assert desk.run("call", "try__echo", "message=hello").out.strip() == "hello"
    for ran in (made, added, listed):
        assert "store" not in ran.err
    # The gateway itself has them: it lets the holder of the key in.
    seen = desk.run("tools", "-o", "json", COMITY_KEY=made.json["key"]).json["tools"]
    assert [tool["name"] for tool in seen] == ["try__echo"]


def test_a_configuration_that_is_named_stands_over_the_folder(
    served: tuple[Desk, str], desk: Desk
) -> None:
    named = ("-c", str(served[0].folder / "comity.toml"))
    there = served[0].run("keys", "-o", "json").json
    assert desk.run("keys", "-o", "json", *named).json == there
    ran = desk.run("call", "try__echo", "message=hello", *named)
    assert ran.out.strip() == "hello", ran.err


def test_an_address_stands_over_the_configuration(served: tuple[Desk, str]) -> None:
    desk, here = served
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
    config = write_config(desk, 0)
    with running([COMITY, "serve", "-c", str(config)], desk.env) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        assert desk.run("status", "-o", "json").json["url"] == origin


def test_without_a_gateway_the_port_of_the_file_is_named(desk: Desk) -> None:
    port = free_port()
    write_config(desk, port)
    ran = desk.run("servers")
    assert ran.status == 3
    assert f"no gateway answers at http://127.0.0.1:{port} " in ran.err


def test_a_file_that_cannot_be_read_names_no_other_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COMITY_URL", raising=False)
    assert find_target(CliOptions()).url == DEFAULT_URL
    (tmp_path / "comity.toml").write_text("port = [")
    assert find_target(CliOptions()).url == DEFAULT_URL
    (tmp_path / "comity.toml").write_text('port = 2801\nhost = "::"\n')
    assert find_target(CliOptions()).url == DEFAULT_URL
    approve_files(tmp_path)
    assert find_target(CliOptions()).url == "http://[::1]:2801"
    monkeypatch.setenv("COMITY_URL", "http://127.0.0.1:9")
    assert find_target(CliOptions()).url == "http://127.0.0.1:9"


def test_a_token_of_another_gateway_is_not_shown(served: tuple[Desk, str]) -> None:
    desk, here = served
    record = find_gateway(desk.folder / "comity.toml", os.environ)
    assert record is not None
    ran = desk.run("status", "--url", here, COMITY_STATE_DIR=str(desk.home / "none"))
    assert ran.status == 4
    assert "operator token" in ran.err
    assert record.token not in ran.err
