"""Who can write to the store, and has no key, rewrites the end of the audit log: it is found."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from comity.audit.chain import GENESIS, entry_hash
from tests.cli.program import EXAMPLE, Desk, Ran
from tests.interop.processes import comity

pytestmark = pytest.mark.timeout(300)

type Attack = Callable[[sqlite3.Connection], None]


class AuditedGateway:
    """A gateway on SQLite that signs after every third entry, and its log once it has ended."""

    def __init__(self, folder: Path) -> None:
        self.desk = Desk(folder)
        self.store = folder / "comity.db"
        server = f"command = {json.dumps(EXAMPLE['command'])}\nargs = {json.dumps(EXAMPLE['args'])}"
        self.config = self.desk.write(
            "comity.toml",
            f'[store]\nurl = "sqlite:///{self.store}"\n[audit]\ncheckpoint_entries = 3\n'
            f'[[servers]]\nid = "example"\n{server}\n',
        )

    def run(self, calls: int) -> None:
        with comity(self.config) as origin:
            for number in range(calls):
                words = ("call", "example__echo", f"message={number}", "--url", origin)
                assert self.desk.run(*words).status == 0

    def attack(self, *attacks: Attack) -> None:
        with closing(sqlite3.connect(self.store)) as store, store:
            for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
                store.execute(f'DROP TRIGGER "{name}"')
            for attack in attacks:
                attack(store)

    def public_key(self) -> str:
        ran = self.run_offline("key", "-o", "json")
        return str(ran.json["key"])

    def run_offline(self, *words: str) -> Ran:
        """Ask the store: another test's gateway may listen at the default port."""
        return self.desk.run("audit", *words, "--offline", "-c", str(self.config))

    def verify(self, *words: str) -> Ran:
        """Verify an export that was made an hour after the gateway ended."""
        exported = self.run_offline("export")
        header, *rest = exported.out.splitlines()
        later = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="milliseconds")
        said = "\n".join([json.dumps(json.loads(header) | {"exported_at": later}), *rest])
        return self.desk.run("audit", "verify", "-", *words, "-o", "json", said=f"{said}\n")


def rewrite_from_the_middle(store: sqlite3.Connection) -> None:
    """Blame another principal for one call, and hash all entries behind it anew."""
    rows = list(
        store.execute("SELECT seq, node, actor, body, hash FROM comity_audit_entries ORDER BY seq")
    )
    before, middle = GENESIS, len(rows) // 2
    for seq, node, actor, body, _ in rows:
        if seq == middle:
            body = bytes(body).replace(actor.encode(), b"agent:else")  # noqa: PLW2901  # the altered one
            actor = "agent:else"  # noqa: PLW2901
        before = entry_hash(before, node.encode(), seq, bytes(body))
        said = "UPDATE comity_audit_entries SET body = ?, hash = ?, actor = ? WHERE seq = ?"
        store.execute(said, (bytes(body), before, actor, seq))


def remove_later_signatures(store: sqlite3.Connection) -> None:
    store.execute(
        "DELETE FROM comity_audit_checkpoints "
        "WHERE seq >= (SELECT count(*) / 2 FROM comity_audit_entries)"
    )


def remove_all_signatures(store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM comity_audit_checkpoints")


@pytest.fixture
def audited(tmp_path: Path) -> AuditedGateway:
    gateway = AuditedGateway(tmp_path)
    gateway.run(calls=4)
    return gateway


def _kinds(ran: Ran) -> list[Any]:
    return [each["kind"] for each in ran.json["findings"]]


def test_a_rewritten_end_is_found_with_the_key_and_without(audited: AuditedGateway) -> None:
    whole = audited.verify("--key", audited.public_key())
    assert (whole.status, whole.json["whole"], whole.json["unsigned"]) == (0, True, 0), whole.out
    audited.attack(rewrite_from_the_middle, remove_later_signatures)
    for words in (("--key", audited.public_key()), ()):
        found = audited.verify(*words)
        assert (found.status, found.json["whole"], _kinds(found)) == (1, False, ["unsigned"])
    audited.attack(remove_all_signatures)
    for words in (("--key", audited.public_key()), ()):
        found = audited.verify(*words)
        assert (found.status, found.json["whole"], _kinds(found)) == (1, False, ["unsigned"])
        assert found.json["signed"] == 0


def test_a_rewritten_end_is_found_after_the_gateway_signed_on_top_of_it(
    audited: AuditedGateway,
) -> None:
    audited.attack(rewrite_from_the_middle, remove_later_signatures)
    audited.run(calls=4)
    found = audited.verify("--key", audited.public_key())
    assert (found.status, _kinds(found)) == (1, ["altered"])


def test_a_cut_end_is_told_at_the_next_start(audited: AuditedGateway) -> None:
    audited.attack(
        remove_later_signatures,
        lambda store: (
            store.execute(
                "DELETE FROM comity_audit_entries "
                "WHERE seq >= (SELECT count(*) / 2 FROM comity_audit_entries)"
            )
            and None
        ),
    )
    audited.run(calls=1)
    (kept,) = audited.store.parent.glob("*.last-signed.lost-*")
    found = audited.verify("--checkpoints", str(kept))
    assert found.status == 1
    assert set(_kinds(found)) <= {"cut", "altered"}
