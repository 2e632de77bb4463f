"""Keys that a test gives out, and the register of a gateway that knows them."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from comity.identity.authentication import IdentityDirectory
from comity.identity.keys import mint_key
from comity.identity.principals import ApiKey, Principal

PEPPER = b"a pepper for tests, and only that"


@dataclass
class GivenOut:
    """Every key of a test, by what a gateway looks it up."""

    keys: dict[str, ApiKey] = field(default_factory=dict[str, ApiKey])
    parties: dict[str, Principal] = field(default_factory=dict[str, Principal])

    @property
    def register(self) -> IdentityDirectory:
        return IdentityDirectory(self.keys, self.parties, PEPPER)

    def give(self, party: str, **wanted: Any) -> str:
        """A new key of this party; the party comes to be known by it."""
        whole, key = mint_key(PEPPER, ApiKey("", party, b"", **wanted))
        self.keys[key.id] = key
        self.parties.setdefault(party, Principal(party))
        return whole

    def change(self, whole: str, **changed: Any) -> None:
        key_id = whole.split("_")[2]
        self.keys[key_id] = replace(self.keys[key_id], **changed)

    def revoke(self, whole: str) -> None:
        self.change(whole, revoked_at=datetime.now(UTC))

    def disable(self, party: str) -> None:
        self.parties[party] = replace(self.parties[party], disabled=True)


def bearer(credential: str) -> dict[str, str]:
    return {"authorization": f"Bearer {credential}"}
