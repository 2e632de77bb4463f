"""The wire forms of SCIM 2.0: resources, filters, changes and errors. (RFC 7643, RFC 7644)

Identity providers deviate from the specification. Entra writes operations with capitals, `active`
as a text, and names with dots where it gives no path. Okta writes objects without a path.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from comity.errors import (
    ALREADY_EXISTS,
    INVALID_FILTER,
    INVALID_PARAMS,
    PARSE_ERROR,
    Fault,
    MalformedMessage,
)
from comity.identity.scim.model import (
    MAX_ATTRIBUTE_LENGTH,
    MAX_EMAILS,
    MAX_EXTERNAL_ID_LENGTH,
    MAX_GROUP_MEMBERS,
    MAX_OPERATIONS,
    MAX_USER_NAME_LENGTH,
    GroupChange,
    ScimFilter,
    ScimGroup,
    ScimUser,
)
from comity.toolkit.text import format_timestamp, has_hidden

type Document = dict[str, Any]

SCIM_PATH: Final = "/scim/v2/"
USERS: Final = "Users"
GROUPS: Final = "Groups"
USER_SCHEMA: Final = "urn:ietf:params:scim:schemas:core:2.0:User"
GROUP_SCHEMA: Final = "urn:ietf:params:scim:schemas:core:2.0:Group"
_SCHEMAS: Final = "urn:ietf:params:scim:schemas:core:2.0:"
_API: Final = "urn:ietf:params:scim:api:messages:2.0:"
LIST_SCHEMA: Final = f"{_API}ListResponse"
ERROR_SCHEMA: Final = f"{_API}Error"
PATCH_SCHEMA: Final = f"{_API}PatchOp"

MAX_PAGE: Final = 200
DEFAULT_PAGE: Final = 100

_TYPE_BY_FAULT: Final[Mapping[Fault, str]] = {
    ALREADY_EXISTS: "uniqueness",
    INVALID_FILTER: "invalidFilter",
    INVALID_PARAMS: "invalidValue",
    PARSE_ERROR: "invalidSyntax",
}
_USER_NAME: Final = re.compile(
    rf"[^\s*\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{1,{MAX_USER_NAME_LENGTH}}}"
)
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*")
_FILTER: Final = re.compile(
    r'\s*([A-Za-z.:0-9]{1,200})\s+eq\s+"((?:[^"\\]|\\["\\/])*)"\s*', re.IGNORECASE
)
_PATH: Final = re.compile(
    r'([A-Za-z]{1,40})(?:\[\s*([A-Za-z]{1,40})\s+eq\s+"((?:[^"\\]|\\["\\/])*)"\s*\])?'
    r"(?:\.([A-Za-z]{1,40}))?",
    re.IGNORECASE,
)
_NAME_PARTS: Final = ("formatted", "givenName", "familyName")
_EMAIL_PARTS: Final = ("value", "type", "primary")
_USER_MEMBERS: Final = {
    each.lower(): each
    for each in ("userName", "externalId", "active", "displayName", "name", "emails")
}
_GROUP_MEMBERS: Final = {each.lower(): each for each in ("displayName", "externalId", "members")}


# Requests.


def read_filter(text: str) -> ScimFilter:
    """Read a filter. Raises MalformedMessage for all but one comparison with `eq`."""
    found = _FILTER.fullmatch(text) if len(text) <= 1000 else None
    if found is None:
        raise MalformedMessage('only filters as userName eq "ana" are supported', INVALID_FILTER)
    return ScimFilter(_without_urn(found[1]).lower(), _unescaped(found[2]))


def read_user(body: Document, *, was_active: bool = True) -> Document:
    """Return the attributes of a user that Comity keeps, checked. Raises MalformedMessage.

    A message that does not name `active` leaves it as it was.
    """
    found = _known_members(body, _USER_MEMBERS)
    user_name = found.get("userName")
    if (
        not isinstance(user_name, str)
        or not _USER_NAME.fullmatch(user_name)
        or has_hidden(user_name)
    ):
        raise _invalid(
            f"userName must have 1 to {MAX_USER_NAME_LENGTH} characters, without blanks, stars "
            "and invisible characters"
        )
    active = found.get("active")
    is_active = was_active if active is None else _truth(active, "active")
    kept: Document = {"userName": user_name, "active": is_active}
    kept["externalId"] = _text_of(found.get("externalId"), "externalId", MAX_EXTERNAL_ID_LENGTH)
    if display_name := _text_of(found.get("displayName"), "displayName"):
        kept["displayName"] = display_name
    name = found.get("name")
    if isinstance(name, dict):
        kept["name"] = _parts(cast("Document", name), _NAME_PARTS, "name")
    if emails := _emails(found.get("emails")):
        kept["emails"] = emails
    return kept


def read_group(body: Document) -> GroupChange:
    """Return a whole group. Raises MalformedMessage."""
    found = _known_members(body, _GROUP_MEMBERS)
    if not isinstance(found.get("displayName"), str):
        raise _invalid("displayName is missing")
    external_id = _text_of(found.get("externalId"), "externalId", MAX_EXTERNAL_ID_LENGTH)
    members = _member_ids(found.get("members") or [])
    return GroupChange(found["displayName"], external_id, members)


def patch_user(document: Document, body: Document) -> Document:
    """Return the attributes of a user after the operations of a PATCH, unchecked."""
    changed: Document = {
        **document,
        "name": dict(document.get("name", {})),
        "emails": [dict(each) for each in document.get("emails", [])],
    }
    for kind, path, value in read_operations(body):
        if path is not None:
            _apply_to_user(changed, kind, path, value)
            continue
        for name, each in _object(value, "value").items():
            _apply_to_user(changed, kind, name, each)
    return changed


def patch_group(body: Document) -> GroupChange:
    """Return what the operations of a PATCH change in a group. Raises MalformedMessage."""
    change = GroupChange()
    for kind, path, value in read_operations(body):
        if path is not None:
            _apply_to_group(change, kind, path, value)
            continue
        for name, each in _object(value, "value").items():
            _apply_to_group(change, kind, name, each)
    return change


def read_operations(body: Document) -> list[tuple[str, str | None, object]]:
    """Return the operations of a PATCH: kind, path and value. Raises MalformedMessage."""
    listed = next((body[name] for name in body if name.lower() == "operations"), None)
    if not isinstance(listed, list) or len(cast("list[object]", listed)) > MAX_OPERATIONS:
        raise _invalid(f"Operations must be a list of at most {MAX_OPERATIONS} operations")
    found: list[tuple[str, str | None, object]] = []
    for each in cast("list[object]", listed):
        operation = _object(each, "an operation")
        kind, path = operation.get("op"), operation.get("path")
        kind = kind.lower() if isinstance(kind, str) else ""
        if kind not in ("add", "replace", "remove"):
            raise _invalid("op must be add, replace or remove")
        if path is not None and not isinstance(path, str):
            raise _invalid("path must be a text")
        if not path and kind == "remove":
            raise _invalid("remove needs a path")
        found.append((kind, path or None, operation.get("value")))
    return found


def _apply_to_user(document: Document, kind: str, path: str, value: object) -> None:
    attribute, part, wanted, sub = _read_path(path)
    name = _USER_MEMBERS.get(attribute)
    if name is None:
        # An attribute that Comity does not keep, for instance a department.
        return
    if name == "emails":
        _apply_to_emails(document, kind, (part, wanted, sub), value)
    elif name == "name":
        _apply_to_name(document, kind, sub, value)
    else:
        _set_member(document, name, kind, value)


def _apply_to_name(document: Document, kind: str, sub: str, value: object) -> None:
    if sub:
        _set_member(document["name"], _canonical(sub, _NAME_PARTS), kind, value)
    elif kind == "remove":
        document["name"] = {}
    else:
        kept: Document = document["name"] if kind == "add" else {}
        document["name"] = {**kept, **_object(value, "name")}


def _set_member(document: Document, name: str, kind: str, value: object) -> None:
    if kind == "remove":
        document.pop(name, None)
    elif name:
        document[name] = value


def _apply_to_emails(
    document: Document, kind: str, place: tuple[str, str, str], value: object
) -> None:
    part, wanted, sub = place
    emails = cast("list[Document]", document["emails"])
    if not part:
        given = [] if value is None else _emails(_listed(value))
        kept = emails if kind == "add" else []
        document["emails"] = [] if kind == "remove" else [*kept, *given]
        return
    part, sub = _canonical(part, _EMAIL_PARTS), _canonical(sub, _EMAIL_PARTS) if sub else "value"
    fitting = [each for each in emails if str(each.get(part, "")).lower() == wanted.lower()]
    if kind == "remove":
        document["emails"] = [each for each in emails if each not in fitting]
    elif fitting:
        for each in fitting:
            each[sub] = value
    else:
        emails.append({part: wanted, sub: value})


def _apply_to_group(change: GroupChange, kind: str, path: str, value: object) -> None:
    attribute, part, wanted, _ = _read_path(path)
    name = _GROUP_MEMBERS.get(attribute)
    if name == "displayName":
        if kind == "remove" or not isinstance(value, str):
            raise _invalid("displayName must be a text")
        change.name = value
    elif name == "externalId":
        text = None if kind == "remove" else value
        change.external_id = _text_of(text, "externalId", MAX_EXTERNAL_ID_LENGTH)
    elif name == "members":
        _apply_to_members(change, kind, part, wanted, value)


def _apply_to_members(
    change: GroupChange, kind: str, part: str, wanted: str, value: object
) -> None:
    if part:
        if part.lower() != "value" or kind != "remove":
            raise _invalid('a path into members must be as members[value eq "id"], and remove it')
        ids = _member_ids([{"value": wanted}])
    else:
        ids = () if value is None else _member_ids(value)
    if kind == "replace" or (kind == "remove" and not part and not ids):
        change.members = ids if kind == "replace" else ()
        change.added.clear()
        change.removed.clear()
        return
    into, out_of = change.added, change.removed
    if kind == "remove":
        into, out_of = out_of, into
    for each in ids:
        into[each] = None
        out_of.pop(each, None)


def _read_path(path: str) -> tuple[str, str, str, str]:
    """Return the attribute, the filter of its values (part and value), and the part of it."""
    found = _PATH.fullmatch(_without_urn(path).strip()) if len(path) <= 1000 else None
    if found is None:
        # The path of an attribute of an extension, which Comity does not keep.
        if path.lower().startswith("urn:"):
            return "", "", "", ""
        raise _invalid("the path of an operation cannot be read")
    return found[1].lower(), found[2] or "", _unescaped(found[3] or ""), found[4] or ""


def _known_members(body: Document, known: Mapping[str, str]) -> Document:
    """Return the members that are known, under their names. The case of a name does not matter."""
    return {known[name.lower()]: value for name, value in body.items() if name.lower() in known}


def _without_urn(path: str) -> str:
    for schema in (USER_SCHEMA, GROUP_SCHEMA):
        if path.lower().startswith(f"{schema.lower()}:"):
            return path[len(schema) + 1 :]
    return path


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _canonical(name: str, names: Sequence[str]) -> str:
    return next((each for each in names if each.lower() == name.lower()), "")


def _truth(value: object, name: str) -> bool:
    """Read a boolean. Entra writes `"False"`."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise _invalid(f"{name} must be true or false")


