"""What a program can no longer do once it is confined; tried in real processes."""

import os
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest

from comity.errors import Unavailable
from comity.servers.sandbox.launch import sandbox_command
from comity.servers.sandbox.model import (
    MEGABYTE,
    SandboxAccess,
    SandboxLevel,
    SandboxLimits,
    SandboxPolicy,
)
from comity.servers.sandbox.stage import restrict_syscalls
from tests.servers.sandbox.levels import BOTH_LEVELS, opened_policy, skip_without

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
]

LIMITS = SandboxLimits(memory=512 * MEGABYTE)

each_level = pytest.mark.parametrize("level", BOTH_LEVELS, ids=lambda level: level.label)


@pytest.fixture(autouse=True)
def possible_level(request: pytest.FixtureRequest) -> None:
    if "level" in request.fixturenames:
        skip_without(request.getfixturevalue("level"))


def run(
    level: SandboxLevel,
    code: str,
    folder: Path,
    access: SandboxAccess | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    access = access or SandboxAccess(writable=(str(folder),))
    words = (sys.executable, "-I", "-c", code)
    env = {**os.environ, **variables}
    with opened_policy(level, access, LIMITS) as policy:
        argv = sandbox_command(policy, words, env, folder=str(folder), scratch=str(folder))
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=60, check=False, env=env
        )


REFUSED = {
    "a socket": "import socket; socket.socket()",
    "a socket of this machine": "import socket; socket.socket(socket.AF_UNIX)",
    "a file of the system's": "open('/etc/passwd')",
    "another's variables": "import os; open(f'/proc/{os.getppid()}/environ')",
    "another's home": "import os; os.listdir('/home')",
    "a file elsewhere": "open('/var/confined-elsewhere', 'w')",
    "a signal to another": "import os; os.kill(os.getppid(), 0)",
    "more memory": "bytearray(700 * 1024 * 1024)",
    "another namespace": "import os; os.unshare(os.CLONE_NEWNS)",
    "a file of somebody else's": "import os; open('x', 'w'); os.chown('x', 1, 1)",
    "a link to elsewhere": "import os; os.symlink('/etc/passwd', 'l'); open('l')",
}


@each_level
@pytest.mark.parametrize("code", REFUSED.values(), ids=REFUSED)
def test_what_it_may_not_use_is_refused(level: SandboxLevel, code: str, tmp_path: Path) -> None:
    done = run(level, code, tmp_path)
    assert done.returncode == 1
    assert "Error" in done.stderr.splitlines()[-1]


ALLOWED = {
    "nothing": "",
    "its own folder": "open('x', 'w').write('1'); assert open('x').read() == '1'",
    "an event loop": "import asyncio; asyncio.run(asyncio.sleep(0))",
    "a process of its own": "import os, sys; os.fork() or sys.exit(); os.wait()",
    "a thread": "import threading; t = threading.Thread(target=int); t.start(); t.join()",
    "chance": "import os; os.urandom(8)",
}


