"""Validators and embedders that other packages add by entry point, checked before use."""

import copy
import inspect
import logging
import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Final, cast

from comity.catalog.search.tool_index import Embedder
from comity.errors import Misconfigured, Unavailable
from comity.toolkit.plugins import installed_entry_points
from comity.validation.arguments import ToolDefinition
from comity.validation.rules import (
    NONE,
    STANDARD,
    Examine,
    ValidationRules,
    Verdict,
    validator_refusal,
)
from comity.validation.service import Validator

log = logging.getLogger(__name__)

VALIDATOR_GROUP: Final = "comity.validators"
EMBEDDER_GROUP: Final = "comity.embedders"
MAX_DIMENSIONS: Final = 4_096
_NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9_.-]{1,63}")
_NO_SETTINGS: Final[Mapping[str, object]] = {}


def load_plugin_validators(plugin_points: Iterable[EntryPoint] | None = None) -> dict[str, Examine]:
    """Return the installed validators by name. Raises Misconfigured if one breaks the contract."""
    found: dict[str, Examine] = {}
    if plugin_points is None:
        plugin_points = installed_entry_points(VALIDATOR_GROUP)
    for point in plugin_points:
        plugin = _load_entry_point(point, "validator")
        problem = contract_problem(plugin)
        validator = cast("Validator", plugin)
        if problem is None and validator.name in found:
            problem = f"another one is called {validator.name!r} too"
        if problem is not None:
            raise Misconfigured(
                f"the validator {point.name!r} ({point.value}) cannot be used: {problem}; "
                "correct or uninstall the package that brings it"
            )
        found[validator.name] = adapt_validator(validator)
    return found


def contract_problem(plugin: object) -> str | None:
    """Return why an object is not a valid validator, or None."""
    name = getattr(plugin, "name", None)
    if not isinstance(name, str) or not _NAME_PATTERN.fullmatch(name):
        return "its name must be 2 to 64 of a-z 0-9 _ . - and begin with a letter"
    if name in (*STANDARD, NONE):
        return f"the name {name!r} is the gateway's own"
    examine = getattr(plugin, "examine", None)
    if not callable(examine):
        return "it has no method examine(tool, arguments, settings)"
    try:
        inspect.signature(examine).bind(None, None, None)
    except TypeError:
        return "its examine must take exactly tool, arguments and settings"
    return None


def adapt_validator(plugin: Validator) -> Examine:
    """Return a plugin as a check of the call pipeline. It receives copies and its own settings."""

    def examine(
        tool: ToolDefinition, arguments: Mapping[str, object], rules: ValidationRules
    ) -> Verdict | Awaitable[Verdict]:
        settings = rules.settings.get(plugin.name, _NO_SETTINGS)
        shown = copy.deepcopy((dict(arguments), dict(settings)))
        own = ToolDefinition(tool.server, tool.name, copy.deepcopy(dict(tool.definition)))
        said = plugin.examine(own, *shown)
        return (
            _await_verdict(plugin.name, said)
            if inspect.isawaitable(said)
            else _to_verdict(plugin.name, said)
        )

    return examine


async def _await_verdict(name: str, result: Awaitable[object]) -> Verdict:
    return _to_verdict(name, await result)


def _to_verdict(name: str, result: object) -> Verdict:
    """Return the decision of a plugin. Only None allows the call; any other result refuses it."""
    if result is None:
        return None
    text = result if isinstance(result, str) and result else "it gave no reason that can be read"
    return validator_refusal(
        name, "".join(each if each.isprintable() else " " for each in text[:300])
    )


def load_plugin_embedder(name: str, plugin_points: Iterable[EntryPoint] | None = None) -> Embedder:
    """Return the configured embedder. Raises Misconfigured if it is missing or invalid."""
    if plugin_points is None:
        plugin_points = installed_entry_points(EMBEDDER_GROUP)
    known = list(plugin_points)
    point = next((each for each in known if each.name == name), None)
    if point is None:
        raise Misconfigured(
            f"there is no embedder {name!r}: choose `auto`, `minilm`, `none`"
            + "".join(f", `{each.name}`" for each in known)
        )
    plugin = _load_entry_point(point, "embedder")
    problem = embedder_problem(plugin)
    if problem is not None:
        raise Misconfigured(
            f"the embedder {name!r} ({point.value}) cannot be used: {problem}; "
            "correct or uninstall the package that brings it"
        )
    return _GuardedEmbedder(cast("Embedder", plugin))


def embedder_problem(plugin: object) -> str | None:
    """Return why an object is not a valid embedder, or None."""
    name, size = getattr(plugin, "name", None), getattr(plugin, "size", None)
    if not isinstance(name, str) or not 1 <= len(name) <= 200:
        return "its name must identify the model, in at most 200 characters"
    if not isinstance(size, int) or not 2 <= size <= MAX_DIMENSIONS:
        return f"its size must be a whole number from 2 to {MAX_DIMENSIONS}"
    embed, close = getattr(plugin, "embed", None), getattr(plugin, "close", None)
    if not inspect.iscoroutinefunction(embed) or not inspect.iscoroutinefunction(close):
        return "it needs async methods embed(texts) and close()"
    try:
        inspect.signature(embed).bind(())
        inspect.signature(close).bind()
    except TypeError:
        return "its embed must take exactly texts, and its close nothing"
    return None


class _GuardedEmbedder:
    """Turns every failure of a third-party embedder into Unavailable.

    Search by words then still works.
    """

    def __init__(self, plugin: Embedder) -> None:
        self._plugin = plugin
        self.name, self.size = plugin.name, plugin.size

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        try:
            return await self._plugin.embed(list(texts))
        except Unavailable:
            raise
        except Exception as bug:
            log.exception("the embedder %s failed", self.name)
            raise Unavailable(f"the embedder failed: {type(bug).__name__}") from bug

    async def close(self) -> None:
        try:
            await self._plugin.close()
        except Exception:
            log.exception("the embedder %s does not close", self.name)


def _load_entry_point(entry_point: EntryPoint, kind: str) -> object:
    try:
        loaded: object = entry_point.load()
        return loaded() if isinstance(loaded, type) else loaded
    except Exception as failure:
        raise Misconfigured(
            f"the {kind} {entry_point.name!r} ({entry_point.value}) does not load: "
            f"{type(failure).__name__}; correct or uninstall the package that brings it"
        ) from failure
