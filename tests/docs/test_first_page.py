"""The README's first page as a new user goes through it: an empty environment, a built wheel."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, snippets_of
from tests.docs.transcript import Step, steps_of
from tests.interop.processes import answers, free_port, running

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("first page")]

README = ROOT / "README.md"
BEGIN, END = "## Five minutes", "## Two public servers behind one endpoint"
MOST_PACKAGES = 25
MOST_CPU_SECONDS = 0.3
_WAIT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Somebody with a home, an empty folder, and an environment in which Comity is alone."""

    home: Path
    folder: Path
    environment: Path
    port: int

    @property
    def env(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "COMITY_STATE_DIR": str(self.home / ".local" / "state" / "comity"),
            "PATH": f"{self.environment / 'bin'}:{os.defpath}",
            "COMITY_PORT": str(self.port),
            "COMITY_URL": f"http://127.0.0.1:{self.port}",
            "COLUMNS": "100",
        }

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_WAIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    place = tmp_path_factory.mktemp("newcomer")
    for name in ("home", "folder"):
        (place / name).mkdir()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=_WAIT_SECONDS)
    (wheel,) = place.glob("comity-*.whl")
    uv = shutil.which("uv")
    assert uv is not None, "scripts/setup brings uv, and scripts/test puts it on the path"
    environment = place / "environment"
    making = [uv, "venv", "--quiet", "--python", sys.executable, str(environment)]
    subprocess.run(making, check=True, timeout=_WAIT_SECONDS)
    into = ["--python", str(environment / "bin" / "python")]
    installing = [uv, "pip", "install", "--quiet", *into, str(wheel)]
    subprocess.run(installing, check=True, timeout=_WAIT_SECONDS)
    return Newcomer(place / "home", place / "folder", environment, free_port())


def _page() -> str:
    text = README.read_text(encoding="utf-8")
    return text[text.index(BEGIN) : text.index(END)]


def _steps() -> list[Step]:
    begin = README.read_text(encoding="utf-8")
    first = begin.count("\n", 0, begin.index(BEGIN))
    last = begin.count("\n", 0, begin.index(END))
    blocks = [s for s in snippets_of(README) if s.language == "console" and first < s.line < last]
    return [step for block in blocks for step in steps_of(block.text)]


def test_installing_it_brings_few_packages(newcomer: Newcomer) -> None:
    found = [
        path.name for path in newcomer.environment.glob("lib/python*/site-packages/*.dist-info")
    ]
    assert 5 < len(found) <= MOST_PACKAGES, sorted(found)


def test_help_is_quick(newcomer: Newcomer) -> None:
    """Of several tries the best: the machine may be busy, and only a slow program always is."""
    program = str(newcomer.environment / "bin" / "comity")
    newcomer.run("comity --help")
    spent = min(_cpu_seconds([program, "--help"], newcomer) for _ in range(5))
    assert spent < MOST_CPU_SECONDS


def _cpu_seconds(command: list[str], newcomer: Newcomer) -> float:
    process = subprocess.Popen(
        command, cwd=newcomer.folder, env=newcomer.env, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_the_first_page_does_what_it_shows(newcomer: Newcomer) -> None:
    steps = iter(_steps())
    install = next(steps)
    assert install.command == "pip install comity"
    _take(newcomer, _until_serving(steps))
    serving = ["/bin/sh", "-c", f"cd '{newcomer.folder}' && exec comity serve"]
    with running(serving, newcomer.env) as gateway:
        gateway.wait_for_line(r"listening on http://\S+")
        gateway.wait_until(lambda: answers(f"http://127.0.0.1:{newcomer.port}/ready"))
        _take(newcomer, steps)
        _call_from_the_client_of_the_page(newcomer)


def _until_serving(steps: Iterator[Step]) -> Iterator[Step]:
    for step in steps:
        if step.command == "comity serve":
            assert any("listening on" in line for line in step.expected)
            return
        yield step


def _take(newcomer: Newcomer, steps: Iterator[Step]) -> None:
    for step in steps:
        said = newcomer.run(step.command).replace(str(newcomer.port), "2664")
        assert step.is_met_by(said), f"$ {step.command}\n{said}\nis not as the page has it"


def _call_from_the_client_of_the_page(newcomer: Newcomer) -> None:
    """The official client, in whose environment there is nothing that it does not need."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", _page(), re.MULTILINE | re.DOTALL)
    script = newcomer.folder / "client.py"
    script.write_text(code.replace("2664", str(newcomer.port)))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=_WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "example__echo" in done.stdout
    assert "hello" in done.stdout
