"""Every configuration in the docs is one that Comity takes."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from comity.config import load
from tests.docs.pages import Snippet, snippets


def _is_configuration(snippet: Snippet) -> bool:
    read = json.loads if snippet.language == "json" else tomllib.loads
    keys = read(snippet.text).keys()
    # What a probe answers counts servers under the same word.
    return bool({"mcpServers", "servers", "limits"} & keys) and "status" not in keys


CONFIGURATIONS = [each for each in snippets("json") + snippets("toml") if _is_configuration(each)]


@pytest.mark.parametrize("snippet", CONFIGURATIONS, ids=str)
def test_a_configuration_in_the_docs_is_accepted(snippet: Snippet, tmp_path: Path) -> None:
    file = tmp_path / f"configuration.{snippet.language}"
    file.write_text(snippet.text, encoding="utf-8")
    named = re.findall(r"\$\{(\w+)", snippet.text)
    # What is an address elsewhere is one here.
    load(file, {name: "http://set" if name.endswith("_URL") else "set" for name in named})
