"""The pages about live servers, followed step by step, with a model on loopback."""

import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.live_reader import LiveReader
from tests.docs.pages import ROOT, snippets_of
from tests.live.end_to_end import models
from tests.support.cases import loop_over

pytestmark = pytest.mark.timeout(600)

TUTORIAL = ROOT / "docs" / "tutorials" / "live-server.md"
EXAMPLES = ROOT / "examples"


def readme(example: str) -> Path:
    return EXAMPLES / example / "README.md"


@loop_over(
    ("example", "files"),
    [
        ("memory_server", ["comity.toml"]),
        ("compliance_server", ["comity.toml"]),
        ("gitlab_webhook", ["comity.toml", "server.toml"]),
    ],
)
def test_a_readme_shows_the_configuration_of_its_example(example: str, files: list[str]) -> None:
    shown = [each.text for each in snippets_of(readme(example)) if each.language == "toml"]
    assert len(shown) == len(files)
    for text, file in zip(shown, files, strict=True):
        kept = (EXAMPLES / example / file).read_text("utf-8")
        assert text in kept
        # Of the second way only what differs is shown.
        missing = tomllib.loads(kept).keys() - tomllib.loads(text).keys()
        assert missing <= {"store", "models"}


@loop_over("example", ["memory_server", "compliance_server", "gitlab_webhook"])
def test_the_code_in_a_readme_is_that_of_its_example(example: str) -> None:
    (shown,) = [each.text for each in snippets_of(readme(example)) if each.language == "python"]
    code = (EXAMPLES / example / "server.py").read_text("utf-8")
    kept = {line.strip() for line in code.splitlines()}
    # Within a function or outside of one it is the same.
    assert [line for line in shown.splitlines() if line.strip() not in kept] == []


def test_the_readme_of_the_memory_server_is_true(tmp_path: Path) -> None:
    with models() as served:
        reader = LiveReader(tmp_path, f"{served.url}/v1")
        reader.take(EXAMPLES / "memory_server")
        reader.read(readme("memory_server"))
        asked = [str(each["messages"]) for each in served.asked()]
    assert "8-10 beds" in asked[1]
    assert any("You wanted to be reminded: call the printer" in each for each in asked)


def test_the_readme_of_the_compliance_server_is_true(tmp_path: Path) -> None:
    with models() as served:
        reader = LiveReader(tmp_path, f"{served.url}/v1")
        reader.take(EXAMPLES / "compliance_server")
        reader.read(readme("compliance_server"))


def test_the_readme_of_the_gitlab_webhook_is_true(tmp_path: Path) -> None:
    with models() as served:
        reader = LiveReader(tmp_path, f"{served.url}/v1")
        reader.take(EXAMPLES / "gitlab_webhook")
        reader.read(readme("gitlab_webhook"))
        assert len(served.asked()) == 1


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which nothing is but what the page has installed."""
    place = tmp_path_factory.mktemp("stranger")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (wheel,) = place.glob("comity-*.whl")
    uv = shutil.which("uv")
    assert uv is not None, "scripts/setup brings uv, and scripts/test puts it on the path"
    made = place / "environment"
    making = [uv, "venv", "--quiet", "--python", sys.executable, str(made)]
    subprocess.run(making, check=True, timeout=300)
    (script,) = [
        each.text
        for each in snippets_of(TUTORIAL)
        if each.language == "sh" and each.text.startswith("pip install")
    ]
    wanted = shlex.split(script)[2:]
    found = [each.replace("comity[", f"{wheel}[") for each in wanted]
    into = ["--python", str(made / "bin" / "python")]
    subprocess.run([uv, "pip", "install", "--quiet", *into, *found], check=True, timeout=300)
    return made / "bin"


def test_a_stranger_gets_from_nothing_to_an_event_that_a_model_answers(
    tmp_path: Path, installed: Path
) -> None:
    script = ({"text": "The plants!", "when": "plants"}, {"text": "It boils!", "when": "boils"})
    with models(*script) as served:
        reader = LiveReader(tmp_path, f"{served.url}/v1", installed)
        reader.read(TUTORIAL, {"py": "src/kettle/server.py"})
        asked = [each["messages"][-1]["content"] for each in served.asked()]
    assert asked == [
        "[server:kettle]\nA reminder: water the plants",
        "[server:kettle]\nThe kettle boils.",
    ]


def test_the_tutorial_shows_the_files_of_a_new_project(tmp_path: Path) -> None:
    LiveReader(tmp_path, "").sh("comity dev new server kettle --with push")
    for language, file in (("python", "src/kettle/server.py"), ("toml", "comity.toml")):
        shown = [each.text for each in snippets_of(TUTORIAL) if each.language == language]
        assert len(shown) == 1
        assert shown[0] in (tmp_path / "kettle" / file).read_text("utf-8")
