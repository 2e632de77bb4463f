"""Who makes a model of a given API: ours for two, a plugin for any other."""

import importlib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

from comity.ports.models import Model, ModelMaker, ModelSpec
from comity.wire.errors import Misconfigured

GROUP: Final = "comity.models"
BUILT_IN: Final = ("openai", "anthropic")


def make_model(spec: ModelSpec, points: Iterable[EntryPoint] | None = None) -> Model:
    """Raises Misconfigured where nobody knows its API. Reaches for nothing yet."""
    make = _built_in(spec.api) if spec.api in BUILT_IN else _plugin(spec, points)
    made: Any = make(spec)
    for name in ("info", "complete", "close"):
        if not hasattr(made, name):
            raise Misconfigured(f"the plugin for models of api {spec.api!r} has no {name}")
    return cast("Model", made)


def _built_in(api: str) -> ModelMaker:
    try:
        room: Any = importlib.import_module(f"comity.adapters.models.{api}")
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("comity"):
            raise
        raise Misconfigured(
            f"models of api {api!r} need the extra: pip install 'comity[models]'"
        ) from None
    return room.make


def _plugin(spec: ModelSpec, points: Iterable[EntryPoint] | None) -> ModelMaker:
    found = {each.name: each for each in entry_points(group=GROUP) if points is None}
    found |= {each.name: each for each in points or ()}
    if spec.api not in found:
        known = ", ".join(sorted({*BUILT_IN, *found}))
        raise Misconfigured(
            f"model {spec.id!r}: nobody here speaks api {spec.api!r}; known are: {known}"
        )
    try:
        made: object = found[spec.api].load()
    except Exception as problem:
        # Whatever a stranger's package does while it is imported.
        raise Misconfigured(
            f"the plugin for models of api {spec.api!r} cannot be loaded: {type(problem).__name__}"
        ) from problem
    if not callable(made):
        raise Misconfigured(f"the plugin for models of api {spec.api!r} cannot be called")
    return cast("ModelMaker", made)
