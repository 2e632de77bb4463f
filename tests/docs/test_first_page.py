"""The README's first page as a new user goes through it: an empty environment, a built wheel."""

import email
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, snippets_of
from tests.docs.transcript import Step, steps_of
from tests.interop.processes import answers, free_port, running

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("first page")]

README = ROOT / "README.md"
BEGIN, END = "## Quickstart", "## Why Comity"
MOST_COMMANDS = 8
MOST_PATH_CPU_SECONDS = 60.0
# The id that the page shows; each run has another one.
WRITTEN_ID = "06gtu5so"
MOST_PACKAGES = 25
MIN_LINKS = 30
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

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

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


def _steps() -> list[Step]:
    text = README.read_text(encoding="utf-8")
    first = text.count("\n", 0, text.index(BEGIN))
    last = text.count("\n", 0, text.index(END))
    blocks = [s for s in snippets_of(README) if s.language == "console" and first < s.line < last]
    return [step for block in blocks for step in steps_of(block.text)]


def test_installing_it_brings_few_packages(newcomer: Newcomer) -> None:
    found = [
        path.name for path in newcomer.environment.glob("lib/python*/site-packages/*.dist-info")
    ]
    assert 5 < len(found) <= MOST_PACKAGES, sorted(found)


def test_every_link_of_its_description_is_absolute_and_leads_to_a_file(newcomer: Newcomer) -> None:
    """A package index shows the description without the files beside it."""
    (file,) = newcomer.environment.glob("lib/python*/site-packages/comity-*.dist-info/METADATA")
    metadata = email.message_from_string(file.read_text(encoding="utf-8"))
    assert metadata["Description-Content-Type"] == "text/markdown"
    text, tag = metadata.get_payload(), f"v{metadata['Version']}"
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"|!\[[^\]]*\]\(([^)\s]+)\)', text)
    assert len(links) > MIN_LINKS
    assert [each for each in links if not each.startswith("https://")] == []
    (source,) = (line[8:] for line in metadata.get_all("Project-URL", []) if "Source, " in line)
    raw = source.replace("https://github.com", "https://raw.githubusercontent.com")
    for link in links:
        for own in (f"{source}/blob/{tag}/", f"{raw}/{tag}/"):
            path = link.removeprefix(own).partition("#")[0]
            assert path == link.partition("#")[0] or (ROOT / path).exists(), link
    assert [each for each in map("".join, pictures) if not each.startswith(f"{raw}/{tag}/")] == []


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


def test_the_first_page_ends_in_an_approved_call(newcomer: Newcomer) -> None:
    install, init, serve, echo, delete, *decide = steps = _steps()
    assert len(steps) <= MOST_COMMANDS
    assert install.command == "pip install comity"
    assert serve.command == "comity serve"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _take(newcomer, init)
    serving = ["/bin/sh", "-c", f"cd '{newcomer.folder}' && exec comity serve"]
    with running(serving, newcomer.env) as gateway:
        gateway.wait_for_line(r"listening on http://\S+")
        gateway.wait_until(lambda: answers(f"http://127.0.0.1:{newcomer.port}/ready"))
        _take(newcomer, echo)
        waiting = newcomer.start(delete.command)
        try:
            id = _pending_id(newcomer)
            for step in decide:
                if step.command == "comity audit verify":
                    _wait_until_signed(newcomer)
                _take(newcomer, step, id)
            said, _ = waiting.communicate(timeout=_WAIT_SECONDS)
        finally:
            waiting.kill()
        assert delete.is_met_by(said.replace(id[: len(WRITTEN_ID)], WRITTEN_ID)), said
        entries = newcomer.run("comity audit list -o json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < MOST_PATH_CPU_SECONDS
    assert "delete_note" in entries
    # All that docs/operate/uninstall.md lists for a laptop, in a home that had nothing.
    files = [path for path in newcomer.home.rglob("*") if path.is_file()]
    state = (".local", "state", "comity")
    assert {path.relative_to(newcomer.home).parts[:3] for path in files} == {state}
    uninstalling = (ROOT / "docs" / "operate" / "uninstall.md").read_text(encoding="utf-8")
    kept = {path.name for path in (newcomer.home.joinpath(*state)).iterdir() if path.is_dir()}
    assert {name for name in kept if name not in uninstalling} == set()


def _wait_until_signed(newcomer: Newcomer) -> None:
    """A busy machine signs late, which the command reports."""
    until = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < until:
        process = newcomer.start("comity audit verify")
        process.communicate(timeout=_WAIT_SECONDS)
        if process.returncode == 0:
            return
    raise TimeoutError("the audit log is not signed")


def _take(newcomer: Newcomer, step: Step, id: str = "") -> None:
    command = step.command.replace(WRITTEN_ID, id[: len(WRITTEN_ID)] or WRITTEN_ID)
    said = newcomer.run(command).replace(str(newcomer.port), "2664")
    if id:
        said = said.replace(id[: len(WRITTEN_ID)], WRITTEN_ID)
    assert step.is_met_by(said), f"$ {command}\n{said}\nis not as the page has it"


def _pending_id(newcomer: Newcomer) -> str:
    until = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < until:
        if names := newcomer.run("comity approvals list -o name").split():
            return names[0]
        time.sleep(0.2)
    raise TimeoutError("the call asks for no approval")