def _text_of(value: object, name: str, maximum: int = MAX_ATTRIBUTE_LENGTH) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > maximum or not _TEXT.fullmatch(value):
        raise _invalid(f"{name} must be a text of at most {maximum} characters")
    return value


def _parts(value: Document, names: Sequence[str], of: str) -> dict[str, str]:
    found = {name: _text_of(value.get(name), f"{of}.{name}") for name in names}
    return {name: text for name, text in found.items() if text}


def _emails(value: object) -> list[Document]:
    if value is None:
        return []
    if not isinstance(value, list) or len(cast("list[object]", value)) > MAX_EMAILS:
        raise _invalid(f"emails must be a list of at most {MAX_EMAILS}")
    found: list[Document] = []
    for each in cast("list[object]", value):
        email = _object(each, "an email")
        kept: Document = dict(_parts(email, ("value", "type"), "emails"))
        if email.get("primary") is not None:
            kept["primary"] = _truth(email["primary"], "emails.primary")
        found.append(kept)
    return found


def _member_ids(value: object) -> tuple[str, ...]:
    """Return the ids of members. Raises MalformedMessage."""
    several = _listed(value)
    if len(several) > MAX_GROUP_MEMBERS:
        raise _invalid(f"a group has at most {MAX_GROUP_MEMBERS} members")
    found: dict[str, None] = {}
    for each in several:
        id = _object(each, "a member").get("value")
        if not isinstance(id, str) or not _ID.fullmatch(id):
            raise _invalid("a member must be the id of a user")
        found[id] = None
    return tuple(found)


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _object(value: object, what: str) -> Document:
    if not isinstance(value, dict):
        raise _invalid(f"{what} must be an object")
    return cast("Document", value)


