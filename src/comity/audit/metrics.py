"""Metrics of the audit log: entries, the queue, failed writes and unsigned entries."""

from dataclasses import dataclass

from comity.audit.integrity import AuditCheckpointer
from comity.audit.log import AuditLog
from comity.telemetry.metrics import MetricFamily


@dataclass(frozen=True, slots=True)
class AuditMetrics:
    """Reads the audit log of this node at each scrape."""

    audit_log: AuditLog
    checkpoints: AuditCheckpointer | None

    def __call__(self) -> list[MetricFamily]:
        # Without a signer, no entry is ever signed.
        unsigned = (
            self.audit_log.committed_count
            if self.checkpoints is None
            else self.checkpoints.unsigned_count
        )
        return [
            MetricFamily(
                "comity_audit_entries_total",
                "counter",
                "Entries that this process wrote to the audit log.",
                [((), self.audit_log.committed_count)],
            ),
            MetricFamily(
                "comity_audit_queue",
                "gauge",
                "Entries that wait for their write.",
                [((), self.audit_log.uncommitted_count)],
            ),
            MetricFamily(
                "comity_audit_write_failures_total",
                "counter",
                "Writes to the audit log that failed and were tried again.",
                [((), self.audit_log.failure_count)],
            ),
            MetricFamily(
                "comity_audit_unsigned_entries",
                "gauge",
                "Entries of this process that no signed checkpoint covers yet.",
                [((), unsigned)],
            ),
        ]
