"""What the kernel needs from the world, each need as small as it can be said."""

from comity.ports.reaching import (
    Carrier,
    Describe,
    Ending,
    Headers,
    Reach,
    Receiver,
    SchemaJudge,
    Trace,
    Tracer,
)
from comity.ports.records import (
    PAGE,
    Change,
    ChangeFeed,
    GrantRecords,
    Kept,
    KeyRecords,
    News,
    PartyRecords,
    PinRecords,
    Records,
    RegistrationRecords,
)

__all__ = [
    "PAGE",
    "Carrier",
    "Change",
    "ChangeFeed",
    "Describe",
    "Ending",
    "GrantRecords",
    "Headers",
    "Kept",
    "KeyRecords",
    "News",
    "PartyRecords",
    "PinRecords",
    "Reach",
    "Receiver",
    "Records",
    "RegistrationRecords",
    "SchemaJudge",
    "Trace",
    "Tracer",
]
