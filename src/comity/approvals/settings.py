"""The tables `[approvals]` and `[suggestions]`: approval requests and suggested grants."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from comity.approvals.notifiers.model import NotifierSettings
from comity.approvals.notifiers.settings import NOTIFIERS
from comity.config.document import ConfigValue
from comity.config.fields import (
    COUNT,
    DURATION,
    FieldType,
    Members,
    all_of,
    members_of,
    number_type,
    pattern_type,
    setting,
    table_of,
)

type Elicitations = Literal["client", "people"]

MAX_CLIENT_WAITS: Final = 1000


@dataclass(frozen=True, slots=True)
class ClientWait:
    """One entry of `[[approvals.clients]]`."""

    name: str
    wait: timedelta


KNOWN_CLIENT_WAITS: Final[Mapping[str, timedelta]] = {
    # The official Python SDK, which frameworks do not rename. The OpenAI Agents SDK is built on it
    # and gives up after five seconds, so a longer hold would hide the request from its model.
    "mcp": timedelta(seconds=4),
}
"""How long calls of known clients are held at most, by the name in `clientInfo`."""

_CLIENT_WAIT: Final[Members] = {
    "name": (
        pattern_type(r"[^\x00-\x1f]{1,200}", "openai-agents"),
        "the name that the client gives itself in `clientInfo`",
    ),
    "wait": (DURATION, "how long its calls are held; less than its own time limit"),
}


def _read_client_wait(entry: ConfigValue) -> ClientWait:
    return ClientWait(**members_of(entry, _CLIENT_WAIT, ("name", "wait")))


CLIENT_WAITS: Final = FieldType(
    all_of(_read_client_wait, MAX_CLIENT_WAITS),
    {"type": "array", "items": table_of(_CLIENT_WAIT, required=["name", "wait"])},
)


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    request_ttl: timedelta = setting(
        timedelta(minutes=15), "How long people can answer an approval request."
    )
    approval_ttl: timedelta = setting(timedelta(minutes=15), "How long an approval can be used.")
    client_wait: timedelta = setting(
        timedelta(seconds=45),
        "How long Comity holds a call open for a decision, for clients without progress support.",
    )
    denial_cooldown: timedelta = setting(
        timedelta(minutes=5),
        "How long Comity denies the same call again after a denial, without a new request.",
    )
    max_open: int = setting(10_000, "Maximum open approval requests.", COUNT)
    max_open_per_principal: int = setting(
        100, "Maximum open approval requests of one principal.", COUNT
    )
    elicitations: Elicitations = setting(
        "client",
        "Where questions of servers go: to the `client`, or to `people` if it cannot answer.",
    )
    notifiers: tuple[NotifierSettings, ...] = setting(
        (), "The notifiers, which tell people about requests.", NOTIFIERS
    )
    clients: tuple[ClientWait, ...] = setting(
        (), "How long calls of these clients are held, instead of `client_wait`.", CLIENT_WAITS
    )

    def wait_for_client(self, name: str) -> timedelta:
        """Return how long a call of this client is held: less than the client's own time limit."""
        for client in self.clients:
            if client.name == name:
                return client.wait
        return min(self.client_wait, KNOWN_CLIENT_WAITS.get(name, self.client_wait))


@dataclass(frozen=True, slots=True)
class SuggestionSettings:
    min_approvals: int = setting(
        10, "The number of equal approvals that suggest a grant.", number_type(2, 10_000)
    )
    min_people: int = setting(
        2, "The number of different approvers, unless `min_span` is reached.", number_type(1, 100)
    )
    min_span: timedelta = setting(
        timedelta(days=3),
        "The time between the first and the last, unless `min_people` is reached.",
    )
    window: timedelta = setting(timedelta(days=30), "How far back Comity looks for approvals.")
