"""Users and groups as an identity provider writes them by SCIM. (RFC 7643)"""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

SCIM_WRITE: Final = "scim/write"
"""The verb that an identity provider needs, on everything."""

SCIM_CREATOR: Final = "scim"
"""The creator in the record of a principal that SCIM manages."""

LOGIN_CREATOR: Final = "issuer "
"""How the creator of a principal begins that came from a sign-in."""

MAX_USER_NAME_LENGTH: Final = 200
MAX_EXTERNAL_ID_LENGTH: Final = 500
MAX_ATTRIBUTE_LENGTH: Final = 500
MAX_EMAILS: Final = 20
MAX_GROUP_MEMBERS: Final = 50_000
MAX_OPERATIONS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ScimUser:
    """A user of an identity provider, and the principal that it is here.

    `attributes` are the other attributes that Comity keeps, only to show them again.
    """

    id: str
    principal: str
    user_name: str
    external_id: str = ""
    active: bool = True
    attributes: Mapping[str, object] = field(default_factory=dict[str, object])
    created_at: datetime | None = None
    changed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ScimGroup:
    """A group of an identity provider. Its name is the name of the group in grants."""

    id: str
    name: str
    external_id: str = ""
    created_at: datetime | None = None
    changed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ScimFilter:
    """The only kind of filter that Comity supports: an attribute that equals a value."""

    attribute: str
    value: str


@dataclass(slots=True)
class GroupChange:
    """The changes of a group by one request. `members` replaces all members first."""

    name: str | None = None
    external_id: str | None = None
    members: tuple[str, ...] | None = None
    added: dict[str, None] = field(default_factory=dict[str, None])
    removed: dict[str, None] = field(default_factory=dict[str, None])


def comparison_key(name: str) -> str:
    """Return the form in which names are compared. SCIM does not distinguish case in them."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
