"""Stores accepted definitions and run-time registrations of servers in the database."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete

from comity.catalog import definitions
from comity.catalog.definitions import AcceptedTool, RegistrationRecord
from comity.storage import values
from comity.storage.changes import RecordKind
from comity.storage.database import (
    PINS,
    REGISTRATIONS,
    SqlDatabase,
    record_row,
    select_row,
    select_rows,
)


class SqlDefinitionStore:
    """The accepted tool definitions in the SQL database."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def put(self, *pins: AcceptedTool) -> None:
        checked = {(pin.server, pin.tool): pin for pin in map(definitions.checked_definition, pins)}
        async with self._database.writing() as writing:
            await writing.put(PINS, [record_row(PINS, pin) for pin in checked.values()])
            await writing.record_change(RecordKind.PINS, (pin.server for pin in checked.values()))

    async def get(self, server: str, tool: str) -> AcceptedTool | None:
        row = await select_row(self._database, PINS, server=server, tool=tool)
        return None if row is None else AcceptedTool(*row)

    async def list_for(self, server: str) -> Sequence[AcceptedTool]:
        return [
            AcceptedTool(*row) for row in await select_rows(self._database, PINS, server=server)
        ]

    async def remove(self, server: str, tool: str = "") -> bool:
        if not values.is_name(server) or (tool and not values.is_name(tool)):
            return False
        unwanted = delete(PINS).where(PINS.c.server == server)
        if tool:
            unwanted = unwanted.where(PINS.c.tool == tool)
        async with self._database.writing() as writing:
            gone = await writing.connection.execute(unwanted)
            await writing.record_change(RecordKind.PINS, [server] * gone.rowcount)
        return gone.rowcount > 0


class SqlRegistrationStore:
    """The servers registered at run time in the SQL database."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def put(self, registration: RegistrationRecord) -> None:
        checked = definitions.checked_registration(registration)
        row = {**record_row(REGISTRATIONS, checked), "entry": values.encode_document(checked.entry)}
        async with self._database.writing() as writing:
            await writing.put(REGISTRATIONS, [row])
            await writing.record_change(RecordKind.REGISTRATIONS, [checked.server])

    async def get(self, server: str) -> RegistrationRecord | None:
        row = await select_row(self._database, REGISTRATIONS, server=server)
        return None if row is None else _registration(row)

    async def all(self) -> Sequence[RegistrationRecord]:
        return [_registration(row) for row in await select_rows(self._database, REGISTRATIONS)]

    async def remove(self, server: str) -> bool:
        if not values.is_name(server):
            return False
        unwanted = delete(REGISTRATIONS).where(REGISTRATIONS.c.server == server)
        async with self._database.writing() as writing:
            gone = await writing.connection.execute(unwanted)
            await writing.record_change(RecordKind.REGISTRATIONS, [server] * gone.rowcount)
        return gone.rowcount > 0


def _registration(row: Sequence[Any]) -> RegistrationRecord:
    server, entry, *rest = row
    return RegistrationRecord(server, values.decode_document(entry), *rest)
