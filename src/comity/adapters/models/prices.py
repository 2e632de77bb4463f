"""What tokens of known models cost, from a table that is kept by others; money is US dollars."""

import importlib
import logging
from decimal import Decimal
from typing import Any, Final

from comity.ports.models import ModelSpec
from comity.rules.budgets import MILLION, UNPRICED, Price

log = logging.getLogger(__name__)

_SAMPLE: Final = 1_000
"""So few tokens are priced, lest the price be one for long prompts."""


def price_of(spec: ModelSpec, given: Price = UNPRICED) -> Price:
    """What the operator said; else what the table knows; else unknown, which counts as nothing."""
    if given.input is not None and given.output is not None:
        return given
    known = _known(spec)
    return Price(
        known.input if given.input is None else given.input,
        known.output if given.output is None else given.output,
    )


def _known(spec: ModelSpec) -> Price:
    try:
        table: Any = importlib.import_module("genai_prices")
    except ImportError:
        return UNPRICED
    return Price(_of(table, spec, input_tokens=_SAMPLE), _of(table, spec, output_tokens=_SAMPLE))


def _of(table: Any, spec: ModelSpec, **tokens: int) -> float | None:
    for vendor in (spec.vendor or None, None):
        try:
            found = table.calc_price(table.Usage(**tokens), spec.model, provider_id=vendor)
        except (LookupError, ValueError):
            continue
        return float(Decimal(found.total_price) * MILLION / _SAMPLE)
    return None