def _invalid(reason: str) -> MalformedMessage:
    return MalformedMessage(reason, INVALID_PARAMS)


# Answers.


def user_document(user: ScimUser, groups: Iterable[ScimGroup], origin: str) -> Document:
    """Return a user as SCIM writes it."""
    listed = [
        {"value": group.id, "display": group.name, "$ref": _location(origin, GROUPS, group.id)}
        for group in groups
    ]
    return {
        "schemas": [USER_SCHEMA],
        "id": user.id,
        **({"externalId": user.external_id} if user.external_id else {}),
        "userName": user.user_name,
        "active": user.active,
        **user.attributes,
        "groups": listed,
        "meta": _meta("User", _location(origin, USERS, user.id), user.created_at, user.changed_at),
    }


def group_document(group: ScimGroup, members: Iterable[ScimUser], origin: str) -> Document:
    """Return a group as SCIM writes it."""
    listed = [
        {"value": user.id, "display": user.user_name, "$ref": _location(origin, USERS, user.id)}
        for user in members
    ]
    where = _location(origin, GROUPS, group.id)
    return {
        "schemas": [GROUP_SCHEMA],
        "id": group.id,
        **({"externalId": group.external_id} if group.external_id else {}),
        "displayName": group.name,
        "members": listed,
        "meta": _meta("Group", where, group.created_at, group.changed_at),
    }


