"""Every figure has its line on the page for operators, and the page names no other."""

import re

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.docs.pages import ROOT, Snippet, snippets
from tests.surfaces.visitor import visiting

PAGE = ROOT / "docs" / "operate" / "observe.md"
CONVENTION = re.compile(r"(comity|process)_[a-z_]+[a-z]")


async def told() -> dict[str, str]:
    async with visiting() as visitor:
        text = (await (await visitor.send("GET", path="/metrics")).body()).decode()
    list(text_string_to_metric_families(text))
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


async def test_every_figure_is_on_the_page_with_its_kind() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(comity_\w+)` \| (\w+) \|", page, re.MULTILINE))
    named = set(re.findall(r"`((?:comity|process)_\w+)`", page))
    figures = await told()
    assert rows == {name: kind for name, kind in figures.items() if name.startswith("comity_")}
    assert figures.keys() == named


async def test_names_follow_the_conventions_of_prometheus() -> None:
    for name, kind in (await told()).items():
        assert CONVENTION.fullmatch(name)
        assert name.endswith("_total") == (kind == "counter"), name
        assert kind not in ("histogram", "summary") or name.endswith("_seconds"), name


@pytest.mark.parametrize("snippet", snippets("yaml"), ids=str)
def test_a_yaml_snippet_is_yaml(snippet: Snippet) -> None:
    assert isinstance(yaml.safe_load(snippet.text), dict)
