"""What a host offers of MCPL, and what it lets each feature set of a server do. (MCPL §5, §6.7)

Rule 1: nothing is enabled before the host said so, and what it disables ends at once. (D-58)
Rule 2: unknown members are passed over; what cannot be read was not said.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from comity.rules.live_policy import covers
from comity.wire import features
from comity.wire.features import Bounds, Use

MOST_WORDS: Final = 1_000
"""Names, families and patterns that are kept of what a host says."""


@dataclass(frozen=True, slots=True)
class Offered:
    """What a host says that it does."""

    pushes: bool = False
    hooks: bool = False
    infers: bool = False
    streams: bool = False
    models: bool = False
    channels: bool = False

    def has(self, use: Use) -> bool:
        """Whether a server may turn to this host with it."""
        if use is Use.PUSH:
            return self.pushes
        if use is Use.INFERENCE:
            return self.infers
        if use in (Use.PUBLISH, Use.OBSERVE):
            return self.channels
        return True


def offered_in(capabilities: object) -> Offered | None:
    """What a client offers; None for one that does not speak of MCPL."""
    said = _said(_table(capabilities))
    version = said.get("version")
    if not isinstance(version, str) or version.partition(".")[0] != _MAJOR:
        return None
    inference: object = said.get("inferenceRequest")
    details = _table(inference)
    infers = inference is True or inference == details
    hooks = isinstance(said.get("contextHooks"), dict)
    return Offered(
        pushes=said.get("pushEvents") is True,
        hooks=hooks,
        infers=infers,
        streams=details.get("streaming") is True,
        # The document's own hosts say nothing of it, though they answer. (D-74)
        models=said.get("modelInfo") is True or infers or hooks,
        channels=isinstance(said.get("channels"), dict),
    )


@dataclass(slots=True)
class Decided:
    """What one host decided of the feature sets; the last word about a name counts."""

    words: dict[str, bool] = field(default_factory=dict[str, bool])
    scopes: dict[str, Bounds] = field(default_factory=dict[str, Bounds])
    is_told: bool = False

    def allows(self, name: str) -> bool:
        """Whether the set is enabled just now."""
        return next((on for word, on in reversed(self.words.items()) if covers(word, name)), False)

    def take(self, params: Mapping[str, Any]) -> None:
        """What a `featureSets/update` says counts from this moment. (§6.7)"""
        self.is_told = True
        for member, on in (("enabled", True), ("disabled", False)):
            for word in _texts(params.get(member)):
                # The newest stands last.
                self.words.pop(word, None)
                if len(self.words) < MOST_WORDS:
                    self.words[word] = on
        for name, said in list(_table(params.get("scopes")).items())[:MOST_WORDS]:
            bounds = _table(said)
            white, black = _texts(bounds.get("whitelist")), _texts(bounds.get("blacklist"))
            self.scopes[name] = Bounds(white, black)


_MAJOR: Final = features.VERSION.partition(".")[0]


def _said(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    for place, key in (("experimental", features.KEY), ("extensions", features.EXTENSION_KEY)):
        inside = _table(capabilities.get(place))
        if key in inside:
            return _table(inside[key])
    return {}


def _table(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _texts(value: object) -> tuple[str, ...]:
    found = cast("list[object]", value) if isinstance(value, list) else []
    return tuple(each for each in found[:MOST_WORDS] if isinstance(each, str))
