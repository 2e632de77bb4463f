"""The reference names every method, kind and error that the code speaks, and the clause of each."""

import importlib
import pkgutil
import re
from collections.abc import Iterable
from typing import cast

import pytest

import comity.wire
from comity.rules.openapi_frame import METHODS as REGISTRY_METHODS
from comity.rules.topics import Violation
from comity.wire import envelope, errors, features, mcp, mcp_events, reverse
from comity.wire.events import Severity
from comity.wire.lifecycle import Reason, State
from comity.wire.negotiation import METHOD_PREFIX, NOTICE_PREFIX, Extension
from tests.docs.pages import ROOT

REFERENCE = ROOT / "docs" / "reference"
MGP, MCPL, MCPX = "mgp.md", "mcpl.md", "topics.md"
REGISTRY, MCP = "registry.md", "mcp-versions.md"
LIVE = re.compile(
    r"(push|context|inference|model|featureSets|scope|state|channels|mcpl)/[A-Za-z/]+"
)
ASKED_IN_MCP = re.compile(r"[a-z]+(/[A-Za-z_]+)+|ping|initialize")


def said_in(module: str) -> set[str]:
    """Every text, or text of a tuple or set, that a module of the wire gives a name."""
    found: set[str] = set()
    for value in vars(importlib.import_module(module)).values():
        several = isinstance(value, tuple | frozenset)
        each = cast("Iterable[object]", value) if several else (value,)
        found |= {one for one in each if isinstance(one, str)}
    return found


WORDS = set[str]().union(
    *(said_in(f"comity.wire.{each.name}") for each in pkgutil.iter_modules(comity.wire.__path__))
)
SPOKEN: dict[str, set[str]] = {
    MGP: {
        *(each for each in WORDS if each.startswith((METHOD_PREFIX, NOTICE_PREFIX))),
        *(str(each) for kind in (Extension, State, Reason, Severity) for each in kind),
    }
    - {METHOD_PREFIX, NOTICE_PREFIX, "mgp/permission/"},
    MCPL: {
        *(each for each in WORDS if LIVE.fullmatch(each)),
        *(*features.ASKED_OF_HOSTS, *features.TOLD_TO_HOSTS, reverse.ASKED, reverse.TOLD),
        *map(str, features.Use),
        *(
            str(each.code)
            for each in vars(errors).values()
            if isinstance(each, errors.Fault) and each.dialect == "mcpl"
        ),
    },
    MCPX: {
        *(each for each in said_in(envelope.__name__) if each.startswith(("mcp/", "system/"))),
        *(envelope.PROTOCOL, envelope.CHAT),
        *map(str, Violation),
    },
    REGISTRY: set(REGISTRY_METHODS),
    MCP: {
        *(each for each in said_in(mcp.__name__) if ASKED_IN_MCP.fullmatch(each)),
        *(*mcp.HANDSHAKE_VERSIONS, *mcp.MODERN_VERSIONS),
        *(mcp_events.LIST, mcp_events.SUBSCRIBE, mcp_events.UNSUBSCRIBE, mcp_events.POLL),
    },
}


def read(page: str) -> str:
    return (REFERENCE / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", SPOKEN)
def test_a_page_names_all_that_the_code_speaks(page: str) -> None:
    assert len(SPOKEN[page]) >= 5
    text = read(page)
    missing = {
        each
        for each in SPOKEN[page]
        if not re.search(rf"(?<![\w/.-]){re.escape(each)}(?![\w/]|\.\w)", text)
    }
    assert missing == set()


@pytest.mark.parametrize("page", SPOKEN)
def test_a_section_names_the_clause_that_it_implements(page: str) -> None:
    _, *sections = re.split(r"^## ", read(page), flags=re.MULTILINE)
    unnamed = [each.partition("\n")[0] for each in sections if not _names_a_clause(each)]
    assert unnamed == []


def _names_a_clause(section: str) -> bool:
    _, _, said = section.partition("\n\n")
    return said.startswith(("Implements ", "Comity's own", "MGP §", "[MGP](mgp.md)"))
