"""Finds the provider of a model by its API name, and the price of the model."""

import importlib
import logging
from collections.abc import Iterable
from decimal import Decimal
from importlib.metadata import EntryPoint
from typing import Any, Final, cast

from comity.errors import Misconfigured
from comity.inference.model import MILLION, UNPRICED, Model, ModelFactory, ModelSpec, Price
from comity.toolkit.plugins import installed_entry_points

log = logging.getLogger(__name__)

_SAMPLE: Final = 1_000
"""A small sample, because some vendors charge more for long prompts."""


def price_of(spec: ModelSpec, price: Price = UNPRICED) -> Price:
    """Return the configured price, or the one from the price table.

    An unknown price counts as zero.
    """
    if price.input is not None and price.output is not None:
        return price
    known = _table_price(spec)
    return Price(
        known.input if price.input is None else price.input,
        known.output if price.output is None else price.output,
    )


def _table_price(spec: ModelSpec) -> Price:
    try:
        table: Any = importlib.import_module("genai_prices")
    except ImportError:
        return UNPRICED
    return Price(
        _price_in_table(table, spec, input_tokens=_SAMPLE),
        _price_in_table(table, spec, output_tokens=_SAMPLE),
    )


def _price_in_table(table: Any, spec: ModelSpec, **tokens: int) -> float | None:
    for vendor in (spec.vendor or None, None):
        try:
            found = table.calc_price(table.Usage(**tokens), spec.model, provider_id=vendor)
        except (LookupError, ValueError):
            continue
        return float(Decimal(found.total_price) * MILLION / _SAMPLE)
    return None


GROUP: Final = "comity.models"
BUILT_IN: Final = ("openai", "anthropic")


def make_model(spec: ModelSpec, points: Iterable[EntryPoint] | None = None) -> Model:
    """Build a model without connecting to it. Raises Misconfigured if its API is unknown."""
    make = _built_in(spec.api) if spec.api in BUILT_IN else _plugin(spec, points)
    made: Any = make(spec)
    for name in ("info", "complete", "close"):
        if not hasattr(made, name):
            raise Misconfigured(f"the plugin for models of api {spec.api!r} has no {name}")
    return cast("Model", made)


def _built_in(api: str) -> ModelFactory:
    try:
        if api == "anthropic":
            # Imported here because the SDK is an optional extra.
            from comity.inference.providers.anthropic import make
        else:
            # Imported here because the SDK is an optional extra.
            from comity.inference.providers.openai import make
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("comity"):
            raise
        raise Misconfigured(
            f"models of api {api!r} need the extra: pip install 'comity[models]'"
        ) from None
    return make


def _plugin(spec: ModelSpec, points: Iterable[EntryPoint] | None) -> ModelFactory:
    if points is None:
        points = installed_entry_points(GROUP)
    found = {each.name: each for each in points}
    if spec.api not in found:
        known = ", ".join(sorted({*BUILT_IN, *found}))
        raise Misconfigured(f"model {spec.id!r}: unknown api {spec.api!r}; known: {known}")
    try:
        made: object = found[spec.api].load()
    except Exception as problem:
        # Importing a third-party plugin may raise any exception.
        raise Misconfigured(
            f"the plugin for models of api {spec.api!r} cannot be loaded: {type(problem).__name__}"
        ) from problem
    if not callable(made):
        raise Misconfigured(f"the plugin for models of api {spec.api!r} cannot be called")
    return cast("ModelFactory", made)
