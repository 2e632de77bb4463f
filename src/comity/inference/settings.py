"""The table `[inference]`, and the entries of `[[models]]` and `[[budgets]]`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal

from comity.config.document import ConfigErrors, ConfigValue, expand_variables
from comity.config.fields import (
    REQUIRED,
    TEXT,
    TRUTH,
    FieldType,
    Members,
    all_of,
    amount_type,
    members_in,
    members_of,
    number_type,
    one_of,
    pattern_type,
    read_table,
    setting,
    table_of,
    text_list_type,
)
from comity.errors import Misconfigured
from comity.inference.model import MILLION, Budget, ModelRoute

type SamplingChoice = Literal["ask", "deny", "allow"]

MAX_BUDGETS: Final = 1_000
_MEMBERS: Final[Members] = {
    "principal": (
        pattern_type(r"[^\s|]{1,200}", "agent:ci, server:memory or agent:*"),
        "the principal, such as server:memory, or a pattern; default: all",
    ),
    "feature": (
        pattern_type(
            r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?", "memory.retrieval or memory.*"
        ),
        "the feature set; default: any",
    ),
    "tokens_per_day": (number_type(0, 10**12), "input and output tokens per day (UTC)"),
    "money_per_day": (amount_type(10**9), "money per day, in the currency of the prices"),
    "on_exceeded": (
        one_of("ask", "refuse"),
        "whether people are asked for more (`ask`, default), or the request is refused",
    ),
    "shared": (TRUTH, "whether all principals share it; default: each has its own"),
}


def _budget(entry: ConfigValue) -> Budget:
    said: dict[str, Any] = members_of(entry, _MEMBERS)
    tokens, money = said.pop("tokens_per_day", None), said.pop("money_per_day", None)
    if tokens is None and money is None:
        raise entry.wrong("needs tokens_per_day or money_per_day")
    return Budget(**said, tokens=tokens, money=None if money is None else round(money * MILLION))


def _budgets(value: ConfigValue) -> tuple[Any, ...]:
    found = all_of(_budget, MAX_BUDGETS)(value)
    names = [each.name for each in found]
    for each, entry in zip(found, value.items(), strict=True):
        if names.count(each.name) > 1:
            raise entry.wrong("the same principal and feature appear twice; keep one")
    return found


BUDGETS: Final = FieldType(_budgets, {"type": "array", "items": table_of(_MEMBERS)})


MAX_MODELS: Final = 100
MAX_ROUTES: Final = 1_000
_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}"
_URL: Final = r"https?://[^\s?#@]+"
_NAME: Final = r"\S{1,200}"
_VARIABLE: Final = r".*\$\{.*"
"""Matches a value with a variable, which is checked after its expansion."""


def _table(value: ConfigValue) -> Mapping[str, object]:
    return {name: each.value for name, each in value.table().items()}


_URL_EXAMPLE: Final = "https://models.example.org/v1"
_MODEL_ID: Final = pattern_type(_ID, "fast, or vendor/model")
_FEATURE: Final = pattern_type(
    r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?", "memory.retrieval, memory.* or *"
)
_TOKENS: Final = number_type(1, 100_000_000)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model: its API, its address, its name there and its limits.

    The settings name the location of the key and never contain the key itself.
    """

    id: str = setting(REQUIRED, "the name of the model in Comity", _MODEL_ID)
    api: str = setting(
        REQUIRED,
        "openai, anthropic, or a plugin's name",
        pattern_type(r"[A-Za-z0-9_.-]{1,100}", "openai"),
    )
    model: str = setting(
        "",
        "the name of the model at its provider; default: `id`",
        pattern_type(f"{_NAME}|{_VARIABLE}", "a name without spaces"),
    )
    url: str = setting(
        "",
        "the URL of the API; default: that of the vendor",
        pattern_type(f"{_URL}|{_VARIABLE}", _URL_EXAMPLE),
        is_secret=True,  # a part of it may be one
    )
    key_file: str = setting("", "the file that holds its key")
    key_env: str = setting(
        "",
        "the environment variable that holds its key",
        pattern_type(r"[A-Za-z_][A-Za-z0-9_]*", "MODEL_KEY"),
    )
    context_window: int = setting(128_000, "how many tokens it can read", _TOKENS)
    max_output: int = setting(4_096, "maximum tokens of a reply", _TOKENS)
    capabilities: tuple[str, ...] = setting(
        ("tools",),
        "its abilities: tools, vision",
        text_list_type(r"[a-z_]{1,40}", "tools, or vision"),
    )
    vendor: str = setting("", "the vendor; default: `api`")
    # None means the price from the price table.
    price_input: float | None = setting(
        None, "the price of a million input tokens", amount_type(1_000_000)
    )
    price_output: float | None = setting(
        None, "the price of a million output tokens", amount_type(1_000_000)
    )
    options: Mapping[str, Any] = setting(
        {}, "further options for its plugin", FieldType(_table, {"type": "object"})
    )


