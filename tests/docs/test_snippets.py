"""Every piece of code in the docs can at least be read by its own language."""

import ast
import json
import re
import shutil
import subprocess
import tomllib

import pytest

from tests.docs.pages import ROOT, Snippet, pages, snippets
from tests.ledger.catalogue import read_requirements


@pytest.mark.parametrize("snippet", snippets("python"), ids=str)
def test_a_python_snippet_is_python(snippet: Snippet) -> None:
    ast.parse(snippet.text)


@pytest.mark.parametrize("snippet", snippets("json"), ids=str)
def test_a_json_snippet_is_json(snippet: Snippet) -> None:
    json.loads(snippet.text)


@pytest.mark.parametrize("snippet", snippets("toml"), ids=str)
def test_a_toml_snippet_is_toml(snippet: Snippet) -> None:
    tomllib.loads(snippet.text)


@pytest.mark.parametrize("snippet", snippets("sh"), ids=str)
def test_a_script_that_the_docs_name_exists(snippet: Snippet) -> None:
    named = set(re.findall(r"(?:^|\s)((?:scripts/|\.ci/)\w+)", snippet.text))
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_requirement_that_the_docs_name_is_a_row() -> None:
    texts = [page.read_text(encoding="utf-8") for page in pages()]
    named = {row for text in texts for row in re.findall(r'mark\.requirement\("([^"]+)"', text)}
    # The design's own example of the mark is a row like any other.
    assert named - read_requirements(ROOT).keys() == set()


def test_every_script_is_a_shell_script_that_can_be_read() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    scripts = [
        path for path in [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"] if path.is_file()
    ]
    for script in scripts:
        subprocess.run([bash, "-n", str(script)], check=True, timeout=10)