def list_document(resources: Sequence[Document], total: int, start: int) -> Document:
    return {
        "schemas": [LIST_SCHEMA],
        "totalResults": total,
        "startIndex": start,
        "itemsPerPage": len(resources),
        "Resources": list(resources),
    }


def error_document(status: int, fault: Fault, reason: str) -> Document:
    """Return an error as SCIM writes it. (RFC 7644 §3.12)"""
    named = _TYPE_BY_FAULT.get(fault)
    return {
        "schemas": [ERROR_SCHEMA],
        "status": str(status),
        **({"scimType": named} if named is not None else {}),
        "detail": reason,
    }


def select_members(document: Document, wanted: str, excluded: str) -> Document:
    """Return a resource with the wanted attributes only, or without the excluded ones."""
    return {name: each for name, each in document.items() if is_selected(name, wanted, excluded)}


def is_selected(name: str, wanted: str, excluded: str) -> bool:
    """Return whether a request asks for an attribute of a resource. (RFC 7644 §3.9)"""
    if name in ("schemas", "id"):
        return True
    return name.lower() in _names(wanted) if wanted else name.lower() not in _names(excluded)


def _names(text: str) -> set[str]:
    return {_without_urn(each.strip()).partition(".")[0].lower() for each in text.split(",")}


def _meta(kind: str, location: str, created: datetime | None, changed: datetime | None) -> Document:
    return {
        "resourceType": kind,
        "location": location,
        **({} if created is None else {"created": format_timestamp(created)}),
        **({} if changed is None else {"lastModified": format_timestamp(changed)}),
    }


