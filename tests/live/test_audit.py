"""What the audit log says of live servers, without secrets, and at a bounded rate. (§13.2)"""

from comity.audit.events import AuditResult, AuditType
from comity.audit.log import LEFT_OUT, MAX_EVENTS_AT_ONCE
from comity.live.audit import LiveAuditEntry, record_entry
from comity.mcp.actors import GATEWAY, PrincipalKind
from tests.support.noted import SECRET, Noted


def refuse(noted: Noted, server: str) -> None:
    entry = LiveAuditEntry(server)
    record_entry(
        noted.journal, AuditType.FEATURE_REFUSED, entry, AuditResult.BLOCKED, is_limited=True
    )


def test_an_entry_names_the_server_the_set_the_inference_and_what_came_of_it() -> None:
    noted = Noted()
    details = {"label": SECRET, "outcome": "forged"}
    entry = LiveAuditEntry("mem", "push/event", "memory.push", "inf-1", "ok", details=details)
    record_entry(noted.journal, AuditType.FEATURE_USED, entry, is_limited=True)
    record_entry(noted.journal, AuditType.FEATURES_DECLARED, LiveAuditEntry("mem", by=GATEWAY))
    used, told = noted.take()
    assert (used.actor, used.kind, used.server) == ("server:mem", PrincipalKind.SERVER, "mem")
    assert used.details == {
        "label": "[secret]",
        "method": "push/event",
        "feature_set": "memory.push",
        "inference_id": "inf-1",
        "outcome": "ok",
    }
    assert told.kind is PrincipalKind.SYSTEM


def test_of_a_flood_only_the_number_is_kept_and_each_server_has_its_own() -> None:
    noted = Noted()
    for _ in range(MAX_EVENTS_AT_ONCE * 3):
        refuse(noted, "loud")
    refuse(noted, "calm")
    assert len([each for each in noted.events if each.server == "loud"]) == MAX_EVENTS_AT_ONCE
    assert len([each for each in noted.take() if each.server == "calm"]) == 1
    noted.journal.forget_rate("loud")
    refuse(noted, "loud")
    (event,) = noted.take()
    assert LEFT_OUT not in event.details


def test_how_many_were_left_out_is_said_by_the_next_one() -> None:
    noted = Noted()
    for _ in range(MAX_EVENTS_AT_ONCE + 5):
        refuse(noted, "loud")
    noted.take()
    noted.pass_time(10)
    refuse(noted, "loud")
    (event,) = noted.take()
    assert event.details[LEFT_OUT] == 5


def test_what_is_not_limited_is_recorded_however_often_it_happens() -> None:
    noted = Noted()
    for _ in range(MAX_EVENTS_AT_ONCE + 5):
        record_entry(noted.journal, AuditType.PUSH_COMPLETED, LiveAuditEntry("busy"))
    assert len(noted.take()) == MAX_EVENTS_AT_ONCE + 5


def test_without_a_journal_nothing_is_written() -> None:
    record_entry(None, AuditType.FEATURE_USED, LiveAuditEntry("x"))
