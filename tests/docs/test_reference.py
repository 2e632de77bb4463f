"""Every configuration in the docs is one that Comity takes; every option is in the reference."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from comity.config import load
from tests.docs.pages import ROOT, Snippet, snippets


def _is_configuration(snippet: Snippet) -> bool:
    read = json.loads if snippet.language == "json" else tomllib.loads
    return bool({"mcpServers", "servers", "limits"} & read(snippet.text).keys())


CONFIGURATIONS = [each for each in snippets("json") + snippets("toml") if _is_configuration(each)]


@pytest.mark.parametrize("snippet", CONFIGURATIONS, ids=str)
def test_a_configuration_in_the_docs_is_accepted(snippet: Snippet, tmp_path: Path) -> None:
    file = tmp_path / f"configuration.{snippet.language}"
    file.write_text(snippet.text, encoding="utf-8")
    named = re.findall(r"\$\{(\w+)", snippet.text)
    load(file, dict.fromkeys(named, "set"))


def test_the_reference_has_every_option_of_the_command() -> None:
    command = [sys.executable, "-m", "comity.cli", "serve", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    offered = set(re.findall(r"--[a-z-]+", shown.stdout)) - {"--help"}
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"--[a-z]+", page)) - {"--version"} == offered
