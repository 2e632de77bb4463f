"""Snippets, links and the site: each can be read, and each configuration is accepted."""

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from comity.app.settings import TABLES
from comity.app.settings_reader import load_settings
from comity.config.fields import fields_of
from tests.docs.pages import ROOT, Snippet, pages, snippets
from tests.ledger.catalogue import read_requirements
from tests.support.cases import loop_over

PARSERS = {"python": ast.parse, "json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}


@loop_over("snippet", [each for language in PARSERS for each in snippets(language)], ids=str)
def test_snippet_can_be_parsed_in_its_language(snippet: Snippet) -> None:
    parsed: object = PARSERS[snippet.language](snippet.text)
    assert snippet.language != "yaml" or isinstance(parsed, dict)


IMPORTS = re.compile(r"^from (comity[\w.]*) import (\([^)]*\)|.+)$", re.MULTILINE)


@loop_over("snippet", [*snippets("python"), *snippets("py")], ids=str)
def test_a_snippet_imports_names_that_exist(snippet: Snippet) -> None:
    named = [
        (module, name)
        for module, names in IMPORTS.findall(snippet.text)
        for name in re.findall(r"\w+", names)
    ]
    missing = [each for each in named if not hasattr(importlib.import_module(each[0]), each[1])]
    assert missing == []


@loop_over("snippet", snippets("sh"), ids=str)
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


CONFIG_KEYS = {"$schema", "mcpServers", "servers", *fields_of(TABLES[""]), *TABLES}


def _is_configuration(snippet: Snippet) -> bool:
    read = json.loads if snippet.language == "json" else tomllib.loads
    table = read(snippet.text)
    keys: set[str] = set(table)
    if snippet.language == "toml":
        # Routes of models name models of another snippet, and a lone table of a server continues
        # the server of another one.
        is_part = keys == {"inference"} or isinstance(table.get("servers"), dict)
        return keys <= CONFIG_KEYS and not is_part
    # Answers of the API list servers under the same name.
    return "mcpServers" in keys or keys == {"servers"}


CONFIGURATIONS = [each for each in snippets("json") + snippets("toml") if _is_configuration(each)]


@loop_over("snippet", CONFIGURATIONS, ids=str)
def test_a_configuration_in_the_docs_is_accepted(snippet: Snippet, tmp_path: Path) -> None:
    file = tmp_path / f"configuration.{snippet.language}"
    file.write_text(snippet.text, encoding="utf-8")
    named = re.findall(r"\$\{(?:secret:)?(\w+)", snippet.text)
    # What is an address elsewhere is one here.
    environ = {name: "http://set" if name.endswith("_URL") else "set" for name in named}
    # No vault is asked for a secret.
    load_settings(file, {**environ, "COMITY_SECRETS_SOURCES": "env"})


LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")

OUTSIDE_THE_SITE = [page for page in pages() if ROOT / "docs" not in page.parents]


@pytest.mark.timeout(200)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        [*command, str(tmp_path / "site")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "index.html").is_file()


@loop_over("page", OUTSIDE_THE_SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_outside_the_site_leads_to_a_file(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