_ROUTE: Final[Members] = {
    "server": (TEXT, "the server whose requests match; default: any"),
    "feature": (_FEATURE, "the feature set, such as memory.*; default: any"),
    "conversation": (TEXT, "the conversation"),
    "min_tokens": (_TOKENS, "only requests of about this length or more"),
    "model": (_MODEL_ID, "the model"),
}


def _model(entry: ConfigValue) -> ModelSettings:
    model = read_table(entry, ModelSettings)
    if {"key_file", "key_env"} <= entry.table().keys():
        raise entry.wrong("names a key_file and a key_env; keep one")
    return model if "model" in entry.table() else replace(model, model=model.id)


def _route(entry: ConfigValue) -> ModelRoute:
    return ModelRoute(**members_of(entry, _ROUTE, ("model",)))


def _models(value: ConfigValue) -> tuple[Any, ...]:
    found = all_of(_model, MAX_MODELS)(value)
    ids = [each.id for each in found]
    for each, entry in zip(found, value.items(), strict=True):
        if ids.count(each.id) > 1:
            raise entry.wrong(f"the id {each.id!r} appears twice; rename one")
    return found


def _routes(value: ConfigValue) -> tuple[Any, ...]:
    return all_of(_route, MAX_ROUTES)(value)


def with_variables(
    models: tuple[ModelSettings, ...], environ: Mapping[str, str], mistakes: ConfigErrors
) -> tuple[ModelSettings, ...]:
    """Return the models with variables in their URLs and names expanded."""
    return tuple(_with_variables(each, environ, mistakes) for each in models)


def _with_variables(
    model: ModelSettings, environ: Mapping[str, str], mistakes: ConfigErrors
) -> ModelSettings:
    found: dict[str, str] = {}
    for key, told, shape, example in (
        ("url", model.url, _URL, _URL_EXAMPLE),
        ("model", model.model, _NAME, "a name without spaces"),
    ):
        named = ConfigValue(None, f"[[models]] {model.id}", (key,))
        try:
            found[key] = expand_variables(told, environ)
        except Misconfigured as problem:
            mistakes.add(named.wrong(str(problem)))
            continue
        if found[key] != told and not re.fullmatch(shape, found[key]):
            mistakes.add(named.wrong(f"must be written as {example}"))
    return replace(model, **found)


MODELS: Final = FieldType(
    _models, {"type": "array", "items": table_of(members_in(ModelSettings), required=["id", "api"])}
)
ROUTES: Final = FieldType(_routes, {"type": "array", "items": table_of(_ROUTE, required=["model"])})
MODEL_IDS: Final = text_list_type(_ID, "the id of a model")


@dataclass(frozen=True, slots=True)
class InferenceSettings:
    """The settings of requests to models."""

    default: str = setting("", "The model for requests without a route.")
    fallbacks: tuple[str, ...] = setting(
        (), "The models that Comity asks in this order where the chosen one fails.", MODEL_IDS
    )
    sampling: SamplingChoice = setting(
        "ask",
        "Whether models answer `sampling/createMessage` of servers whose client cannot; "
        "`ask` asks people each time.",
    )
    timeout: timedelta = setting(timedelta(minutes=5), "How long a model may take.")
    routes: tuple[ModelRoute, ...] = setting((), "The model for each kind of request.", ROUTES)


def missing_models(
    models: Iterable[ModelSettings], inference: InferenceSettings
) -> Iterator[tuple[str, str]]:
    """Yield each key that names a model missing from `[[models]]`, with that name."""
    named = [("default", inference.default)] if inference.default else []
    named += [("fallbacks", each) for each in inference.fallbacks]
    named += [("routes", each.model) for each in inference.routes]
    ids = {each.id for each in models}
    return ((key, name) for key, name in named if name not in ids)
