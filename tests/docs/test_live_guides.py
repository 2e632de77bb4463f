"""The guides of live servers, followed to the letter, with a model on loopback for a vendor's."""

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

GUIDES = ROOT / "docs" / "guides"
EXAMPLES = ROOT / "examples"


@loop_over(
    ("page", "files"),
    [
        ("example-memory.md", ["memory_server/comity.toml"]),
        ("example-compliance.md", ["compliance_server/comity.toml"]),
        ("example-gitlab.md", ["gitlab_webhook/comity.toml", "gitlab_webhook/server.toml"]),
    ],
)
def test_a_page_shows_the_configuration_that_its_example_has(page: str, files: list[str]) -> None:
    shown = [each.text for each in snippets_of(GUIDES / page) if each.language == "toml"]
    assert len(shown) == len(files)
    for text, file in zip(shown, files, strict=True):
        kept = (EXAMPLES / file).read_text("utf-8")
        assert text in kept
        # Of the second way only what differs is shown.
        missing = tomllib.loads(kept).keys() - tomllib.loads(text).keys()
        assert missing <= {"store", "models"}


@loop_over(
    ("page", "file"),
    [
        ("example-memory.md", "memory_server/server.py"),
        ("example-compliance.md", "compliance_server/server.py"),
        ("example-gitlab.md", "gitlab_webhook/server.py"),
    ],
)
def test_the_code_on_a_page_is_that_of_its_example(page: str, file: str) -> None:
    (shown,) = [each.text for each in snippets_of(GUIDES / page) if each.language == "python"]
    kept = {line.strip() for line in (EXAMPLES / file).read_text("utf-8").splitlines()}
    # Within a function or outside of one it is the same.
    assert [line for line in shown.splitlines() if line.strip() not in kept] == []


def test_the_guide_of_the_memory_server_is_as_it_says(tmp_path: Path) -> None:
    with models() as served:
        reader = LiveReader(tmp_path, f"{served.url}/v1")
        reader.take(EXAMPLES / "memory_server")
        reader.read(GUIDES / "example-memory.md")
        asked = [str(each["messages"]) for each in served.asked()]
    assert "8-10 beds" in asked[1]
    assert any("You wanted to be reminded: call the printer" in each for each in asked)


def test_the_guide_of_the_compliance_server_is_as_it_says(tmp_path: Path) -> None:
    with models() as served:
        reader = LiveReader(tmp_path, f"{served.url}/v1")
        reader.take(EXAMPLES / "compliance_server")
        reader.read(GUIDES / "example-compliance.md")


def test_the_guide_of_gitlab_is_as_it_says(tmp_path: Path) -> None:
    with models() as served:
        reader = LiveReader(tmp_path, f"{served.url}/v1")
        reader.take(EXAMPLES / "gitlab_webhook")
        reader.read(GUIDES / "example-gitlab.md")
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
        for each in snippets_of(GUIDES / "first-live-server.md")
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
    guide = GUIDES / "first-live-server.md"
    script = ({"text": "The plants!", "when": "plants"}, {"text": "It boils!", "when": "boils"})
    with models(*script) as served:
        reader = LiveReader(tmp_path, f"{served.url}/v1", installed)
        reader.read(guide, {"py": "src/kettle/server.py"})
        asked = [each["messages"][-1]["content"] for each in served.asked()]
    assert asked == [
        "[server:kettle]\nA reminder: water the plants",
        "[server:kettle]\nThe kettle boils.",
    ]


def test_the_first_guide_shows_what_a_new_project_has(tmp_path: Path) -> None:
    LiveReader(tmp_path, "").sh("comity new server kettle --with push")
    for language, file in (("python", "src/kettle/server.py"), ("toml", "comity.toml")):
        shown = [
            each.text
            for each in snippets_of(GUIDES / "first-live-server.md")
            if each.language == language
        ]
        assert len(shown) == 1
        assert shown[0] in (tmp_path / "kettle" / file).read_text("utf-8")
