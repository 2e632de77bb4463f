"""`comity servers learn` with a real server that reads, writes, connects and executes."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from comity.servers.sandbox.learning.trace import trace_problem
from comity.servers.sandbox.levels import bubblewrap_problem
from tests.cli.program import Desk, Ran, Terminal
from tests.servers.sandbox.test_confined_gateway import a_site
from tests.support.fork_server import COMITY

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="recording files needs Linux"),
    pytest.mark.skipif(trace_problem() is not None, reason="strace does not work here"),
]

SERVER = Path(__file__).with_name("confined_server.py")
ESCAPE = "\x1b]0;title\x07"
SHADOW = "".join(f"\\x{byte:02x}" for byte in b"/etc/shadow")
HOSTILE_NAMES = (
    f"{ESCAPE} \x1b[31mred",
    f'", O_RDONLY) = 3<{SHADOW}>',
    f'line\n1 openat(AT_FDCWD<>, "{SHADOW}", O_RDONLY) = 3<{SHADOW}>',
    "<unfinished ...>",
    "b\udcff\u202eend",
)

type Call = tuple[str, Mapping[str, Any]]


def write_config(desk: Desk, **entry: str) -> Path:
    """Write a configuration. Without `site`, Python reads no folder of an editable package."""
    extra = "".join(f"{name} = {json.dumps(value)}\n" for name, value in entry.items())
    return desk.write(
        "comity.toml",
        f"""# The servers of a test.
[[servers]]
id = "confined"
command = {json.dumps(sys.executable)}
args = ["-S", {json.dumps(str(SERVER))}]
env = {{ PYTHONPATH = {json.dumps(sysconfig.get_path("purelib"))} }}
{extra}
[servers.policy]
permissions = ["memory.read"]
risk = "safe"

