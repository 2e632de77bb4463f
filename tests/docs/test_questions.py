"""The front page of the docs leads to the answer of each common question in two clicks."""

import posixpath
import re
from functools import lru_cache

import pytest

from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
START = "index.md"
MAX_CLICKS = 2

PAGE_BY_QUESTION = {
    "How do I install Comity on a laptop?": "tutorials/quickstart.md",
    "How do I add a server?": "how-to/add-servers.md",
    "How do I connect a client?": "how-to/connect-clients.md",
    "How do I require approval for a tool?": "how-to/server-permissions.md",
    "How do I approve a call from a phone?": "how-to/approve-calls.md",
    "How do I get fewer approval requests?": "how-to/reduce-approval-prompts.md",
    "How do I rotate a key?": "how-to/manage-keys.md",
    "How do I revoke a key?": "how-to/manage-keys.md",
    "How do I find who did what?": "how-to/verify-the-audit-log.md",
    "How do I verify the audit log?": "how-to/verify-the-audit-log.md",
    "How do I limit a rate?": "how-to/limit-rates.md",
    "How do I let a team use only some tools?": "how-to/grant-access.md",
    "How do I use OAuth?": "how-to/use-oauth.md",
    "How do I deploy with Docker?": "operate/deploy.md",
    "How do I deploy on Kubernetes?": "operate/deploy.md",
    "How do I use TLS?": "operate/tls.md",
    "How do I back up the database?": "operate/backup.md",
    "How do I upgrade?": "operate/upgrade.md",
    "How do I uninstall Comity?": "operate/uninstall.md",
    "How do I monitor Comity?": "operate/monitoring.md",
    "How do I debug a failing server?": "operate/troubleshooting.md",
    "How do I write a server?": "how-to/write-an-mgp-server.md",
    "How do I write an agent?": "how-to/write-an-agent.md",
    "How do I call a tool without MCP?": "how-to/call-tools-over-rest.md",
    "How do I serve a thousand tools?": "how-to/serve-many-tools.md",
    "Which settings are there?": "reference/settings.md",
    "What does this error mean?": "reference/errors.md",
    "What does this word mean?": "reference/glossary.md",
}
"""Questions of new users, and the pages that answer them."""

WORDS_BY_PAGE = {
    "tutorials/quickstart.md": ["pip install comity"],
    "how-to/server-permissions.md": ["require_approval"],
    "how-to/approve-calls.md": ["phone", "comity approvals link"],
    "how-to/manage-keys.md": ["comity keys rotate", "comity keys revoke"],
    "how-to/verify-the-audit-log.md": ["comity audit list", "comity audit verify"],
    "how-to/limit-rates.md": ["[[limits.rates]]"],
    "how-to/grant-access.md": ["team", "comity grants create"],
    "operate/deploy.md": ["docker", "Kubernetes"],
    "operate/uninstall.md": ["comity clients disconnect", "pip uninstall", "~/.local/state/comity"],
}
"""Words without which a page does not answer its questions."""

LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")


@lru_cache
def links_of(page: str) -> frozenset[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    base = posixpath.dirname(page)
    found = {posixpath.normpath(posixpath.join(base, each)) for each in LINK.findall(text)}
    return frozenset(each for each in found if each.endswith(".md") and (DOCS / each).is_file())


@lru_cache
def clicks() -> dict[str, int]:
    """Return the clicks to each page over the links in the texts, without the navigation."""
    found, pages = {START: 0}, [START]
    for page in pages:
        for target in sorted(links_of(page) - found.keys()):
            found[target] = found[page] + 1
            pages.append(target)
    return found


@pytest.mark.parametrize(("question", "page"), PAGE_BY_QUESTION.items())
def test_answer_is_two_clicks_from_the_front_page(question: str, page: str) -> None:
    assert clicks().get(page, 99) <= MAX_CLICKS, question


@pytest.mark.parametrize(("page", "words"), WORDS_BY_PAGE.items())
def test_page_has_the_words_of_its_answers(page: str, words: list[str]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert [each for each in words if each not in text] == []


def test_every_page_of_the_navigation_is_linked_from_another_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = set(re.findall(r"[\w/-]+\.md$", navigation, re.MULTILINE))
    assert len(pages) > 60
    assert {page for page in pages if not (DOCS / page).is_file()} == set()
    assert pages - clicks().keys() == set()
