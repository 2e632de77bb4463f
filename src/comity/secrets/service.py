"""Counts, checks and reseals the stored credentials. Each step is safe beside running calls."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from comity.errors import INVALID_PARAMS, MalformedMessage, Unavailable
from comity.mcp.actors import Actor
from comity.secrets.envelope import EnvelopeSealer, probe_key
from comity.secrets.model import SEALED_PAGE, KeyService, SealedRecord, SealedStore, parse_header

UNKNOWN_KEY: Final = "unknown"
MAX_ATTEMPTS: Final = 3
"""How often a page is read again after other writers changed values of it."""

type RecordRotation = Callable[[Actor, Mapping[str, object]], None]
"""Writes the audit entry of one step of a rotation."""


@dataclass(frozen=True, slots=True)
class SealingKeyUsage:
    """A key of the settings, and the number of values that it sealed, by store."""

    name: str
    id: str
    is_newest: bool
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KeyProbe:
    """Whether a key service works. `problem` is empty if it does."""

    name: str
    id: str
    problem: str = ""


@dataclass(slots=True)
class RotationStep:
    """The result of one page. `next` is where the rotation goes on; it is empty at the end."""

    resealed: int = 0
    unreadable: int = 0
    next: str = ""
    _seen: set[str] = field(default_factory=set[str])

    def count_unreadable(self, id: str) -> None:
        self.unreadable += id not in self._seen
        self._seen.add(id)


class SecretService:
    """The keys and sealed values of a gateway, for operators."""

    def __init__(
        self,
        sealer: EnvelopeSealer,
        stores: Sequence[SealedStore],
        record: RecordRotation,
        page_size: int = SEALED_PAGE,
    ) -> None:
        self._sealer = sealer
        self._stores = {store.sealed_name: store for store in stores}
        self._record = record
        self._page_size = page_size

    @property
    def newest_key(self) -> str:
        return self._sealer.services[0].name

    async def list_keys(self) -> list[SealingKeyUsage]:
        """Return the keys, newest first. A last entry counts the values of unknown keys."""
        counts: dict[str, Counter[str]] = {}
        known = {each.id for each in self._sealer.services}
        for store in self._stores.values():
            async for record in _all_records(store):
                header = parse_header(record.sealed)
                id = UNKNOWN_KEY if header is None or header.key_id not in known else header.key_id
                counts.setdefault(id, Counter())[store.sealed_name] += 1
        found = [
            SealingKeyUsage(each.name, each.id, number == 0, counts.get(each.id, {}))
            for number, each in enumerate(self._sealer.services)
        ]
        if UNKNOWN_KEY in counts:
            found.append(
                SealingKeyUsage(UNKNOWN_KEY, "", is_newest=False, values=counts[UNKNOWN_KEY])
            )
        return found

    async def check_keys(self) -> list[KeyProbe]:
        """Ask each key service to wrap and unwrap a data key."""
        return [await _probe(service) for service in self._sealer.services]

    async def count_unreadable(self) -> dict[str, int]:
        """Return how many values of each store no key can unseal. Raises Unavailable."""
        counts = dict.fromkeys(self._stores, 0)
        for name, store in self._stores.items():
            async for record in _all_records(store):
                counts[name] += await self._sealer.unseal(record.sealed, record.context) is None
        return counts

    async def rotate(self, actor: Actor, cursor: str = "", *, every: bool = False) -> RotationStep:
        """Reseal one page of values with the newest key, and return where to go on.

        A value that has the newest key is left as it is, unless `every` is set. So a rotation that
        broke off goes on from the start, and two nodes may rotate at the same time. Raises
        Unavailable, and MalformedMessage for an unknown cursor.
        """
        store, after = self._position(cursor)
        step = RotationStep()
        page = await store.list_sealed(after, self._page_size)
        is_clean = await self._reseal_page(store, page, step, every=every)
        for _ in range(MAX_ATTEMPTS):
            if is_clean:
                break
            again = await store.list_sealed(after, self._page_size)
            is_clean = await self._reseal_page(store, again, step, every=False)
        step.next = self._next(store, page)
        if step.resealed or not step.next:
            self._record(actor, self._details(store, step))
        return step

    def _details(self, store: SealedStore, step: RotationStep) -> dict[str, object]:
        key = self._sealer.services[0]
        return {
            "key": key.name,
            "key_id": key.id,
            "store": store.sealed_name,
            "resealed": step.resealed,
            "unreadable": step.unreadable,
        }

    def _position(self, cursor: str) -> tuple[SealedStore, str]:
        name, _, after = cursor.partition("/")
        store = self._stores.get(name) if cursor else next(iter(self._stores.values()))
        if store is None:
            raise MalformedMessage("cursor: there is no such position", INVALID_PARAMS)
        return store, after

    def _next(self, store: SealedStore, page: Sequence[SealedRecord]) -> str:
        if page:
            return f"{store.sealed_name}/{page[-1].id}"
        names = list(self._stores)
        following = names[names.index(store.sealed_name) + 1 :]
        return f"{following[0]}/" if following else ""

    async def _reseal_page(
        self, store: SealedStore, page: Sequence[SealedRecord], step: RotationStep, *, every: bool
    ) -> bool:
        """Reseal values, and return whether no other writer was faster."""
        is_clean = True
        for record in page:
            if self._sealer.is_newest(record.sealed) and not every:
                continue
            plain = await self._sealer.unseal(record.sealed, record.context)
            if plain is None:
                step.count_unreadable(record.id)
                continue
            sealed = await self._sealer.seal(plain, record.context)
            if await store.replace_sealed(record, sealed):
                step.resealed += 1
            else:
                # The other writer wins. Its value may have an older key.
                is_clean = False
        return is_clean


async def _probe(service: KeyService) -> KeyProbe:
    try:
        await probe_key(service)
    except Unavailable as problem:
        return KeyProbe(service.name, service.id, str(problem))
    return KeyProbe(service.name, service.id)


async def _all_records(store: SealedStore) -> AsyncGenerator[SealedRecord]:
    after = ""
    while page := await store.list_sealed(after):
        for record in page:
            yield record
        after = page[-1].id
