"""The web console in a package: built where npm is, and said to be missing where it is not."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.program import EXAMPLE, Desk, Ran, Terminal
from tests.deploy.clone import STATIC, build_wheel, copy_clone
from tests.identity.login.scene import exchange
from tests.interop.processes import Program, running

pytestmark = pytest.mark.timeout(900)

SECONDS = 120


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_clone(tmp_path_factory.mktemp("clone"))


def test_a_package_that_is_built_without_npm_warns_and_has_no_console(
    clone: Path, tmp_path: Path
) -> None:
    told, files = build_wheel(clone, tmp_path, str(tmp_path / "nothing"))
    assert files == []
    assert "The package gets no web console, because npm" in " ".join(told.split())


def test_a_build_that_fails_leaves_the_console_out(clone: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(clone, broken)
    (broken / "scripts" / "console").write_text("echo 'no network' >&2; exit 1\n")
    told, files = build_wheel(broken, tmp_path / "out", _path_with_npm(tmp_path))
    assert files == []
    assert "scripts/console failed: no network" in " ".join(told.split())


def test_a_package_is_built_with_what_the_script_makes(clone: Path, tmp_path: Path) -> None:
    quick = tmp_path / "quick"
    shutil.copytree(clone, quick)
    (quick / "scripts" / "console").write_text(
        'static="$(dirname "$0")/../src/comity/console/static"\n'
        'mkdir -p "$static" && echo made > "$static/index.html"\n'
    )
    _, files = build_wheel(quick, tmp_path / "out", _path_with_npm(tmp_path))
    assert files == [f"{STATIC}index.html"]


def _path_with_npm(folder: Path) -> str:
    """A search path whose npm only exists, for builds that replace what would run it."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "npm").write_text("#!/bin/sh\nexit 1\n")
    (programs / "npm").chmod(0o700)
    return f"{programs}:{os.defpath}"


@pytest.fixture(scope="module")
def bare(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """Somebody whose Comity has no console."""
    desk = Desk(tmp_path_factory.mktemp("bare"), PYTHONPATH=str(clone / "src"))
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE}})
    return desk


@pytest.fixture(scope="module")
def gateway(bare: Desk) -> Generator[tuple[Program, str]]:
    serve = f"cd '{bare.folder}' && exec {sys.executable} -m comity.cli serve --port 0"
    with running(["/bin/sh", "-c", serve], bare.env, may_fork=False) as program:
        yield program, program.wait_for_line(r"listening on (http://\S+)").group(1)


def _run(desk: Desk, *arguments: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-m", "comity.cli", *arguments],
        cwd=desk.folder,
        env=desk.env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def test_the_command_says_that_there_is_no_console(
    bare: Desk, gateway: tuple[Program, str]
) -> None:
    ran = _run(bare, "console", "--no-open")
    assert (ran.status, ran.out) == (1, "")
    assert "This build of Comity has no web console" in " ".join(ran.err.split())
    assert "pip install comity" in " ".join(ran.err.split())


def test_both_addresses_say_that_there_is_no_console(gateway: tuple[Program, str]) -> None:
    _, origin = gateway
    for path, status in (("/", 200), ("/console/", 404), ("/console/tools", 404)):
        for accept in ("text/html", "*/*"):
            found = exchange("GET", f"{origin}{path}", {"Accept": accept})
            assert found.status_code == status
            assert found.headers["content-type"] == "text/html; charset=utf-8"
            assert "This build of Comity has no web console" in found.text


def test_a_terminal_shows_no_link_to_what_is_not_there(bare: Desk) -> None:
    program = [sys.executable, "-m", "comity.cli"]
    with Terminal(bare, "serve", "--port", "0", program=program) as terminal:
        terminal.until("1 of 1 server ready")
        assert not re.search(r"/login/link|console", terminal.seen)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0
