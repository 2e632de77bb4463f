"""Models as the settings name them: made, priced, and with their keys, which stay out of sight."""

import os
from urllib.parse import urlsplit

from comity.adapters.models.prices import price_of
from comity.adapters.models.registry import make_model
from comity.adapters.secret_files import read_secret
from comity.app.reaching import proxies_of
from comity.config import Settings
from comity.config.models import ModelSettings
from comity.kernel.live.inferring import Seat
from comity.kernel.live.routing import Plan
from comity.ports.models import ModelSpec
from comity.rules.budgets import Price
from comity.wire.errors import Misconfigured


def make_seats(settings: Settings) -> dict[str, Seat]:
    """All of them; raises Misconfigured where one cannot be made. Asks none of them anything."""
    check_names(settings)
    return {each.id: _seat(each, settings) for each in settings.models}


def plan_of(settings: Settings) -> Plan:
    """Who is asked for what; of one model alone there is no doubt."""
    ids = [each.id for each in settings.models]
    default = settings.inference_default or (ids[0] if len(ids) == 1 else "")
    return Plan(settings.inference_routes, default, settings.inference_fallbacks)


def check_names(settings: Settings) -> None:
    """That whoever is named is there. Raises Misconfigured."""
    ids = {each.id for each in settings.models}
    named = (
        [("inference.default", settings.inference_default)] if settings.inference_default else []
    )
    named += [("inference.fallbacks", each) for each in settings.inference_fallbacks]
    named += [("inference.routes", each.model) for each in settings.inference_routes]
    for where, name in named:
        if name not in ids:
            raise Misconfigured(f"{where}: there is no model {name!r} in [[models]]")


def spec_of(model: ModelSettings, settings: Settings) -> ModelSpec:
    return ModelSpec(
        model.id,
        model.api,
        model.model,
        model.url,
        _key(model),
        model.context_window,
        model.max_output,
        model.capabilities,
        model.vendor,
        settings.inference_deadline,
        model.options,
        _proxy(model, settings),
    )


def _proxy(model: ModelSettings, settings: Settings) -> str:
    """Where no address is said, the vendor's own SDK knows it: no host is exempt by its name."""
    parts = urlsplit(model.url or "https://vendor.invalid")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return proxies_of(settings).proxy_for(parts.scheme, parts.hostname or "", port)


def _seat(model: ModelSettings, settings: Settings) -> Seat:
    spec = spec_of(model, settings)
    price = price_of(spec, Price(model.price_input, model.price_output))
    return Seat(make_model(spec), price, model.max_output)


def _key(model: ModelSettings) -> str:
    if model.key_env:
        found = os.environ.get(model.key_env, "")
        if not found:
            because = f"the variable {model.key_env} is not set; set it to the key of this model"
            raise Misconfigured(f"model {model.id!r}: {because}")
        return found.strip()
    if not model.key_file:
        return ""
    key = read_secret(model.key_file, f"model {model.id!r}: key_file")
    if not key or not key.isascii():
        raise Misconfigured(f"model {model.id!r}: its key_file holds no key; put it there, alone")
    return key.decode("ascii")
