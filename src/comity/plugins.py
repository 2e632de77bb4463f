"""What others add, found by entry point and checked against its port before it is used.

A plugin declares; it is never handed the kernel. One that does not keep to its port stops the
start, since a validator that is silently left out would look like one that has agreed.
"""

import copy
import inspect
import logging
import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from comity.ports.finding import Embedder
from comity.ports.validating import Validator
from comity.rules.validators import NONE, STANDARD, Examine, Rules, Verdict, blocked
from comity.wire.errors import Misconfigured, Unavailable
from comity.wire.tools import Tool

log = logging.getLogger(__name__)

VALIDATORS: Final = "comity.validators"
EMBEDDERS: Final = "comity.embedders"
MOST_DIMENSIONS: Final = 4_096
_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{1,63}")
_NO_SETTINGS: Final[Mapping[str, object]] = {}


def found_validators(points: Iterable[EntryPoint] | None = None) -> dict[str, Examine]:
    """Every validator that is installed, by its name; raises Misconfigured where one is none."""
    found: dict[str, Examine] = {}
    for point in entry_points(group=VALIDATORS) if points is None else points:
        plugin = _loaded(point, "validator")
        problem = contract_problem(plugin)
        validator = cast("Validator", plugin)
        if problem is None and validator.name in found:
            problem = f"another one is called {validator.name!r} too"
        if problem is not None:
            raise Misconfigured(
                f"the validator {point.name!r} ({point.value}) cannot be used: {problem}; "
                "correct or uninstall the package that brings it"
            )
        found[validator.name] = adapted(validator)
    return found


def contract_problem(plugin: object) -> str | None:
    """Why an object is no validator, or None."""
    name = getattr(plugin, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
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


def adapted(plugin: Validator) -> Examine:
    """A plugin as the gate calls it: with copies of what it is shown, and its own settings."""

    def examine(
        tool: Tool, arguments: Mapping[str, object], rules: Rules
    ) -> Verdict | Awaitable[Verdict]:
        settings = rules.settings.get(plugin.name, _NO_SETTINGS)
        shown = copy.deepcopy((dict(arguments), dict(settings)))
        own = Tool(tool.server, tool.name, copy.deepcopy(dict(tool.definition)))
        said = plugin.examine(own, *shown)
        return (
            _later(plugin.name, said) if inspect.isawaitable(said) else _verdict(plugin.name, said)
        )

    return examine


async def _later(name: str, said: Awaitable[object]) -> Verdict:
    return _verdict(name, await said)


def _verdict(name: str, said: object) -> Verdict:
    """Only None lets a call through: whatever else comes back is a reason, or a mistake."""
    if said is None:
        return None
    text = said if isinstance(said, str) and said else "it gave no reason that can be read"
    return blocked(name, "".join(each if each.isprintable() else " " for each in text[:300]))


def found_embedder(name: str, points: Iterable[EntryPoint] | None = None) -> Embedder:
    """The embedder that an operator named; raises Misconfigured where there is no such one."""
    known = list(entry_points(group=EMBEDDERS) if points is None else points)
    point = next((each for each in known if each.name == name), None)
    if point is None:
        raise Misconfigured(
            f"there is no embedder {name!r}: choose `auto`, `minilm`, `none`"
            + "".join(f", `{each.name}`" for each in known)
        )
    plugin = _loaded(point, "embedder")
    problem = embedder_problem(plugin)
    if problem is not None:
        raise Misconfigured(
            f"the embedder {name!r} ({point.value}) cannot be used: {problem}; "
            "correct or uninstall the package that brings it"
        )
    return _Guarded(cast("Embedder", plugin))


def embedder_problem(plugin: object) -> str | None:
    """Why an object is no embedder, or None."""
    name, size = getattr(plugin, "name", None), getattr(plugin, "size", None)
    if not isinstance(name, str) or not 1 <= len(name) <= 200:
        return "its name must say which model it is, in at most 200 letters"
    if not isinstance(size, int) or not 2 <= size <= MOST_DIMENSIONS:
        return f"its size must be a whole number from 2 to {MOST_DIMENSIONS}"
    embed, close = getattr(plugin, "embed", None), getattr(plugin, "close", None)
    if not inspect.iscoroutinefunction(embed) or not inspect.iscoroutinefunction(close):
        return "it needs async methods embed(texts) and close()"
    try:
        inspect.signature(embed).bind(())
        inspect.signature(close).bind()
    except TypeError:
        return "its embed must take exactly texts, and its close nothing"
    return None


class _Guarded:
    """An embedder of somebody else's: whatever becomes of it, words still find."""

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


def _loaded(point: EntryPoint, kind: str) -> object:
    try:
        loaded: object = point.load()
        return loaded() if isinstance(loaded, type) else loaded
    except Exception as failure:
        raise Misconfigured(
            f"the {kind} {point.name!r} ({point.value}) does not load: "
            f"{type(failure).__name__}; correct or uninstall the package that brings it"
        ) from failure
