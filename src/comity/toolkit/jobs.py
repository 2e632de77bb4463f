"""Values of the durable work queue, for `toolkit.work_queue` and `storage.work_queue`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol


class JobState(StrEnum):
    """The state of a job."""

    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job. Its key is unique among the jobs of its kind.

    In a serial queue, jobs of one group run one after the other. `attempts` counts the claims.
    `holder` is the node that claimed the job last; it is empty if no node holds it.
    """

    key: str
    due_at: datetime
    created_at: datetime
    group: str = ""
    payload: bytes = b""
    state: JobState = JobState.WAITING
    attempts: int = 0
    last_error: str = ""
    result: str = ""
    ended_at: datetime | None = None
    number: int = 0
    holder: str = ""


class WorkClaim(NamedTuple):
    """A claim on a job: its holder and its expiry."""

    holder: str
    until: datetime


class JobAdmission(NamedTuple):
    """A job in the queue. `is_new` is false if its key was known before."""

    job: QueuedJob
    is_new: bool


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The outcome of a claim: the job ended at that time, or is due again then.

    `payload` replaces the payload of the job, unless it is None.
    """

    state: JobState
    at: datetime
    last_error: str = ""
    result: str = ""
    payload: bytes | None = None


class KeyState(StrEnum):
    """The state of a once-only key for a node that wants to take it."""

    OURS = "ours"
    BUSY = "busy"
    DONE = "done"


class KeyClaim(NamedTuple):
    """The result of taking a once-only key. `result` is the value written when it was finished."""

    key: str
    state: KeyState
    result: str = ""


class WorkQueue(Protocol):
    """The jobs of one kind, as a runner uses them."""

    async def claim(self, claim: WorkClaim, now: datetime, limit: int) -> Sequence[QueuedJob]:
        """Claim due jobs that no node holds, the oldest first. Raises Unavailable."""
        ...

    async def renew(self, job: QueuedJob, until: datetime) -> bool:
        """Extend a claim. Returns False if the holder has lost the job. Raises Unavailable."""
        ...

    async def abandon(self, holders: str) -> None:
        """Void the claims of all holders whose names begin with this text. Raises Unavailable."""
        ...


class OnceKeys(Protocol):
    """Keys of work that the node that takes them does itself, at most once."""

    async def take(
        self, keys: Sequence[str], holder: str, now: datetime, until: datetime | None
    ) -> Sequence[KeyClaim]:
        """Take each key that no node holds, in the order of the keys, which must differ.

        Without `until`, a claim never expires.
        """
        ...

    async def finish(self, holder: str, results: Mapping[str, str], now: datetime) -> None:
        """Mark keys as done, each with its result. A key that no node took is done from now on."""
        ...

    async def release(self, holder: str, keys: Sequence[str]) -> None:
        """Release keys whose work was not done, so that any node may take them again."""
        ...

    async def forget(self, taken_before: datetime) -> int:
        """Delete keys that were taken before that time, done or not, and return their number."""
        ...
