"""Changes of users and groups by SCIM, and their effect on principals.

Rule 1: the principal of a user is disabled in the transaction that deactivates or deletes the user.
A deleted user leaves a disabled principal behind, because a token of an issuer needs no principal.

Rule 2: SCIM touches only principals with its prefix that it created, or that came from a sign-in.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from comity.audit.events import AuditType
from comity.audit.log import AuditLog
from comity.errors import (
    ALREADY_EXISTS,
    INVALID_FILTER,
    INVALID_PARAMS,
    NOTHING_HERE,
    MalformedMessage,
)
from comity.identity.principals import Principal, checked_group
from comity.identity.scim.messages import Document, patch_user, read_user
from comity.identity.scim.model import (
    LOGIN_CREATOR,
    MAX_GROUP_MEMBERS,
    SCIM_CREATOR,
    GroupChange,
    ScimFilter,
    ScimGroup,
    ScimUser,
)
from comity.identity.scim.store import ScimTransaction, SqlScimStore
from comity.mcp.actors import GATEWAY, LOCAL, PrincipalKind

log = logging.getLogger(__name__)

type Refresh = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ResourcePage:
    """Which users or groups to list: the first index, how many, and those that a filter selects."""

    start: int
    count: int
    filter: ScimFilter | None = None


class ScimService:
    """Creates, changes and deletes users and groups in the name of an identity provider."""

    def __init__(
        self,
        store: SqlScimStore,
        principal_prefix: str,
        refresh: Refresh,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        audit_log: AuditLog | None = None,
    ) -> None:
        self._store = store
        self._prefix = principal_prefix
        self._refresh = refresh
        self._clock = clock
        self._audit_log = audit_log

    # Users.

    async def list_users(self, page: ResourcePage) -> tuple[Sequence[ScimUser], int]:
        """Return a page of users, and the number of all. Raises MalformedMessage."""
        _check_filter(page.filter, ("id", "externalid", "username"))
        return await self._store.users(page.filter, page.start, page.count)

    async def get_user(self, id: str) -> ScimUser:
        found, _ = await self._store.users(ScimFilter("id", id), 1, 1)
        if not found:
            raise _no_resource("user")
        return found[0]

    async def groups_of(self, user: ScimUser) -> Sequence[ScimGroup]:
        return await self._store.groups_of(user.id)

    async def create_user(self, by: str, body: Document) -> ScimUser:
        """Create a user and its principal. Raises MalformedMessage."""
        now = self._clock()
        wanted = _user_of(read_user(body), ScimUser(secrets.token_hex(16), "", "", created_at=now))
        async with self._store.writing() as transaction:
            user = await self._name_user(transaction, replace(wanted, changed_at=now))
            principal = await self._principal_for(transaction, user)
            await transaction.put_user(user)
            await transaction.put_principals([principal])
        await self._finish(by, principal, "provisioned")
        return user

    async def replace_user(self, by: str, id: str, body: Document) -> ScimUser:
        """Replace the attributes of a user. Raises MalformedMessage."""
        return await self._change_user(by, id, lambda _: body)

    async def patch_user(self, by: str, id: str, body: Document) -> ScimUser:
        """Change some attributes of a user. Raises MalformedMessage."""
        return await self._change_user(by, id, lambda user: patch_user(_document_of(user), body))

    async def delete_user(self, by: str, id: str) -> None:
        """Delete a user, and disable its principal. Raises MalformedMessage."""
        async with self._store.writing() as transaction:
            user = await transaction.user(id)
            if user is None:
                raise _no_resource("user")
            ended = await self._end_principal(transaction, user)
            await transaction.remove_user(id)
        await self._finish(by, ended, "deprovisioned")

    async def _change_user(
        self, by: str, id: str, change: Callable[[ScimUser], Document]
    ) -> ScimUser:
        async with self._store.writing() as transaction:
            old = await transaction.user(id)
            if old is None:
                raise _no_resource("user")
            document = read_user(change(old), was_active=old.active)
            user = _user_of(document, replace(old, changed_at=self._clock()))
            ended: Principal | None = None
            if user.user_name != old.user_name:
                user = await self._name_user(transaction, user)
            if user.principal != old.principal:
                ended = await self._end_principal(transaction, old)
                principal = await self._principal_for(transaction, user)
                groups = [group.name for group in await transaction.groups_of(id)]
                principal = replace(principal, groups=(*principal.groups, *groups))
            else:
                principal = await self._updated_principal(transaction, old, user)
            await transaction.put_user(user)
            await transaction.put_principals([principal])
        if ended is not None:
            self._record(by, ended, "renamed by provisioning")
        await self._finish(by, principal, "changed by provisioning")
        return user

    async def _name_user(self, transaction: ScimTransaction, user: ScimUser) -> ScimUser:
        """Return a user with the principal of its name. Raises MalformedMessage if it is taken."""
        same = await transaction.user_named(user.user_name)
        if same is not None and same.id != user.id:
            raise MalformedMessage("a user with this userName exists", ALREADY_EXISTS)
        if self._prefix + user.user_name in (LOCAL.party, GATEWAY):
            raise MalformedMessage("this userName is reserved", INVALID_PARAMS)
        if same is not None:
            # Only the case of the name has changed. Its principal keeps its id.
            return replace(user, principal=same.principal)
        return replace(user, principal=self._prefix + user.user_name)

    async def _principal_for(self, transaction: ScimTransaction, user: ScimUser) -> Principal:
        """Return the new principal of a user, or one that SCIM may take over."""
        found = (await transaction.principals([user.principal])).get(user.principal)
        holder = await transaction.user_of(user.principal)
        is_free = found is None or found.created_by == SCIM_CREATOR or _is_from_login(found)
        if not is_free or (holder is not None and holder.id != user.id):
            raise MalformedMessage(
                f"the principal {user.principal!r:.80} exists, and provisioning does not manage it",
                ALREADY_EXISTS,
            )
        if found is None:
            found = Principal(user.principal, PrincipalKind.PERSON, created_at=self._clock())
        # An operator may have disabled somebody who came by signing in.
        stays_disabled = found.disabled and _is_from_login(found)
        return replace(
            found,
            label=_label_of(user) or found.label,
            disabled=not user.active or stays_disabled,
            created_by=SCIM_CREATOR,
        )

    async def _updated_principal(
        self, transaction: ScimTransaction, old: ScimUser, user: ScimUser
    ) -> Principal:
        """Return the principal after a change of its user.

        Only a change of `active` enables or disables it. If an operator disabled the principal, a
        provider that writes the same again does not enable it.
        """
        found = (await transaction.principals([old.principal])).get(old.principal)
        if found is None:
            return await self._principal_for(transaction, user)
        disabled = found.disabled if user.active == old.active else not user.active
        # A user that is not active never has an enabled principal.
        return replace(
            found, label=_label_of(user) or found.label, disabled=disabled or not user.active
        )

    async def _end_principal(self, transaction: ScimTransaction, user: ScimUser) -> Principal:
        """Disable the principal of a user that is deleted or renamed, and empty its groups."""
        found = (await transaction.principals([user.principal])).get(user.principal)
        if found is None:
            found = Principal(
                user.principal,
                PrincipalKind.PERSON,
                created_by=SCIM_CREATOR,
                created_at=self._clock(),
            )
        ended = replace(found, disabled=True, groups=())
        await transaction.put_principals([ended])
        return ended

    # Groups.

    async def list_groups(self, page: ResourcePage) -> tuple[Sequence[ScimGroup], int]:
        """Return a page of groups, and the number of all. Raises MalformedMessage."""
        _check_filter(page.filter, ("id", "externalid", "displayname"))
        return await self._store.groups(page.filter, page.start, page.count)

    async def get_group(self, id: str) -> ScimGroup:
        found, _ = await self._store.groups(ScimFilter("id", id), 1, 1)
        if not found:
            raise _no_resource("group")
        return found[0]

    async def members_of(self, group: ScimGroup) -> Sequence[ScimUser]:
        return await self._store.members_of(group.id)

    async def create_group(self, by: str, change: GroupChange) -> ScimGroup:
        """Create a group with its members. Raises MalformedMessage."""
        group = ScimGroup(secrets.token_hex(16), "", created_at=self._clock())
        async with self._store.writing() as transaction:
            group, count = await self._apply_group_change(transaction, group, change)
        await self._finish_group(by, group, "created", count)
        return group

    async def change_group(self, by: str, id: str, change: GroupChange) -> ScimGroup:
        """Change the name or the members of a group. Raises MalformedMessage."""
        async with self._store.writing() as transaction:
            found = await transaction.group(id)
            if found is None:
                raise _no_resource("group")
            group, count = await self._apply_group_change(transaction, found, change)
        await self._finish_group(by, group, "changed", count)
        return group

    async def delete_group(self, by: str, id: str) -> None:
        """Delete a group. Its members lose it. Raises MalformedMessage."""
        async with self._store.writing() as transaction:
            group = await transaction.group(id)
            if group is None:
                raise _no_resource("group")
            members = await transaction.member_ids(id)
            await self._change_principals(transaction, members, remove=group.name)
            await transaction.remove_group(id)
        await self._finish_group(by, group, "deleted", len(members))

    async def _apply_group_change(
        self, transaction: ScimTransaction, old: ScimGroup, change: GroupChange
    ) -> tuple[ScimGroup, int]:
        """Write a group. Returns it, and how many principals have other groups."""
        name = old.name if change.name is None else checked_group(change.name)
        same = await transaction.group_named(name)
        if same is not None and same.id != old.id:
            raise MalformedMessage("a group with this displayName exists", ALREADY_EXISTS)
        external_id = old.external_id if change.external_id is None else change.external_id
        group = replace(old, name=name, external_id=external_id, changed_at=self._clock())
        before = await transaction.member_ids(old.id)
        wanted = before if change.members is None else set(change.members)
        after = (wanted | change.added.keys()) - change.removed.keys()
        if len(after) > MAX_GROUP_MEMBERS:
            raise MalformedMessage(
                f"a group has at most {MAX_GROUP_MEMBERS} members", INVALID_PARAMS
            )
        added, removed = after - before, before - after
        if len(await transaction.users(added)) < len(added):
            raise MalformedMessage("a member must be the id of a user", INVALID_PARAMS)
        await transaction.put_group(group)
        await transaction.change_members(group.id, sorted(added), sorted(removed))
        await self._change_principals(transaction, removed, remove=old.name)
        if name != old.name:
            await self._change_principals(transaction, before & after, add=name, remove=old.name)
        await self._change_principals(transaction, added, add=name)
        return group, len(added) + len(removed)

    async def _change_principals(
        self,
        transaction: ScimTransaction,
        user_ids: Collection[str],
        add: str = "",
        remove: str = "",
    ) -> None:
        users = await transaction.users(user_ids)
        found = await transaction.principals([user.principal for user in users.values()])
        changed = [
            replace(each, groups=_changed_groups(each.groups, add, remove))
            for each in found.values()
        ]
        if changed:
            await transaction.put_principals(changed)

    # Audit.

    async def _finish(self, by: str, principal: Principal, change: str) -> None:
        await self._refresh()
        self._record(by, principal, change)

    async def _finish_group(self, by: str, group: ScimGroup, change: str, count: int) -> None:
        await self._refresh()
        log.info("%s: %s group %s by SCIM; %d members changed", by, change, group.id, count)
        if self._audit_log is not None:
            details = {"group": group.name, "change": change, "members_changed": count}
            self._audit_log.record(AuditType.GROUP_CHANGED, by, details=details)

    def _record(self, by: str, principal: Principal, change: str) -> None:
        log.info("%s: %s: principal %s by SCIM", by, change, principal.id)
        if self._audit_log is not None:
            details = {
                "principal": principal.id,
                "kind": principal.kind,
                "change": change,
                "disabled": principal.disabled,
            }
            self._audit_log.record(AuditType.PRINCIPAL_CHANGED, by, details=details)


def _user_of(document: Document, user: ScimUser) -> ScimUser:
    """Return a user with the checked attributes of a document."""
    kept = {name: document[name] for name in ("displayName", "name", "emails") if name in document}
    return replace(
        user,
        user_name=document["userName"],
        external_id=document["externalId"],
        active=document["active"],
        attributes=kept,
    )


def _document_of(user: ScimUser) -> Document:
    return {
        **user.attributes,
        "userName": user.user_name,
        "externalId": user.external_id,
        "active": user.active,
    }


def _label_of(user: ScimUser) -> str:
    return str(user.attributes.get("displayName", ""))


def _is_from_login(principal: Principal) -> bool:
    return principal.created_by.startswith(LOGIN_CREATOR)


def _changed_groups(groups: Iterable[str], add: str, remove: str) -> tuple[str, ...]:
    kept = [group for group in groups if group != remove]
    return (*kept, add) if add else tuple(kept)


def _check_filter(wanted: ScimFilter | None, known: Sequence[str]) -> None:
    if wanted is not None and wanted.attribute not in known:
        raise MalformedMessage("this attribute cannot be used in a filter", INVALID_FILTER)


def _no_resource(kind: str) -> MalformedMessage:
    return MalformedMessage(f"there is no such {kind}", NOTHING_HERE)
