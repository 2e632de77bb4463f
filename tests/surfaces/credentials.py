"""Keys that a test gives out, and the register of a gateway that knows them."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from comity.kernel.identity import Register
from comity.kernel.minting import mint
from comity.wire.parties import Key, Party

PEPPER = b"a pepper for tests, and only that"


@dataclass
class GivenOut:
    """Every key of a test, by what a gateway looks it up."""

    keys: dict[str, Key] = field(default_factory=dict[str, Key])
    parties: dict[str, Party] = field(default_factory=dict[str, Party])

    @property
    def register(self) -> Register:
        return Register(self.keys, self.parties, PEPPER)

    def give(self, party: str, **wanted: Any) -> str:
        """A new key of this party; the party comes to be known by it."""
        whole, key = mint(PEPPER, Key("", party, b"", **wanted))
        self.keys[key.id] = key
        self.parties.setdefault(party, Party(party))
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
