"""Who a message says has done something, against who sent it. (D-17, D-37, S5)

Rule 1: who acts follows from the credentials of a request; a message can only repeat it.
Rule 2: a member that names somebody else is refused, and not silently put right: whoever sent it
        believes something that is not so.
"""

from collections.abc import Mapping
from typing import Final

from comity.wire.errors import INVALID_PARAMS, MalformedMessage

DONE_BY: Final = frozenset(
    {
        "granted_by",
        "created_by",
        "approved_by",
        "accepted_by",
        "revoked_by",
        "registered_by",
        "answered_by",
        "disabled_by",
    }
)
"""Members by which a message would name who does what it asks for."""


def refuse_claims(said: Mapping[str, object], party: str) -> None:
    """Raise MalformedMessage where a message names another than its sender as who acts."""
    for name in sorted(DONE_BY & said.keys()):
        if said[name] not in (None, "", party):
            raise MalformedMessage(
                f"{name} is whoever asks for it, which is {party}; leave it out", INVALID_PARAMS
            )


def without_claims(said: Mapping[str, object]) -> dict[str, object]:
    """The same without them: what is written down is what the credentials say."""
    return {name: value for name, value in said.items() if name not in DONE_BY}
