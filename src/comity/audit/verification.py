"""Verification of the audit log in the background of a gateway, with progress and cancel."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypedDict

from comity.audit.export import AuditReader, ExportCursor
from comity.audit.signing import is_valid_signature
from comity.audit.verify import (
    CheckpointInterval,
    ExportVerifier,
    FindingKind,
    VerificationReport,
)
from comity.errors import MalformedMessage, Unavailable
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyBody, EmptyQuery
from comity.toolkit.background import BackgroundTasks

log = logging.getLogger(__name__)

MAX_FINDINGS: Final = 100
VERIFICATION_PATH: Final = "/api/audit/verification"


class VerificationState(StrEnum):
    """The state of the latest verification on this node."""

    NEVER = "never"
    RUNNING = "running"
    WHOLE = "whole"
    UNSIGNED = "unsigned"
    DEFECTIVE = "defective"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DefectView(TypedDict):
    """A defect, and its first entry."""

    kind: FindingKind
    node: str
    seq: int
    text: str


class ChainView(TypedDict):
    """The chain of one node: its last entry, and how far it is signed."""

    node: str
    first: int
    last: int
    entries: int
    signed_to: int
    unsigned: int
    keys: Sequence[str]


class VerificationView(TypedDict):
    """The latest verification that this node ran. `entries` grows while it runs."""

    state: VerificationState
    started_at: datetime | None
    ended_at: datetime | None
    started_by: str | None
    entries: int
    checkpoints: int
    chains: list[ChainView]
    findings: list[DefectView]
    more_findings: int
    error: str | None


@dataclass(slots=True)
class _VerificationRun:
    """One verification."""

    state: VerificationState = VerificationState.NEVER
    started_at: datetime | None = None
    ended_at: datetime | None = None
    by: str = ""
    verifier: ExportVerifier | None = None
    report: VerificationReport | None = None
    error: str = ""
    is_cancelled: bool = False


@dataclass(slots=True)
class AuditVerification:
    """Runs at most one verification at a time. The signatures are checked outside the loop."""

    reader: AuditReader
    interval: CheckpointInterval
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _run: _VerificationRun = field(default_factory=_VerificationRun)
    _background_tasks: BackgroundTasks = field(
        default_factory=lambda: BackgroundTasks("the verification of the audit log")
    )

    @property
    def routes(self) -> ApiRoutes:
        read, write, path = Permission.ADMIN_READ, Permission.ADMIN_WRITE, VERIFICATION_PATH
        return (
            ApiRoute("GET", path, read, self._show, EmptyQuery),
            ApiRoute("POST", path, write, self._start, EmptyBody),
            ApiRoute("POST", f"{path}/cancel", write, self._cancel, EmptyBody),
        )

    def stop(self) -> None:
        self._background_tasks.cancel()

    async def _show(self, _: ApiRequest[EmptyQuery]) -> VerificationView:
        """Return the latest verification, or the one that runs."""
        return self._view()

    async def _start(self, request: ApiRequest[EmptyBody]) -> VerificationView:
        """Start a verification in the background, unless one runs."""
        if self._run.state is not VerificationState.RUNNING:
            verifier = ExportVerifier(is_valid_signature, (), (), self.interval)
            self._run = _VerificationRun(
                VerificationState.RUNNING,
                self.clock(),
                by=request.actor.party,
                verifier=verifier,
            )
            self._background_tasks.start(self._verify(self._run, verifier))
        return self._view()

    async def _cancel(self, _: ApiRequest[EmptyBody]) -> VerificationView:
        """Cancel the verification that runs."""
        if self._run.state is VerificationState.RUNNING:
            self._run.is_cancelled = True
            self._end(self._run, VerificationState.CANCELLED)
        return self._view()

    async def _verify(self, run: _VerificationRun, verifier: ExportVerifier) -> None:
        place: ExportCursor | None = None
        try:
            while not run.is_cancelled:
                part = await self.reader.part(place)
                await asyncio.to_thread(_take_lines, verifier, part.lines)
                place = part.next
                if place is None:
                    break
            if not run.is_cancelled:
                run.report = await asyncio.to_thread(verifier.finish)
                self._end(run, _state_of(run.report))
        except (Unavailable, MalformedMessage) as error:
            run.error = str(error)
            self._end(run, VerificationState.FAILED)
        except Exception:
            run.error = "an internal error ended the verification"
            self._end(run, VerificationState.FAILED)
            raise

    def _end(self, run: _VerificationRun, state: VerificationState) -> None:
        run.state, run.ended_at = state, self.clock()

    def _view(self) -> VerificationView:
        run, report = self._run, self._run.report
        findings = () if report is None else report.findings
        chains = () if report is None else report.nodes
        return {
            "state": run.state,
            "started_at": run.started_at,
            "ended_at": run.ended_at,
            "started_by": run.by or None,
            "entries": 0 if run.verifier is None else run.verifier.entries,
            "checkpoints": 0 if run.verifier is None else run.verifier.checkpoints,
            "chains": [
                {
                    "node": each.node,
                    "first": each.first,
                    "last": each.last,
                    "entries": each.entries,
                    "signed_to": each.signed_to,
                    "unsigned": each.unsigned,
                    "keys": each.keys,
                }
                for each in chains
            ],
            "findings": [
                {"kind": each.kind, "node": each.node, "seq": each.seq, "text": each.words}
                for each in findings[:MAX_FINDINGS]
            ],
            "more_findings": max(0, len(findings) - MAX_FINDINGS)
            + (0 if report is None else report.more),
            "error": run.error or None,
        }


def _take_lines(verifier: ExportVerifier, lines: Sequence[bytes]) -> None:
    for line in lines:
        verifier.take(line)


def _state_of(report: VerificationReport) -> VerificationState:
    if report.is_whole:
        return VerificationState.WHOLE
    is_unproved = report.is_only_unsigned or not report.findings
    return VerificationState.UNSIGNED if is_unproved else VerificationState.DEFECTIVE
