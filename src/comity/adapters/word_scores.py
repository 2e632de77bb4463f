"""By what words are scored: by numpy where it is installed, and else by plain Python."""

import importlib
from typing import Any

from comity.rules.search_scores import PlainScoring, Scoring


def fastest_scoring() -> Scoring[Any]:
    """The same scores either way; a hundred thousand tools want numpy (`comity[semantic]`)."""
    try:
        return importlib.import_module("comity.adapters.word_scores_numpy").NumpyScoring()
    except ModuleNotFoundError as missing:
        if missing.name != "numpy":
            raise
        return PlainScoring()
