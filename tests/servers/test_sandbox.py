"""What a program can no longer do once it is confined; tried in real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from comity.servers.process.sandbox import (
    SANDBOX_FAILED_STATUS,
    SandboxLimits,
    restrict_syscalls,
    sandbox_command,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's own"),
]

MEMORY = 512 * 1024 * 1024


def run(
    code: str, folder: Path, *, network: bool = False, readable: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    bounds = SandboxLimits(network, MEMORY, readable, (str(folder),))
    argv = sandbox_command(bounds, (sys.executable, "-I", "-c", code))
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


REFUSED = {
    "a socket": "import socket; socket.socket()",
    "a socket of this machine": "import socket; socket.socket(socket.AF_UNIX)",
    "a file of the system's": "open('/etc/passwd')",
    "another's variables": "import os; open(f'/proc/{os.getppid()}/environ')",
    "another's home": "import os; os.listdir('/root')",
    "a file elsewhere": "open('/tmp/confined-elsewhere', 'w')",
    "a signal to another": "import os; os.kill(os.getppid(), 0)",
    "more memory": "bytearray(700 * 1024 * 1024)",
    "another namespace": "import os; os.unshare(os.CLONE_NEWNS)",
    "a file of somebody else's": "import os; open('x', 'w'); os.chown('x', 1, 1)",
    "a link to elsewhere": "import os; os.symlink('/etc/passwd', 'l'); open('l')",
}


@pytest.mark.parametrize("code", REFUSED.values(), ids=REFUSED)
def test_what_it_may_not_use_is_refused(code: str, tmp_path: Path) -> None:
    done = run(f"import os; os.chdir({str(tmp_path)!r})\n{code}", tmp_path)
    assert done.returncode == 1
    assert "PermissionError" in done.stderr or "MemoryError" in done.stderr


ALLOWED = {
    "nothing": "",
    "its own folder": "open('x', 'w').write('1'); assert open('x').read() == '1'",
    "an event loop": "import asyncio; asyncio.run(asyncio.sleep(0))",
    "a process of its own": "import subprocess; subprocess.run(['true'], check=True)",
    "a thread": "import threading; t = threading.Thread(target=int); t.start(); t.join()",
    "chance": "import os; os.urandom(8)",
}


@pytest.mark.parametrize("code", ALLOWED.values(), ids=ALLOWED)
def test_what_every_program_needs_is_there(code: str, tmp_path: Path) -> None:
    done = run(f"import os; os.chdir({str(tmp_path)!r})\n{code}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_with_the_permission_there_is_a_network(tmp_path: Path) -> None:
    assert run("import socket; socket.socket()", tmp_path, network=True).returncode == 0


def test_what_is_shown_can_be_read_and_not_written(tmp_path: Path) -> None:
    shown, own = tmp_path / "shown", tmp_path / "own"
    shown.mkdir()
    own.mkdir()
    (shown / "x").write_text("1")
    code = f"assert open({str(shown / 'x')!r}).read() == '1'\nopen({str(shown / 'x')!r}, 'w')"
    done = run(code, own, readable=(str(shown),))
    assert "PermissionError" in done.stderr
    assert (shown / "x").read_text() == "1"


def test_what_it_starts_is_confined_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "inner = 'import socket; socket.socket()'\n"
        "sys.exit(subprocess.run([sys.executable, '-I', '-c', inner]).returncode)"
    )
    done = run(code, tmp_path)
    assert done.returncode == 1
    assert "PermissionError" in done.stderr


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    argv = sandbox_command(SandboxLimits(False, MEMORY), ("no-such-program-anywhere",))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "there is no program" in done.stderr) == (SANDBOX_FAILED_STATUS, True)


def test_a_machine_that_has_no_filter_confines_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    with pytest.raises(OSError, match="pdp11"):
        restrict_syscalls(network=False)