def _location(origin: str, kind: str, id: str) -> str:
    return f"{origin}{SCIM_PATH}{kind}/{id}"


def service_provider_config(origin: str) -> Document:
    """Return what Comity supports of SCIM. (RFC 7643 §5)"""
    yes, no = {"supported": True}, {"supported": False}
    return {
        "schemas": [f"{_SCHEMAS}ServiceProviderConfig"],
        "patch": yes,
        "bulk": {**no, "maxOperations": 0, "maxPayloadSize": 0},
        "filter": {**yes, "maxResults": MAX_PAGE},
        "changePassword": no,
        "sort": no,
        "etag": no,
        "authenticationSchemes": [
            {
                "type": "oauthbearertoken",
                "name": "API key",
                "description": "An API key of Comity as a bearer token",
                "primary": True,
            }
        ],
        "meta": _meta(
            "ServiceProviderConfig", f"{origin}{SCIM_PATH}ServiceProviderConfig", None, None
        ),
    }


def resource_types(origin: str) -> list[Document]:
    return [
        {
            "schemas": [f"{_SCHEMAS}ResourceType"],
            "id": kind,
            "name": kind,
            "endpoint": f"/{kind}s",
            "schema": schema,
            "meta": _meta("ResourceType", f"{origin}{SCIM_PATH}ResourceTypes/{kind}", None, None),
        }
        for kind, schema in (("User", USER_SCHEMA), ("Group", GROUP_SCHEMA))
    ]


def schemas(origin: str) -> list[Document]:
    described = {
        USER_SCHEMA: (
            "User",
            [
                _attribute("userName", is_required=True, uniqueness="server"),
                _attribute("displayName"),
                _attribute("active", "boolean"),
                _attribute("name", "complex", parts=[_attribute(each) for each in _NAME_PARTS]),
                _attribute(
                    "emails",
                    "complex",
                    is_list=True,
                    parts=[
                        _attribute("value"),
                        _attribute("type"),
                        _attribute("primary", "boolean"),
                    ],
                ),
                _attribute("groups", "complex", is_list=True, mutability="readOnly"),
            ],
        ),
        GROUP_SCHEMA: (
            "Group",
            [
                _attribute("displayName", is_required=True, uniqueness="server"),
                _attribute("members", "complex", is_list=True, parts=[_attribute("value")]),
            ],
        ),
    }
    return [
        {
            "schemas": [f"{_SCHEMAS}Schema"],
            "id": schema,
            "name": name,
            "attributes": attributes,
            "meta": _meta("Schema", f"{origin}{SCIM_PATH}Schemas/{schema}", None, None),
        }
        for schema, (name, attributes) in described.items()
    ]


def _attribute(
    name: str,
    kind: str = "string",
    *,
    is_list: bool = False,
    is_required: bool = False,
    uniqueness: str = "none",
    mutability: str = "readWrite",
    parts: Sequence[Document] = (),
) -> Document:
    return {
        "name": name,
        "type": kind,
        "multiValued": is_list,
        "required": is_required,
        "caseExact": False,
        "mutability": mutability,
        "returned": "default",
        "uniqueness": uniqueness,
        **({"subAttributes": list(parts)} if parts else {}),
    }
