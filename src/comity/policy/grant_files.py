"""Grants in a file that a team keeps in version control.

A file holds only grants of the database. Grants of the configuration stay in the configuration.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from comity.errors import Misconfigured

type GrantEntry = dict[str, Any]

STORED: Final = "records"
DEFAULT_VERB: Final = "tools/call"
_FIELDS: Final = ("principal", "effect", "verb", "target", "expires", "reason", "where", "reach")
_REQUIRED: Final = ("principal", "target")
_DEFAULTS: Final = {"effect": "allow", "verb": DEFAULT_VERB}


@dataclass(frozen=True, slots=True)
class GrantChanges:
    """The changes that turn the stored grants into those of a file."""

    created: tuple[GrantEntry, ...]
    changed: tuple[GrantEntry, ...]
    deleted: tuple[GrantEntry, ...]

    def __bool__(self) -> bool:
        return bool(self.created or self.changed or self.deleted)


def entries_of(grants: Iterable[Mapping[str, Any]]) -> list[GrantEntry]:
    """Return the stored grants of an API answer as entries of a file, in a stable order."""
    found = [
        _without_defaults(
            {
                "principal": grant["subject"],
                "effect": grant["effect"],
                "verb": grant["verb"],
                "target": grant["target"],
                "expires": grant["expires_at"],
                "reason": grant["justification"],
                "where": grant["where"],
                "reach": grant["reach"],
            }
        )
        for grant in grants
        if grant["source"] == STORED
    ]
    return sorted(found, key=_key)


def read_grants(text: str, name: str) -> list[GrantEntry]:
    """Return the entries of a TOML or JSON file. Raises Misconfigured."""
    try:
        document: object = json.loads(text) if _is_json(text) else tomllib.loads(text)
    except ValueError as problem:
        raise Misconfigured(f"{name}: {problem}") from None
    members = cast("dict[str, object]", document) if isinstance(document, dict) else {}
    entries = members.get("grants", [])
    unknown = [key for key in members if key != "grants"]
    if not isinstance(document, dict) or not isinstance(entries, list) or unknown:
        raise Misconfigured(f"{name}: write the grants as [[grants]], and nothing else")
    found = [_checked(name, each) for each in cast("list[object]", entries)]
    keys = [_key(each) for each in found]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            principal, verb, target, _ = key
            raise Misconfigured(f"{name}: {principal} {verb} {target} is in the file twice")
    return sorted(found, key=_key)


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _checked(name: str, entry: object) -> GrantEntry:
    fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    missing = [field for field in _REQUIRED if not isinstance(fields.get(field), str)]
    unknown = [field for field in fields if field not in _FIELDS]
    if missing or unknown:
        about = f"needs {missing[0]!r}" if missing else f"has the unknown key {unknown[0]!r:.80}"
        raise Misconfigured(f"{name}: a grant {about}; the keys are {', '.join(_FIELDS)}")
    expires = fields.get("expires")
    if isinstance(expires, datetime):
        fields = {**fields, "expires": expires.astimezone().isoformat()}
    return _without_defaults(fields)


def _without_defaults(fields: Mapping[str, Any]) -> GrantEntry:
    return {
        name: fields[name]
        for name in _FIELDS
        if fields.get(name) not in (None, "", [], _DEFAULTS.get(name))
    }


def _key(entry: GrantEntry) -> tuple[str, str, str, str]:
    condition = json.dumps(entry.get("where"), sort_keys=True)
    return entry["principal"], entry.get("verb", DEFAULT_VERB), entry["target"], condition


def compare_grants(
    stored: Iterable[GrantEntry], wanted: Iterable[GrantEntry], *, prune: bool
) -> GrantChanges:
    """Return the changes. Only with `prune` a stored grant that the file lacks is deleted."""
    before = {_key(each): each for each in stored}
    after = {_key(each): each for each in wanted}
    return GrantChanges(
        created=tuple(each for key, each in after.items() if key not in before),
        changed=tuple(
            each
            for key, each in after.items()
            if key in before and _comparable(each) != _comparable(before[key])
        ),
        deleted=tuple(each for key, each in before.items() if prune and key not in after),
    )


def _comparable(entry: GrantEntry) -> GrantEntry:
    expires = entry.get("expires")
    return entry if expires is None else {**entry, "expires": datetime.fromisoformat(expires)}


def body_of(entry: GrantEntry) -> dict[str, Any]:
    """Return the body of the request that stores an entry."""
    return {
        "subject": entry["principal"],
        "target": entry["target"],
        "verb": entry.get("verb", DEFAULT_VERB),
        "effect": entry.get("effect", "allow"),
        "expires_at": entry.get("expires"),
        "justification": entry.get("reason"),
        "where": entry.get("where"),
        "reach": entry.get("reach"),
    }
