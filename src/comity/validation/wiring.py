"""Builds the validation of arguments. A validator that is not installed blocks its calls."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from comity.app.plugins import load_plugin_validators
from comity.app.settings import Settings
from comity.http.client.dial import Resolver
from comity.mcp.entries import CatalogEntry
from comity.policy.risk import ServerPolicy
from comity.validation import readonly, service, shell
from comity.validation.arguments import ToolDefinition
from comity.validation.network import NetworkValidator
from comity.validation.paths import Matches
from comity.validation.rules import (
    CODE_SAFETY,
    NETWORK_RESTRICTED,
    READONLY,
    SANDBOX,
    Examine,
    ValidationRules,
    Verdict,
    validator_refusal,
)
from comity.validation.schema_validator import ArgumentSchemas
from comity.validation.service import PATHS, ArgumentValidator, CodeSafetyValidator
from comity.validation.shell import ReadWords
from comity.validation.worker import ValidationWorker

INSTALL: Final = "install what it needs: pip install 'comity[validators]'"
MAX_KNOWN: Final = 100_000
_PACKAGES: Final = ("tree_sitter", "tree_sitter_bash", "wcmatch")


class ToolValidatorNames(Protocol):
    """The names of the validators that run for a tool, and of those that only advise."""

    @property
    def validators(self) -> tuple[str, ...]: ...
    @property
    def advisory_validators(self) -> tuple[str, ...]: ...


class RulesOf:
    """Computes the validation rules of each tool, once for each definition."""

    def __init__(
        self,
        policy_of: Callable[[str], ServerPolicy],
        wanted_of: Callable[[CatalogEntry], ToolValidatorNames] | None = None,
    ) -> None:
        self._policy_of = policy_of
        self._validators_of = wanted_of
        self._cache: dict[tuple[str, str], tuple[bytes, ServerPolicy, ValidationRules]] = {}

    def __call__(self, entry: CatalogEntry) -> ValidationRules:
        policy = self._policy_of(entry.server)
        known = self._cache.get((entry.server, entry.name))
        if known is not None and known[0] is entry.definition and known[1] is policy:
            return known[2]
        tool = policy.tool_policy(entry.name)
        wanted = None if self._validators_of is None else self._validators_of(entry)
        rules = replace(
            tool.inspect,
            validators=tool.validators if wanted is None else wanted.validators,
            advised=() if wanted is None else wanted.advisory_validators,
            arguments=tool.arguments,
        )
        if len(self._cache) >= MAX_KNOWN:
            self._cache.clear()
        self._cache[entry.server, entry.name] = (entry.definition, policy, rules)
        return rules


class ValidationComponents:
    """The argument validator with all available validators, until it is closed."""

    def __init__(
        self, rules_of: Callable[[CatalogEntry], ValidationRules], settings: Settings
    ) -> None:
        self.examiner = ValidationWorker()
        self.resolver = Resolver(time.monotonic)
        self.inspector = ArgumentValidator(
            ArgumentSchemas(self.examiner),
            load_validators(self.examiner, self.resolver),
            rules_of,
            settings.registry.validation_timeout,
        )

    async def close(self) -> None:
        await self.examiner.close()


def load_validators(examiner: ValidationWorker, resolver: Resolver) -> Mapping[str, Examine]:
    """Return the standard validators and the plugins. Raises Misconfigured."""
    parser = _shell_parser()
    found = load_plugin_validators()
    found[NETWORK_RESTRICTED] = NetworkValidator(resolver.resolve)
    found[CODE_SAFETY] = CodeSafetyValidator(examiner)
    if parser is None:
        return found | {name: _missing_validator(name) for name in (SANDBOX, READONLY, PATHS)}
    read, matches = parser
    found[SANDBOX] = partial(shell.shell_refusal_reason, read=read)
    found[READONLY] = partial(readonly.write_refusal_reason, read=read)
    found[PATHS] = partial(service.paths_refusal_reason, matches=matches)
    return found


def _shell_parser() -> tuple[ReadWords, Matches] | None:
    try:
        # Imported here because the libraries are an extra.
        from comity.validation.shell_parser import is_glob_match, parse_command_words
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _PACKAGES:
            raise
        return None
    return parse_command_words, is_glob_match


def _missing_validator(name: str) -> Examine:
    """Return a replacement for a missing validator. It blocks every call and names the remedy."""

    def examine(
        tool: ToolDefinition, arguments: Mapping[str, object], rules: ValidationRules
    ) -> Verdict:
        return validator_refusal(
            name, "it is not installed", "", f"Report to the operator: {INSTALL}."
        )

    return examine
