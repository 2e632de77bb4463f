"""All pages say of confinement what the sandbox does, and one page has its levels."""

import re
from pathlib import Path

from comity.app.settings_reader import load_settings
from comity.servers.sandbox.model import LEVEL_BY_LABEL
from comity.servers.wiring import sandbox_of
from tests.docs.pages import ROOT, pages

CONFINE = ROOT / "docs" / "how-to" / "confine-servers.md"
# A record of a decision tells its own time.
DECISIONS = ROOT / "docs" / "design" / "decisions"
# Servers are confined unless their operator says otherwise, so no page may say this of all of them.
UNCONFINED = re.compile(r"rights\s+of\s+(?:Comity|the\s+container)", re.IGNORECASE)


def test_no_page_says_that_servers_have_the_rights_of_comity() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    wrong = [
        str(page.relative_to(ROOT))
        for page, text in texts.items()
        if DECISIONS not in page.parents and UNCONFINED.search(text)
    ]
    assert wrong == []


def test_the_page_about_confinement_has_every_level_and_no_other() -> None:
    text = CONFINE.read_text(encoding="utf-8")
    form = r"^\| `sandbox` \| the server \|\n\|[-|]+\|\n((?:\|.*\n)+)"
    (table,) = re.findall(form, text, re.MULTILINE)
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == LEVEL_BY_LABEL.keys()


def test_trust_without_permissions_is_what_ends_confinement(tmp_path: Path) -> None:
    """Four pages say so: `trusted` alone is not confined, and with permissions it is."""
    path = tmp_path / "comity.toml"
    path.write_text(
        """
        [[servers]]
        id = "plain"
        command = "server"
        [[servers]]
        id = "trusted"
        command = "server"
        [servers.policy]
        trust = "trusted"
        [[servers]]
        id = "listed"
        command = "server"
        [servers.policy]
        trust = "trusted"
        [servers.policy.permissions]
        "network.outbound" = ["api.example.com:443"]
        """
    )
    settings = load_settings(path, {})
    levels = {each.id: sandbox_of(each, settings) for each in settings.servers}
    assert levels == {"plain": "auto", "trusted": "none", "listed": "auto"}
