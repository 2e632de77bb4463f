"""The tables `[approvals]` and `[suggestions]`: approval requests and suggested grants."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from comity.approvals.notifiers.model import NotifierSettings
from comity.approvals.notifiers.settings import NOTIFIERS
from comity.config.fields import COUNT, number_type, setting

type Elicitations = Literal["client", "people"]


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