# Another one.
[[servers]]
id = "other"
command = "other"
""",
    )


def write_calls(desk: Desk, *calls: Call) -> None:
    lines = [json.dumps({"tool": tool, "arguments": arguments}) for tool, arguments in calls]
    desk.write("calls.jsonl", "\n".join(lines))


def learn(desk: Desk, *calls: Call, options: tuple[str, ...] = ("-o", "json")) -> Ran:
    write_calls(desk, *calls)
    arguments = ("servers", "learn", "confined", "--calls", "calls.jsonl", "--yes")
    return desk.run(*arguments, *options)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    found = Desk(tmp_path)
    for name in ("read", "write", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    write_config(found)
    return found


@pytest.mark.parametrize("protocol", ["2025-11-25", "auto"])
def test_the_proposal_has_exactly_what_the_server_used(
    desk: Desk, tmp_path: Path, protocol: str
) -> None:
    write_config(desk, protocol=protocol)
    with a_site() as port:
        ran = learn(
            desk,
            ("read", {"path": str(tmp_path / "read/file")}),
            ("write", {"path": str(tmp_path / "write/new"), "text": "x"}),
            ("fetch", {"url": f"http://127.0.0.1:{port}/"}),
            ("execute", {"words": ["/bin/echo", "hello"]}),
        )
    assert ran.status == 0, ran.err
    assert ran.json["permissions"] == {
        "filesystem.read": [str(tmp_path / "read")],
        "filesystem.write": [str(tmp_path / "write")],
        "network.outbound": [f"127.0.0.1:{port}"],
        "shell.execute": [],
        "memory.read": [],
    }
    assert ran.json["notes"] == ["It executed other programs: /bin/echo."]
    assert "read" in ran.json["tools"]


def test_a_server_that_touches_nothing_needs_nothing(desk: Desk) -> None:
    ran = learn(desk, ("variables", {}))
    assert ran.json["permissions"] == {"memory.read": []}
    assert ran.json["notes"] == []


def test_a_server_of_the_modern_protocol_is_learned(desk: Desk, tmp_path: Path) -> None:
    write_config(desk, protocol="2026-07-28")
    ran = learn(desk, ("read", {"path": str(tmp_path / "read/file")}))
    assert ran.status == 0, ran.err
    assert ran.json["permissions"]["filesystem.read"] == [str(tmp_path / "read")]


def test_hostile_file_names_change_neither_the_proposal_nor_the_terminal(
    desk: Desk, tmp_path: Path
) -> None:
    strange = tmp_path / "other" / HOSTILE_NAMES[0]
    strange.mkdir()
    calls: list[Call] = []
    for name in HOSTILE_NAMES:
        (tmp_path / "read" / name).write_text("x")
        # JSON has no lone surrogates, so this one name stays unused.
        if name.isascii():
            calls.append(("read", {"path": str(tmp_path / "read" / name)}))
    calls.append(("write", {"path": str(strange / "new"), "text": "x"}))
    ran = learn(desk, *calls)
    assert ran.json["permissions"] == {
        "filesystem.read": [str(tmp_path / "read")],
        "memory.read": [],
    }
    (note,) = ran.json["notes"]
    assert note.startswith("A configuration cannot name these places: ")
    shown = learn(desk, *calls, options=())
    assert "\x1b" not in shown.out + shown.err
    assert "\x07" not in shown.out + shown.err
    assert "/etc/shadow" not in shown.out


def test_a_link_is_shown_with_the_folder_that_it_leads_to(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "write" / "link").symlink_to(tmp_path / "other")
    ran = learn(desk, ("read", {"path": str(tmp_path / "write/link/file")}))
    assert ran.json["permissions"]["filesystem.read"] == [
        str(tmp_path / "other"),
        str(tmp_path / "write" / "link"),
    ]


def test_single_files_are_proposed_where_a_folder_is_too_wide(desk: Desk) -> None:
    desk.write("~/notes.txt", "notes")
    ran = learn(
        desk,
        ("read", {"path": str(desk.home / "notes.txt")}),
        ("read", {"path": "/etc/hostname"}),
    )
    assert ran.json["permissions"]["filesystem.read"] == [
        "/etc/hostname",
        str(desk.home / "notes.txt"),
    ]


def test_files_of_comity_itself_are_never_proposed(desk: Desk) -> None:
    secret = Path(desk.env["COMITY_STATE_DIR"], "learning-secret")
    secret.write_text("x")
    ran = learn(desk, ("read", {"path": str(secret)}))
    assert ran.json["permissions"] == {"memory.read": []}
    assert ran.json["notes"] == [
        f"It used files of Comity itself, which it never gets: {secret.resolve()}."
    ]


def test_a_connection_without_the_proxy_is_told(desk: Desk) -> None:
    with a_site() as port:
        ran = learn(desk, ("connect", {"host": "127.0.0.1", "port": port}))
    assert ran.json["permissions"] == {"memory.read": []}
    assert ran.json["notes"] == [
        f"It connected without the proxy, which a confined server cannot: 127.0.0.1:{port}."
    ]


def test_a_failed_call_is_told_with_status_1(desk: Desk) -> None:
    ran = learn(desk, ("read", {"path": "/does/not/exist"}), ("nothing", {}))
    assert ran.status == 1
    first, second = ran.json["failures"]
    assert first.startswith("read: ")
    assert second.startswith("nothing: ")


def test_the_proposal_is_written_into_the_configuration(desk: Desk, tmp_path: Path) -> None:
    config = desk.folder / "comity.toml"
    before = tomllib.loads(config.read_text())
    call = ("read", {"path": str(tmp_path / "read/file")})
    after = before
    for _ in range(2):
        ran = learn(desk, call, options=("--write",))
        assert ran.status == 0, ran.err
        after = tomllib.loads(config.read_text())
        permissions = after["servers"][0]["policy"].pop("permissions")
        assert permissions == {"filesystem.read": [str(tmp_path / "read")], "memory.read": []}
        assert "# The servers of a test." in config.read_text()
        assert "# Another one.\n[[servers]]" in config.read_text()
    before["servers"][0]["policy"].pop("permissions")
    assert after == before
    # The approval of the file by its person holds for the new content.
    assert desk.run("config", "check").status == 0
    assert learn(desk, call).status == 0


def test_an_entry_of_another_form_is_left_alone(desk: Desk, tmp_path: Path) -> None:
    config = write_config(desk)
    text = config.read_text().replace('[servers.policy]\npermissions = ["memory.read"]\n', "")
    desk.write("comity.toml", text.replace('risk = "safe"', 'policy = { risk = "safe" }'))
    before = config.read_text()
    ran = learn(desk, ("read", {"path": str(tmp_path / "read/file")}), options=("--write",))
    assert ran.status == 2
    assert "change it by hand" in ran.err
    assert config.read_text() == before


def test_a_script_needs_yes_and_a_person_is_asked(desk: Desk) -> None:
    refused = desk.run("servers", "learn", "confined")
    assert refused.status == 2
    assert "will run with the rights of your user" in refused.err
    assert "add --yes" in refused.err
    terminal = Terminal(desk, "servers", "learn", "confined")
    terminal.until("with wide rights?")
    terminal.type("n\n")
    assert terminal.end() != 0
    assert "PERMISSION" not in terminal.seen


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("unknown", "", "there is no server 'unknown'"),
        ("confined", '{"tool": 1}', "line 1 is not a call"),
        ("confined", '{"tool": "a"}\n[]', "line 2 is not a call"),
    ],
)
def test_mistakes_are_told_before_the_server_runs(
    desk: Desk, name: str, content: str, reason: str
) -> None:
    desk.write("calls.jsonl", content)
    ran = desk.run("servers", "learn", name, "--calls", "calls.jsonl", "--yes")
    assert ran.status == 2
    assert reason in ran.err


@pytest.mark.skipif(bubblewrap_problem() is not None, reason="bubblewrap hides strace here")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "strace is not installed (package `strace`)"),
        (
            "#!/bin/sh\necho 'PTRACE_TRACEME: Operation not permitted' >&2\nexit 1\n",
            "strace does not work here (PTRACE_TRACEME: Operation not permitted)",
        ),
    ],
)
def test_without_strace_only_the_network_is_learned(
    desk: Desk, tmp_path: Path, script: str | None, reason: str
) -> None:
    stand_in = tmp_path / "strace"
    stand_in.write_text(script or "")
    stand_in.chmod(0o755 if script else 0o644)
    strace = shutil.which("strace")
    assert strace is not None
    with a_site() as port:
        write_calls(
            desk,
            ("read", {"path": str(tmp_path / "read/file")}),
            ("fetch", {"url": f"http://127.0.0.1:{port}/"}),
        )
        # The program that hides the real one also leads to its real place.
        real = os.path.realpath(strace)
        hide = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(stand_in), real]
        words = ["servers", "learn", "confined", "--calls", "calls.jsonl", "--yes", "-o", "json"]
        done = subprocess.run(
            [*hide, COMITY, *words],
            cwd=desk.folder,
            env=desk.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert f"Only the network is recorded: {reason}." in done.stderr
    found = json.loads(done.stdout)
    assert found["permissions"] == {"network.outbound": [f"127.0.0.1:{port}"], "memory.read": []}
    assert found["notes"] == [f"Files and programs were not recorded: {reason}."]
