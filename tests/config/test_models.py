"""Models, routes and budgets in the settings: read, and every mistake named."""

from pathlib import Path

import pytest

from comity.config import load
from comity.config.models import ModelSettings
from comity.rules.budgets import Budget
from comity.rules.inference_routes import Route
from comity.wire.errors import Misconfigured
from tests.config.writing import from_text

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
deadline = "2m"

[[inference.routes]]
server = "s"
feature = "memory.*"
conversation = "c1"
at_least_tokens = 5
model = "wise"

[[budgets]]
party = "server:*"
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
    assert (found.inference_default, found.inference_fallbacks) == ("fast", ("wise",))
    assert found.inference_sampling == "deny"
    assert found.inference_routes == (Route("wise", "s", "memory.*", "c1", 5),)
    assert found.budgets == (
        Budget("server:*", "memory.*", 1_000, 250_000, "refuse", shared=True),
        Budget(tokens=0),
    )


@pytest.mark.parametrize(
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
            "stands here twice",
        ),
        ('[[models]]\nid = "a"\napi = "openai"\ncontext_window = 0', "must be between 1"),
        ('[[inference.routes]]\nfeature = "x.*"', "needs its model"),
        ('[[inference.routes]]\nmodel = "a"\nfeature = "x*y"', "feature: must be written as"),
        ('[inference]\nsampling = "always"', "must be one of: ask, deny, allow"),
        ('[[budgets]]\nparty = "agent:*"', "needs tokens_per_day or money_per_day"),
        ('[inference]\ndefault = "b"', "default: there is no model 'b'"),
        ('[inference]\nfallbacks = ["b"]', "fallbacks: there is no model 'b'"),
        ('[[inference.routes]]\nmodel = "b"', "routes: there is no model 'b'"),
        ("[[budgets]]\ntokens_per_day = -1", "must be between 0"),
        ("[[budgets]]\ntokens_per_day = 1\n[[budgets]]\ntokens_per_day = 2", "stand here twice"),
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
        load(path, {})
    assert "sk-secret" not in str(told.value)
