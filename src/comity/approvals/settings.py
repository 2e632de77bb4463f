"""The tables `[asks]` and `[suggestions]`: approval requests, and grants that follow from them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from comity.config.fields import COUNT, number_type, setting

type Elicitations = Literal["client", "inbox"]


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    expires: timedelta = setting(
        timedelta(minutes=15), "How long people can answer an approval request."
    )
    lasts: timedelta = setting(timedelta(minutes=15), "How long an approval can be used.")
    hold: timedelta = setting(
        timedelta(seconds=45),
        "How long a call waits for a decision before the client gets an interim answer.",
    )
    declined_for: timedelta = setting(
        timedelta(minutes=5), "How long Comity denies the same call again without asking."
    )
    most_open: int = setting(10_000, "The number of approval requests open at once.", COUNT)
    most_of_one: int = setting(100, "The number of them that one principal may open.", COUNT)
    elicitations: Elicitations = setting(
        "client",
        "Who answers a server whose client cannot be asked: nobody (`client`) or people (`inbox`).",
    )
    # The URL may hold a secret.
    webhook: str = setting("", "The URL to which Comity posts new requests.", is_secret=True)
    webhook_secret_file: str = setting("", "The file of the secret that signs these posts.")


@dataclass(frozen=True, slots=True)
class SuggestionSettings:
    decisions: int = setting(
        10, "The number of equal approvals that suggest a grant.", number_type(2, 10_000)
    )
    people: int = setting(
        2, "The number of people that they must be from, unless `span` holds.", number_type(1, 100)
    )
    span: timedelta = setting(
        timedelta(days=3), "The time that they must cover, unless `people` holds."
    )
    window: timedelta = setting(timedelta(days=30), "How far back Comity looks for approvals.")
