"""Attack 9 of `docs/design/security.md` §1.5: places that a tool must not be sent to."""

import inspect

from comity.errors import VALIDATION_BLOCKED
from comity.validation.arguments import ToolDefinition
from comity.validation.network import NetworkValidator
from comity.validation.rules import UNRULED, ValidationRules, Verdict
from tests.security.corpus import document, is_few, section
from tests.support.cases import loop_over

ANSWERS: dict[str, list[str]] = document("network.toml")["answers"]
KINDS = {"url": "url", "host": "host", "text": "query"}
HOSTILE = {
    f"{kind}: {name}": {argument: text}
    for kind, argument in KINDS.items()
    for name, text in section("network.toml", f"hostile-{kind}").items()
}
HARMLESS = {
    f"{kind}: {name}": {argument: text}
    for kind, argument in KINDS.items()
    for name, text in section("network.toml", f"harmless-{kind}").items()
}


async def resolve(name: str) -> list[str]:
    if name in ANSWERS:
        return ANSWERS[name]
    return ANSWERS["example.org"] if name.endswith(".example.org") else []


async def examined(arguments: dict[str, object], rules: ValidationRules = UNRULED) -> Verdict:
    verdict = NetworkValidator(resolve)(ToolDefinition("web", "fetch"), arguments, rules)
    return await verdict if inspect.isawaitable(verdict) else verdict


@loop_over("name", HOSTILE)
async def test_attack_9_a_place_that_is_not_public_is_blocked(name: str) -> None:
    verdict = await examined(HOSTILE[name])
    assert verdict is not None
    assert verdict.fault is VALIDATION_BLOCKED


# Without a name that says what it is, such a text is no URL; and a long one leads nowhere bad.
SPELT_OUT = [
    each["url"]
    for name, each in HOSTILE.items()
    if "://" in each.get("url", "") and not set(each["url"]) & set(" \n\t\0") and "long" not in name
]


@loop_over("text", SPELT_OUT)
async def test_attack_9_it_is_blocked_however_deep_it_stands(text: str) -> None:
    assert await examined({"x": {"urls": [text]}}) is not None
    assert await examined({"headers": {text: "x"}}) is not None


async def test_attack_9_harmless_places_pass() -> None:
    alarms = [name for name, each in HARMLESS.items() if await examined(each) is not None]
    assert is_few(alarms, HARMLESS), alarms


async def test_a_host_that_the_operator_names_is_reached_wherever_it_is() -> None:
    rules = ValidationRules(hosts=frozenset({"db.internal", ".corp.example.org", "10.0.0.1"}))
    for text in ("http://db.internal/", "http://x.corp.example.org/", "http://10.0.0.1/"):
        assert await examined({"url": text}, rules) is None
    assert await examined({"url": "http://other.internal/"}, rules) is not None
