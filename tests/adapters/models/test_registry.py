"""Who makes a model: the gateway's own for two APIs, a plugin for any other; and what it costs."""

from importlib.metadata import EntryPoint

import pytest

from comity.adapters.models.prices import price_of
from comity.adapters.models.reaching import LONGEST_WAIT, again_in
from comity.adapters.models.registry import make_model
from comity.ports.models import ModelSpec, OnPiece, Prompt, Reply
from comity.rules.budgets import Price
from comity.wire.errors import Misconfigured
from comity.wire.inference import Finish, ModelInfo, Usage

SPEC = ModelSpec("m", "mine", "m-1")


class Mine:
    """A model of another kind."""

    def __init__(self, spec: ModelSpec) -> None:
        self.info: ModelInfo = spec.info

    async def complete(self, prompt: Prompt, on_piece: OnPiece | None = None) -> Reply:
        return Reply((), Finish.END, Usage(), self.info.id)

    async def close(self) -> None:
        """Nothing is open."""


def nothing(spec: ModelSpec) -> object:
    return object()


NUMBER = 7


def loaded(point: EntryPoint) -> object:
    return globals()[point.value.partition(":")[2]]


def point(what: str) -> EntryPoint:
    return EntryPoint("mine", f"{__name__}:{what}", "comity.models")


def test_a_plugin_makes_models_of_its_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryPoint, "load", loaded)
    assert make_model(SPEC, [point("Mine")]).info == ModelInfo("m-1", "mine", 128_000)
    with pytest.raises(Misconfigured, match="has no info"):
        make_model(SPEC, [point("nothing")])
    with pytest.raises(Misconfigured, match="cannot be called"):
        make_model(SPEC, [point("NUMBER")])


def test_a_plugin_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(Misconfigured, match="api 'mine' cannot be loaded: ModuleNotFoundError"):
        make_model(SPEC, [EntryPoint("mine", "no_such_package:make", "comity.models")])


def test_an_api_that_nobody_speaks_is_named() -> None:
    with pytest.raises(Misconfigured, match="known are: anthropic, openai"):
        make_model(SPEC)


@pytest.mark.parametrize(
    ("vendor", "model", "given", "price"),
    [
        ("openai", "gpt-4o-mini", Price(), Price(0.15, 0.6)),
        ("", "gpt-4o-mini", Price(), Price(0.15, 0.6)),
        ("openai", "gpt-4o-mini", Price(1.0, None), Price(1.0, 0.6)),
        ("openai", "gpt-4o-mini", Price(0.0, 0.0), Price(0.0, 0.0)),
        ("openai", "nobody-knows-it", Price(), Price()),
    ],
)
def test_what_the_operator_said_stands_before_the_table(
    vendor: str, model: str, given: Price, price: Price
) -> None:
    assert price_of(ModelSpec("m", "openai", model, vendor=vendor), given) == price


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("7", 7), ("0.5", 0.5), ("-3", 0), ("1e99", None), ("nan", None), ("soon", None), ("", None)],
)
def test_when_to_come_again_is_read_with_care(said: str, seconds: float | None) -> None:
    found = again_in(said)
    assert (None if found is None else found.total_seconds()) == seconds


def test_a_date_in_the_past_is_now_and_one_far_away_is_not_waited_for() -> None:
    past, future = again_in("Thu, 01 Jan 1998 00:00:00 GMT"), again_in("999999")
    assert (past is not None, future) == (True, LONGEST_WAIT)
    assert past is not None
    assert past.total_seconds() == 0
