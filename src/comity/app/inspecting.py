"""Everything that looks at arguments, chosen and joined; what is not installed blocks instead."""

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, cast

from comity.adapters.argument_schemas import ArgumentSchemas
from comity.adapters.examining import Examiner
from comity.adapters.names import Resolver
from comity.config import Settings
from comity.kernel.admission import Limits
from comity.kernel.catalog import Catalog, Offer
from comity.kernel.catalog_access import Tools
from comity.kernel.gate import Gate
from comity.kernel.grants import Judge
from comity.kernel.inspection import PATHS, CodeSafety, Inspector
from comity.kernel.network_restricted import NetworkRestricted
from comity.plugins import found_validators
from comity.rules import path_arguments, readonly, sandbox
from comity.rules.paths import Matches
from comity.rules.policies import ServerPolicy
from comity.rules.sandbox import ReadWords
from comity.rules.validators import (
    CODE_SAFETY,
    NETWORK_RESTRICTED,
    READONLY,
    SANDBOX,
    Examine,
    Rules,
    Verdict,
    blocked,
)
from comity.wire.tools import Tool

INSTALL: Final = "install what it needs: pip install 'comity[validators]'"
MOST_KNOWN: Final = 100_000
_PACKAGES: Final = ("tree_sitter", "tree_sitter_bash", "wcmatch")


class Wanted(Protocol):
    """What is known of a tool that decides who looks at its arguments."""

    @property
    def validators(self) -> tuple[str, ...]: ...
    @property
    def advised(self) -> tuple[str, ...]: ...


class RulesOf:
    """By what rules each tool's arguments are looked at, worked out once for each definition."""

    def __init__(
        self,
        policy_of: Callable[[str], ServerPolicy],
        wanted_of: Callable[[Offer], Wanted] | None = None,
    ) -> None:
        self._policy_of = policy_of
        self._wanted_of = wanted_of
        self._known: dict[tuple[str, str], tuple[bytes, ServerPolicy, Rules]] = {}

    def __call__(self, offer: Offer) -> Rules:
        policy = self._policy_of(offer.server)
        known = self._known.get((offer.server, offer.name))
        if known is not None and known[0] is offer.definition and known[1] is policy:
            return known[2]
        tool = policy.of_tool(offer.name)
        wanted = None if self._wanted_of is None else self._wanted_of(offer)
        rules = replace(
            tool.inspect,
            validators=tool.validators if wanted is None else wanted.validators,
            advised=() if wanted is None else wanted.advised,
            arguments=tool.arguments,
        )
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[offer.server, offer.name] = (offer.definition, policy, rules)
        return rules


class Inspecting:
    """The one who inspects, with every validator that there is here, until it is closed."""

    def __init__(self, rules_of: Callable[[Offer], Rules], settings: Settings) -> None:
        self.examiner = Examiner()
        self.resolver = Resolver(time.monotonic)
        self.inspector = Inspector(
            ArgumentSchemas(self.examiner),
            validators(self.examiner, self.resolver),
            rules_of,
            settings.validation_timeout,
        )

    def gate(self, catalog: Catalog, grants: Judge, tools: Tools, limits: Limits) -> Gate:
        """The gate, with somebody at it who looks at arguments."""
        return Gate(catalog, grants, tools, limits, self.inspector)

    async def close(self) -> None:
        await self.examiner.close()


def validators(examiner: Examiner, resolver: Resolver) -> Mapping[str, Examine]:
    """The standard ones, and those that came as plugins. Raises Misconfigured."""
    words = _room("comity.adapters.shell_words")
    patterns = _room("comity.adapters.path_patterns")
    found = found_validators()
    found[NETWORK_RESTRICTED] = NetworkRestricted(resolver.resolve)
    found[CODE_SAFETY] = CodeSafety(examiner)
    if words is None:
        found |= {SANDBOX: _missing(SANDBOX), READONLY: _missing(READONLY)}
    else:
        read = cast("ReadWords", words)
        found[SANDBOX] = partial(sandbox.examine, read=read)
        found[READONLY] = partial(readonly.examine, read=read)
    matches = cast("Matches | None", patterns)
    found[PATHS] = (
        _missing(PATHS) if matches is None else partial(path_arguments.examine, matches=matches)
    )
    return found


def _room(name: str) -> object | None:
    """The one function of a room whose packages may not be installed."""
    try:
        room = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _PACKAGES:
            raise
        return None
    return getattr(room, "read", None) or getattr(room, "matches", None)


def _missing(name: str) -> Examine:
    """What stands for a validator that is not installed: it fails closed, and says what to do."""

    def examine(tool: Tool, arguments: Mapping[str, object], rules: Rules) -> Verdict:
        return blocked(name, "it is not installed", "", f"Tell the operator: {INSTALL}.")

    return examine