@each_level
@pytest.mark.parametrize("code", ALLOWED.values(), ids=ALLOWED)
def test_what_every_program_needs_is_there(level: SandboxLevel, code: str, tmp_path: Path) -> None:
    done = run(level, code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@each_level
def test_a_program_executes_others_only_with_the_permission(
    level: SandboxLevel, tmp_path: Path
) -> None:
    code = "import subprocess; subprocess.run(['/bin/sh', '-c', 'exit 0'], check=True)"
    assert run(level, code, tmp_path).returncode == 1
    allowed = SandboxAccess(writable=(str(tmp_path),), may_execute=True)
    done = run(level, code, tmp_path, allowed)
    assert (done.returncode, done.stderr) == (0, "")


@each_level
def test_what_is_granted_for_reading_cannot_be_written(level: SandboxLevel, tmp_path: Path) -> None:
    shown, own = tmp_path / "shown", tmp_path / "own"
    shown.mkdir()
    own.mkdir()
    (shown / "x").write_text("1")
    code = f"assert open({str(shown / 'x')!r}).read() == '1'\nopen({str(shown / 'x')!r}, 'w')"
    done = run(level, code, own, SandboxAccess((str(shown),), (str(own),)))
    assert "Error" in done.stderr.splitlines()[-1]
    assert (shown / "x").read_text() == "1"


@each_level
def test_what_it_starts_is_confined_with_it(level: SandboxLevel, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "inner = 'import socket; socket.socket()'\n"
        "sys.exit(subprocess.run([sys.executable, '-I', '-c', inner]).returncode)"
    )
    done = run(level, code, tmp_path)
    assert done.returncode == 1
    assert "PermissionError" in done.stderr


@each_level
def test_a_virtual_environment_finds_its_packages(level: SandboxLevel, tmp_path: Path) -> None:
    done = run(level, "import msgspec; print(msgspec.__name__)", tmp_path)
    assert (done.stdout, done.stderr) == ("msgspec\n", "")


@each_level
def test_a_script_reads_the_modules_beside_it(level: SandboxLevel, tmp_path: Path) -> None:
    program, own = tmp_path / "program", tmp_path / "own"
    program.mkdir()
    own.mkdir()
    (program / "beside.py").write_text("value = 7\n")
    (program / "server.py").write_text("import beside; print(beside.value)\n")
    argv = sandbox_command(
        SandboxPolicy(level, SandboxAccess(), LIMITS),
        (sys.executable, "program/server.py"),
        os.environ,
        folder=str(tmp_path),
        scratch=str(own),
    )
    # The command line is as the operator wrote it, and the program runs elsewhere.
    argv = (*argv[:-1], str(program / "server.py"))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("7\n", "")


@each_level
@pytest.mark.parametrize("words", [("server.py",), ("-m", "server")], ids=["script", "module"])
def test_a_script_finds_its_modules_and_no_other_files(
    level: SandboxLevel, words: tuple[str, ...], tmp_path: Path
) -> None:
    program, own = tmp_path / "program", tmp_path / "own"
    own.mkdir()
    for name, text in {
        "beside.py": "value = 1\n",
        "package/__init__.py": "value = 2\n",
        "package/table.json": "3",
        "src/inner/__init__.py": "value = 4\n",
        "comity.toml": "secret",
        ".env": "secret",
        ".git/hooks/update.py": "secret",
        "data/notes.json": "secret",
        "server.log": "secret",
    }.items():
        (program / name).parent.mkdir(parents=True, exist_ok=True)
        (program / name).write_text(text)
    (program / "linked.py").symlink_to("beside.py")
    (program / "leak.py").symlink_to(".env")
    (program / "server.py").write_text(
        """
import sys
from pathlib import Path
import beside, linked, package
sys.path.append("src")
from inner import value
print(beside.value, linked.value, package.value, Path("package/table.json").read_text(), value)
for place in ("comity.toml", ".env", ".git/hooks/update.py", "data/notes.json", "server.log",
              "leak.py"):
    try:
        print(place, Path(place).read_text())
    except OSError:
        pass
"""
    )
    argv = sandbox_command(
        SandboxPolicy(level, SandboxAccess(), LIMITS),
        (sys.executable, *words),
        os.environ,
        folder=str(program),
        scratch=str(own),
    )
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("1 1 2 3 4\n", "")


def test_a_folder_with_too_many_modules_is_not_opened(tmp_path: Path) -> None:
    for number in range(1025):
        (tmp_path / f"module_{number}.py").touch()
    with pytest.raises(Unavailable, match="move the program to a folder of its own"):
        sandbox_command(
            SandboxPolicy(SandboxLevel.LANDLOCK),
            (sys.executable, "module_7.py"),
            {},
            folder=str(tmp_path),
        )


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(Unavailable, match="there is no such program"):
        sandbox_command(
            SandboxPolicy(SandboxLevel.LANDLOCK), ("no-such-program-anywhere",), {}, folder="/"
        )


def test_a_machine_that_has_no_filter_confines_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="pdp11"))
    with pytest.raises(OSError, match="pdp11"):
        restrict_syscalls(network=False, execution=False, namespaces=True)


@each_level
def test_a_script_runs_by_the_interpreter_that_its_first_line_names(
    level: SandboxLevel, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    real, linked = tmp_path / "real", tmp_path / "linked"
    (real / "bin").mkdir(parents=True)
    linked.symlink_to(real)
    script = real / "bin" / "server"
    script.write_text("#!/bin/sh\necho started\n")
    script.chmod(0o755)
    argv = sandbox_command(
        SandboxPolicy(level, SandboxAccess(), LIMITS),
        (str(linked / "bin" / "server"),),
        os.environ,
        folder=str(tmp_path),
        scratch=str(own),
    )
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("started\n", "")


@each_level
def test_a_relocatable_launcher_of_uv_runs(level: SandboxLevel, tmp_path: Path) -> None:
    """Its own line calls `dirname` and `realpath`, which the sandbox does not have."""
    place, own = tmp_path / "venv", tmp_path / "own"
    venv.create(place, symlinks=True)
    own.mkdir()
    launcher = place / "bin" / "server"
    line = '\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")"/\'python\' "$0" "$@"'
    launcher.write_text(f"#!/bin/sh\n{line}\n' '''\nimport sys\nprint(sys.prefix, sys.argv)\n")
    launcher.chmod(0o755)
    with opened_policy(level, SandboxAccess(), LIMITS) as policy:
        argv = sandbox_command(
            policy, (str(launcher), "--all"), os.environ, folder=str(own), scratch=str(own)
        )
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"{place} {[str(launcher), '--all']}\n", done.stderr
