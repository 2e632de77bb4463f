"""`mgp/access/query|grant|revoke`, for links that negotiated `access_control`. (MGP §5.4, D-17)"""

from collections.abc import Awaitable, Callable, Mapping

from msgspec import Raw

from comity.kernel.administration import Administration
from comity.kernel.own_methods import Asked, OwnMethods
from comity.wire import access
from comity.wire.errors import ACCESS_DENIED, MalformedMessage
from comity.wire.grants import CALL
from comity.wire.negotiation import Extension
from comity.wire.parties import Actor, PartyKind

type Answer = Callable[[Actor, Mapping[str, Raw], str], Awaitable[dict[str, object]]]


class AccessMethods:
    """Answers what agents and operators ask of the gateway's own grants."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._methods: dict[str, Answer] = {
            access.QUERY: self._query,
            access.GRANT: self._grant,
            access.REVOKE: self._revoke,
        }

    def join(self, methods: OwnMethods) -> None:
        for method in self._methods:
            methods.add(method, Extension.ACCESS_CONTROL, self._answer)

    async def _answer(self, asked: Asked) -> Mapping[str, object]:
        actor, trace = asked.actor, asked.call.traced()
        if actor.kind is PartyKind.SERVER:
            raise MalformedMessage("a server has no say in who may do what", ACCESS_DENIED)
        return await self._methods[asked.call.method](actor, asked.params, trace)

    async def _query(
        self, actor: Actor, params: Mapping[str, Raw], trace: str
    ) -> dict[str, object]:
        asked = access.question(params)
        about = actor if asked.agent in (None, actor.party) else Actor(asked.agent or "")
        place = (asked.server, asked.tool)
        judged = self._administration.explain(actor, about, CALL, place).judgement
        return access.shown(judged.effect, judged.source, judged.grant)

    async def _grant(
        self, actor: Actor, params: Mapping[str, Raw], trace: str
    ) -> dict[str, object]:
        entry = await self._administration.put(actor, access.granted(params), trace)
        kind = access.entry_type(entry.target)
        return {**access.shown(entry.effect, kind, entry), "entry_type": kind}

    async def _revoke(
        self, actor: Actor, params: Mapping[str, Raw], trace: str
    ) -> dict[str, object]:
        subject, target = access.revoked(params)
        revoke = self._administration.revoke
        return {"revoked": await revoke(actor, subject, CALL, target, trace=trace)}
