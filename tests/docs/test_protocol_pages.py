"""The reference names every method, kind and error that the code speaks, and the clause of each."""

import importlib
import pkgutil
import re
from collections.abc import Iterable
from typing import cast

import comity
from comity import errors
from comity.events.model import Severity
from comity.events.webhooks import model
from comity.mcp import mcpl, protocol
from comity.mcp.mgp import (
    METHOD_PREFIX,
    NOTICE_PREFIX,
    MgpExtension,
    ServerLifecycleState,
    ShutdownReason,
)
from comity.registry.export import METHODS as REGISTRY_METHODS
from comity.topics import envelope
from comity.topics.rules import TopicViolation
from tests.docs.pages import ROOT
from tests.support.cases import loop_over

REFERENCE = ROOT / "docs" / "reference"
MGP, MCPL, MCPX = "mgp.md", "mcpl.md", "mcpx.md"
REGISTRY, MCP = "rest.md", "mcp-versions.md"
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
    *(
        said_in(each.name)
        for each in pkgutil.walk_packages(comity.__path__, "comity.")
        if each.name.startswith("comity.mcp.") or each.name.endswith((".messages", ".model"))
    )
)
SPOKEN: dict[str, set[str]] = {
    MGP: {
        *(each for each in WORDS if each.startswith((METHOD_PREFIX, NOTICE_PREFIX))),
        *(
            str(each)
            for kind in (MgpExtension, ServerLifecycleState, ShutdownReason, Severity)
            for each in kind
        ),
    }
    - {METHOD_PREFIX, NOTICE_PREFIX, "mgp/permission/"},
    MCPL: {
        *(each for each in WORDS if LIVE.fullmatch(each)),
        *(
            *mcpl.HOST_REQUESTS,
            *mcpl.HOST_NOTIFICATIONS,
            mcpl.REVERSE_REQUEST,
            mcpl.REVERSE_NOTIFICATION,
        ),
        *map(str, mcpl.FeatureUse),
        *(
            str(each.code)
            for each in vars(errors).values()
            if isinstance(each, errors.Fault) and each.dialect == "mcpl"
        ),
    },
    MCPX: {
        *(each for each in said_in(envelope.__name__) if each.startswith(("mcp/", "system/"))),
        *(envelope.PROTOCOL, envelope.CHAT),
        *map(str, TopicViolation),
    },
    REGISTRY: set(REGISTRY_METHODS),
    MCP: {
        *(each for each in said_in(protocol.__name__) if ASKED_IN_MCP.fullmatch(each)),
        *(*protocol.HANDSHAKE_VERSIONS, *protocol.MODERN_VERSIONS),
        *("events/list", model.SUBSCRIBE, "events/unsubscribe", "events/poll"),
    },
}


def read(page: str) -> str:
    return (REFERENCE / page).read_text(encoding="utf-8")


@loop_over("page", SPOKEN)
def test_a_page_names_all_that_the_code_speaks(page: str) -> None:
    assert len(SPOKEN[page]) >= 5
    text = read(page)
    missing = {
        each
        for each in SPOKEN[page]
        if not re.search(rf"(?<![\w/.-]){re.escape(each)}(?![\w/]|\.\w)", text)
    }
    assert missing == set()


@loop_over("page", SPOKEN)
def test_a_section_names_the_clause_that_it_implements(page: str) -> None:
    _, *sections = re.split(r"^## ", read(page), flags=re.MULTILINE)
    unnamed = [each.partition("\n")[0] for each in sections if not _names_a_clause(each)]
    assert unnamed == []


def _names_a_clause(section: str) -> bool:
    _, _, said = section.partition("\n\n")
    return said.startswith(("Implements ", "Comity's own", "MGP §", "[MGP](mgp.md)"))
