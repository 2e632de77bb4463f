"""The store of push subscriptions: each browser of a person is one row."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, select

from comity.approvals.notifiers.model import PushSubscription
from comity.storage import values
from comity.storage.database import PUSH_SUBSCRIPTIONS, SqlDatabase

CLICK_KEYS: Final = "notice click"
"""The kind of the once-only keys of clicks in messages."""

_COLUMNS: Final = [PUSH_SUBSCRIPTIONS.c[name] for name in PushSubscription.__dataclass_fields__]


class SqlPushSubscriptions:
    """Stores the push subscriptions of all people."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def put(self, subscription: PushSubscription) -> None:
        values.check_name(subscription.party, "a principal")
        row = {name: getattr(subscription, name) for name in PushSubscription.__dataclass_fields__}
        row["created_at"] = values.to_utc(subscription.created_at)
        async with self._database.writing() as writing:
            await writing.put(PUSH_SUBSCRIPTIONS, [row])

    async def list_of_party(self, party: str) -> Sequence[PushSubscription]:
        if not values.is_name(party):
            return []
        table = PUSH_SUBSCRIPTIONS
        newest = select(*_COLUMNS).where(table.c.party == party).order_by(table.c.created_at.desc())
        async with self._database.reading() as connection:
            return [PushSubscription(*row) for row in await connection.execute(newest)]

    async def remove(self, party: str, id: str) -> bool:
        if not values.is_name(party) or not values.is_name(id):
            return False
        table = PUSH_SUBSCRIPTIONS
        one = delete(table).where(table.c.party == party, table.c.id == id)
        async with self._database.writing() as writing:
            return (await writing.connection.execute(one)).rowcount > 0
