"""Models, routes and budgets in the settings: read, and every mistake named."""

from dataclasses import replace
from pathlib import Path

import pytest

from comity.app.settings import Settings
from comity.app.settings_reader import load_settings
from comity.errors import Misconfigured
from comity.inference.model import Budget, ModelRoute, Price
from comity.inference.providers.openai import OpenAIModel
from comity.inference.settings import ModelSettings
from comity.inference.wiring import make_seats, plan_of, spec_of
from tests.support.cases import loop_over
from tests.support.writing import from_text

WHOLE = """
[[models]]
id = "fast"
api = "openai"

[[models]]
id = "wise"
api = "anthropic"
url = "https://models.example.org"
model = "wise-1"
key_file = "/etc/key"
context_window = 200000
max_output = 8192
capabilities = ["tools", "vision"]
vendor = "someone"
price_input = 3
price_output = 15.5
options = { temperature = false }

[inference]
default = "fast"
fallbacks = ["wise"]
sampling = "deny"
timeout = "2m"

[[inference.routes]]
server = "s"
feature = "memory.*"
conversation = "c1"
min_tokens = 5
model = "wise"

[[budgets]]
principal = "server:*"
feature = "memory.*"
tokens_per_day = 1000
money_per_day = 0.25
on_exceeded = "refuse"
shared = true

[[budgets]]
tokens_per_day = 0
"""


def test_all_that_can_be_said_of_models_is_read(tmp_path: Path) -> None:
    found = from_text(tmp_path, WHOLE)
    assert found.models == (
        ModelSettings("fast", "openai", "fast"),
        ModelSettings(
            "wise",
            "anthropic",
            "wise-1",
            "https://models.example.org",
            key_file="/etc/key",
            context_window=200_000,
            max_output=8_192,
            capabilities=("tools", "vision"),
            vendor="someone",
            price_input=3.0,
            price_output=15.5,
            options={"temperature": False},
        ),
    )
    assert (found.inference.default, found.inference.fallbacks) == ("fast", ("wise",))
    assert found.inference.sampling == "deny"
    assert found.inference.routes == (ModelRoute("wise", "s", "memory.*", "c1", 5),)
    assert found.budgets == (
        Budget("server:*", "memory.*", 1_000, 250_000, "refuse", shared=True),
        Budget(tokens=0),
    )


@loop_over(
    ("text", "told"),
    [
        ('[[models]]\nid = "a"', "needs its api"),
        ('[[models]]\napi = "openai"', "needs its id"),
        ('[[models]]\nid = "a b"\napi = "openai"', "id: must be written as"),
        ('[[models]]\nid = "a"\napi = "openai"\nurl = "ftp://x"', "url: must be written as"),
        ('[[models]]\nid = "a"\napi = "openai"\nurl = "https://u:p@x"', "url: must be written as"),
        ('[[models]]\nid = "a"\napi = "openai"\nprice_input = -1', "must be a number between 0"),
        ('[[models]]\nid = "a"\napi = "openai"\nprice_input = nan', "must be a number between 0"),
        ('[[models]]\nid = "a"\napi = "openai"\nprice_input = true', "must be a number between 0"),
        ('[[models]]\nid = "a"\napi = "openai"\nkey = "sk"', "there is no such key"),
        (
            '[[models]]\nid = "a"\napi = "openai"\nkey_file = "x"\nkey_env = "Y"',
            "names a key_file and a key_env",
        ),
        (
            '[[models]]\nid = "a"\napi = "openai"\n[[models]]\nid = "a"\napi = "anthropic"',
            "appears twice",
        ),
        ('[[models]]\nid = "a"\napi = "openai"\ncontext_window = 0', "must be between 1"),
        ('[[inference.routes]]\nfeature = "x.*"', "needs its model"),
        ('[[inference.routes]]\nmodel = "a"\nfeature = "x*y"', "feature: must be written as"),
        ('[inference]\nsampling = "always"', "must be one of: ask, deny, allow"),
        ('[[budgets]]\nprincipal = "agent:*"', "needs tokens_per_day or money_per_day"),
        ('[inference]\ndefault = "b"', "default: there is no model 'b'"),
        ('[inference]\nfallbacks = ["b"]', "fallbacks: there is no model 'b'"),
        ('[[inference.routes]]\nmodel = "b"', "routes: there is no model 'b'"),
        ("[[budgets]]\ntokens_per_day = -1", "must be between 0"),
        ("[[budgets]]\ntokens_per_day = 1\n[[budgets]]\ntokens_per_day = 2", "appear twice"),
        ('[[budgets]]\ntokens_per_day = 1\non_exceeded = "allow"', "must be one of: ask, refuse"),
    ],
)
def test_a_mistake_about_models_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        from_text(tmp_path, text + "\n")


def test_a_key_in_the_wrong_place_is_not_told(tmp_path: Path) -> None:
    path = tmp_path / "comity.toml"
    path.write_text('[[models]]\nid = "a"\napi = "openai"\nkey = "sk-secret"\n', "utf-8")
    with pytest.raises(Misconfigured) as told:
        load_settings(path, {})
    assert "sk-secret" not in str(told.value)


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


@loop_over("held", [None, "", " \n", "x" * 70_000, "sk-ö"])
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


def test_of_one_model_alone_there_is_no_doubt() -> None:
    assert plan_of(Settings(models=(ONE,))).default == "a"
    assert plan_of(Settings(models=(ONE, replace(ONE, id="b")))).default == ""
    assert plan_of(Settings()).default == ""
