"""The reference of audit events has every type, and the limits of the program."""

import re

from comity.audit.events import AuditResult, AuditType
from comity.events import audit_feed
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "reference" / "audit-events.md").read_text(encoding="utf-8")


def test_page_lists_every_type_once_and_no_other() -> None:
    rows = re.findall(r"^\| `([A-Z]+_[A-Z_]+|dev\.comity\.\w+)` \|", TEXT, re.MULTILINE)
    assert sorted(rows) == sorted(AuditType)


def test_page_names_the_results_and_the_limits() -> None:
    assert all(f"`{each}`" in TEXT for each in AuditResult)
    limits = dict(re.findall(r"^\| (events|size|reports) .*? \| (.+) \|$", TEXT, re.MULTILINE))
    assert limits["size"] == f"{audit_feed.MAX_REPORT_BYTES // 1024} KiB"
    waiting = f"{audit_feed.MOST_WAITING}, and {audit_feed.MOST_BYTES // 1024 // 1024} MiB"
    assert f"| events that wait for a client | {waiting} |" in TEXT
    assert f"| events that wait for an audit server | {audit_feed.MAX_QUEUED:,} |" in TEXT
    assert {audit_feed.MISSED, audit_feed.CLAIMED} <= set(re.findall(r"`([\w./]+)`", TEXT))
