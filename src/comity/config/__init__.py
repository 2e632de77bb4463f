"""What the operator wrote, read once into frozen settings."""

from comity.config.changes import Changes, difference
from comity.config.discovery import Found, Source, Taken, find
from comity.config.entries import derived_id
from comity.config.files import FILE_BYTES
from comity.config.reading import load
from comity.config.settings import ServerSettings, Settings, Supervision
from comity.config.tables import SERVER_SETTINGS, SETTINGS
from comity.config.watch import file_changes

__all__ = [
    "FILE_BYTES",
    "SERVER_SETTINGS",
    "SETTINGS",
    "Changes",
    "Found",
    "ServerSettings",
    "Settings",
    "Source",
    "Supervision",
    "Taken",
    "derived_id",
    "difference",
    "file_changes",
    "find",
    "load",
]
