"""Operator API for the keys of stored credentials: list, check and rotate. It shows no values."""

from typing import Final, NotRequired, TypedDict

from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyQuery, RequestBody
from comity.secrets.service import SecretService

SECRETS_PATH: Final = "/api/secrets"


class SecretKeyView(TypedDict):
    """A key, and how many stored values it sealed, by store. A key of unknown values has no id."""

    name: str
    id: str | None
    is_newest: bool
    values: dict[str, int]


class SecretKeyList(TypedDict):
    """The keys of the settings, newest first."""

    keys: list[SecretKeyView]


class KeyCheckView(TypedDict):
    """Whether a key service works, and the problem if it does not."""

    name: str
    id: str
    ok: bool
    problem: str | None


class SecretCheckView(TypedDict):
    """The state of each key. `unreadable` counts values that no key can unseal, by store.

    It is null while a key service does not answer.
    """

    ok: bool
    keys: list[KeyCheckView]
    unreadable: dict[str, int] | None


class RotationBody(RequestBody, frozen=True):
    """The position from which a rotation goes on; `every` also reseals values of the newest key."""

    cursor: str = ""
    every: bool = False


class RotationView(TypedDict):
    """One step of a rotation. `next` is missing after the last one."""

    key: str
    resealed: int
    unreadable: int
    next: NotRequired[str]


class SecretsApi:
    """Routes with which an operator manages the keys of stored credentials."""

    def __init__(self, service: SecretService) -> None:
        self._service = service

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        return (
            ApiRoute("GET", SECRETS_PATH, read, self._list_keys, EmptyQuery),
            ApiRoute("GET", f"{SECRETS_PATH}/check", read, self._check, EmptyQuery),
            ApiRoute("POST", f"{SECRETS_PATH}/rotate", write, self._rotate, RotationBody),
        )

    async def _list_keys(self, _: ApiRequest[EmptyQuery]) -> SecretKeyList:
        return {
            "keys": [
                {
                    "name": each.name,
                    "id": each.id or None,
                    "is_newest": each.is_newest,
                    "values": dict(each.values),
                }
                for each in await self._service.list_keys()
            ]
        }

    async def _check(self, _: ApiRequest[EmptyQuery]) -> SecretCheckView:
        probes = await self._service.check_keys()
        keys: list[KeyCheckView] = [
            {
                "name": each.name,
                "id": each.id,
                "ok": not each.problem,
                "problem": each.problem or None,
            }
            for each in probes
        ]
        if any(each.problem for each in probes):
            return {"ok": False, "keys": keys, "unreadable": None}
        unreadable = await self._service.count_unreadable()
        return {"ok": not any(unreadable.values()), "keys": keys, "unreadable": unreadable}

    async def _rotate(self, request: ApiRequest[RotationBody]) -> RotationView:
        given = request.input
        step = await self._service.rotate(request.actor, given.cursor, every=given.every)
        view: RotationView = {
            "key": self._service.newest_key,
            "resealed": step.resealed,
            "unreadable": step.unreadable,
        }
        return {**view, "next": step.next} if step.next else view
