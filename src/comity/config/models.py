"""Models of `[[models]]`, and of `[[inference.routes]]` who is asked for what. (MCPL §11.5)"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from comity.config.kinds import TEXT, Kind, number, table_of, texts
from comity.config.members import all_of, amount, members_of, shaped
from comity.rules.documents import Mistakes, Written
from comity.rules.inference_routes import Route
from comity.rules.variables import expand
from comity.wire.errors import Misconfigured

MOST_MODELS: Final = 100
MOST_ROUTES: Final = 1_000
_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}"
_URL: Final = r"https?://[^\s?#@]+"
_NAME: Final = r"\S{1,200}"
_VARIABLE: Final = r".*\$\{.*"
"""What only the environment makes whole."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model: where it is, what it is called there, and what is known of it.

    Where its key is, is named; the key itself is not here.
    """

    id: str
    api: str
    model: str
    url: str = ""
    key_file: str = ""
    key_env: str = ""
    context_window: int = 128_000
    max_output: int = 4_096
    capabilities: tuple[str, ...] = ("tools",)
    vendor: str = ""
    # For a million tokens; None asks the table of prices.
    price_input: float | None = None
    price_output: float | None = None
    # What its plugin is told beside all this.
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


def _table(written: Written) -> Mapping[str, object]:
    return {name: each.value for name, each in written.table().items()}


_URL_EXAMPLE: Final = "https://models.example.org/v1"
_MODEL_ID: Final = shaped(_ID, "fast, or vendor/model")
_FEATURE: Final = shaped(
    r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?", "memory.retrieval, memory.* or *"
)
_TOKENS: Final = number(1, 100_000_000)
_MODEL: Final[Mapping[str, tuple[Kind, str]]] = {
    "id": (_MODEL_ID, "what it is called here"),
    "api": (shaped(r"[A-Za-z0-9_.-]{1,100}", "openai"), "openai, anthropic, or a plugin's name"),
    "url": (
        shaped(f"{_URL}|{_VARIABLE}", _URL_EXAMPLE),
        "where it is; the vendor's own unless",
    ),
    "model": (
        shaped(f"{_NAME}|{_VARIABLE}", "a name without spaces"),
        "what it is called there; its id",
    ),
    "key_file": (TEXT, "the file that holds its key"),
    "key_env": (shaped(r"[A-Za-z_][A-Za-z0-9_]*", "MODEL_KEY"), "or the variable that does"),
    "context_window": (_TOKENS, "how many tokens it can read"),
    "max_output": (_TOKENS, "how many it says at most"),
    "capabilities": (texts(r"[a-z_]{1,40}", "tools, or vision"), "what it can: tools, vision"),
    "vendor": (TEXT, "whose it is; its api unless given"),
    "price_input": (amount(1_000_000), "what a million tokens cost that it reads"),
    "price_output": (amount(1_000_000), "what a million tokens cost that it says"),
    "options": (Kind(_table, {"type": "object"}), "what its plugin is told beside"),
}
_ROUTE: Final[Mapping[str, tuple[Kind, str]]] = {
    "server": (TEXT, "whose requests; everybody's unless given"),
    "feature": (_FEATURE, "of which feature set, as memory.*; any unless given"),
    "conversation": (TEXT, "in which conversation"),
    "at_least_tokens": (_TOKENS, "only what is about so long, or longer"),
    "model": (_MODEL_ID, "the model that is asked"),
}


def _model(entry: Written) -> ModelSettings:
    said = members_of(entry, _MODEL, ("id", "api"))
    if "key_file" in said and "key_env" in said:
        raise entry.wrong("names a key_file and a key_env; keep one")
    return ModelSettings(**{"model": said["id"], **said})


def _route(entry: Written) -> Route:
    return Route(**members_of(entry, _ROUTE, ("model",)))


def _models(written: Written) -> tuple[object, ...]:
    found = all_of(_model, MOST_MODELS)(written)
    ids = [each.id for each in found]
    for each, entry in zip(found, written.items(), strict=True):
        if ids.count(each.id) > 1:
            raise entry.wrong(f"the id {each.id!r} stands here twice; rename one")
    return found


def _routes(written: Written) -> tuple[object, ...]:
    return all_of(_route, MOST_ROUTES)(written)


def with_variables(
    models: tuple[ModelSettings, ...], environ: Mapping[str, str], mistakes: Mistakes
) -> tuple[ModelSettings, ...]:
    """Models whose address and name are as the environment says, where it is to say that."""
    return tuple(_with_variables(each, environ, mistakes) for each in models)


def _with_variables(
    model: ModelSettings, environ: Mapping[str, str], mistakes: Mistakes
) -> ModelSettings:
    found: dict[str, str] = {}
    for key, told, shape, example in (
        ("url", model.url, _URL, _URL_EXAMPLE),
        ("model", model.model, _NAME, "a name without spaces"),
    ):
        named = Written(None, f"[[models]] {model.id}", (key,))
        try:
            found[key] = expand(told, environ)
        except Misconfigured as problem:
            mistakes.note(named.wrong(str(problem)))
            continue
        if found[key] != told and not re.fullmatch(shape, found[key]):
            mistakes.note(named.wrong(f"must be written as {example}"))
    return replace(model, **found)


def check_names(decided: Mapping[str, Any], mistakes: Mistakes) -> None:
    """That every model that is named is there."""
    models: tuple[ModelSettings, ...] = decided.get("models") or ()
    routes: tuple[Route, ...] = decided.get("inference_routes") or ()
    named = [("default", decided.get("inference_default") or "")]
    named += [("fallbacks", each) for each in decided.get("inference_fallbacks") or ()]
    named += [("routes", each.model) for each in routes]
    ids = {"", *(each.id for each in models)}
    for key, name in named:
        if name not in ids:
            there = Written(None, "[inference]", (key,))
            mistakes.note(there.wrong(f"there is no model {name!r} in [[models]]"))


MODELS: Final = Kind(_models, {"type": "array", "items": table_of(_MODEL, required=["id", "api"])})
ROUTES: Final = Kind(_routes, {"type": "array", "items": table_of(_ROUTE, required=["model"])})
MODEL_IDS: Final = texts(_ID, "the id of a model")
