"""Models are made as the settings name them; a key comes from its file or variable alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from comity.adapters.models.openai import OpenAIModel
from comity.app.model_making import make_seats, plan_of, spec_of
from comity.config import Settings
from comity.config.models import ModelSettings
from comity.rules.budgets import Price
from comity.rules.inference_routes import Route
from comity.wire.errors import Misconfigured

ONE = ModelSettings("a", "openai", "a-1", "http://127.0.0.1:1/v1")


async def test_a_model_has_its_seat_with_what_it_costs() -> None:
    priced = replace(ONE, price_input=1.0, price_output=2.0, max_output=7)
    seats = make_seats(Settings(models=(priced, replace(ONE, id="b", model="gpt-4o-mini"))))
    assert list(seats) == ["a", "b"]
    assert isinstance(seats["a"].model, OpenAIModel)
    assert (seats["a"].price, seats["a"].max_output) == (Price(1.0, 2.0), 7)
    assert seats["b"].price == Price(0.15, 0.6)
    for each in seats.values():
        await each.model.close()


def test_a_key_is_read_from_its_file_or_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text("sk-of-a-file\n")
    file.chmod(0o600)
    monkeypatch.setenv("SOME_KEY", "sk-of-a-variable")
    found = [
        spec_of(replace(ONE, key_file=str(file)), Settings()),
        spec_of(replace(ONE, key_env="SOME_KEY"), Settings()),
        spec_of(ONE, Settings()),
    ]
    assert [each.key for each in found] == ["sk-of-a-file", "sk-of-a-variable", ""]
    assert "sk-" not in repr(found)


@pytest.mark.parametrize("held", [None, "", " \n", "x" * 70_000, "sk-ö"])
def test_a_file_without_a_key_stops_the_start(tmp_path: Path, held: str | None) -> None:
    file = tmp_path / "key"
    if held is not None:
        file.write_text(held, "utf-8")
        file.chmod(0o600)
    with pytest.raises(Misconfigured, match=r"model 'a': .*key_file") as told:
        spec_of(replace(ONE, key_file=str(file)), Settings())
    assert "sk-" not in str(told.value)


def test_a_variable_that_is_not_set_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(Misconfigured, match="SOME_KEY is not set"):
        spec_of(replace(ONE, key_env="SOME_KEY"), Settings())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (Settings(models=(ONE,), inference_default="b"), "inference.default"),
        (Settings(models=(ONE,), inference_fallbacks=("b",)), "inference.fallbacks"),
        (Settings(models=(ONE,), inference_routes=(Route("b"),)), "inference.routes"),
    ],
)
def test_who_is_named_must_be_there(settings: Settings, told: str) -> None:
    with pytest.raises(Misconfigured, match=f"{told}: there is no model 'b'"):
        make_seats(settings)


def test_of_one_model_alone_there_is_no_doubt() -> None:
    assert plan_of(Settings(models=(ONE,))).default == "a"
    assert plan_of(Settings(models=(ONE, replace(ONE, id="b")))).default == ""
    assert plan_of(Settings()).default == ""
