"""`comity keys` and `comity principals`: in a store alone, and at a gateway that asks who comes."""

import json
import re
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from comity.audit.events import AuditType
from tests.cli.program import EXAMPLE, Desk, Ran
from tests.interop.processes import Program, answers, running
from tests.support.fork_server import COMITY

STORE = 'port = 0\n[store]\nurl = "sqlite:///comity.db"\n'
NOBODY_THERE = {"COMITY_URL": "http://127.0.0.1:9"}
# Every command is a program of its own, on a machine that may have much else to do.
pytestmark = pytest.mark.timeout(300)

KEY = re.compile(r"cmty_live_[0-9A-Za-z]{11}_[0-9A-Za-z]{49}")


def in_store(desk: Desk, *words: str) -> Ran:
    return desk.run(*words, "--offline")


def test_keys_are_made_in_the_store_where_no_gateway_runs(desk: Desk) -> None:
    desk.write("comity.toml", STORE)
    assert "comity keys create" in in_store(desk, "keys").out
    ran = in_store(desk, "keys", "create", "agent:ci", "--label", "nightly", "--expires", "90d")
    assert ran.status == 0, ran.err
    assert KEY.fullmatch(ran.lines[0])
    (listed,) = in_store(desk, "keys", "-o", "json").json["keys"]
    assert (listed["principal"], listed["label"]) == ("agent:ci", "nightly")
    ends = datetime.fromisoformat(listed["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89) < ends < timedelta(days=91)
    secret = ran.lines[0].split("_")[3]
    assert secret not in in_store(desk, "keys").out
    assert secret.encode() not in (desk.folder / "comity.db").read_bytes()


def test_a_key_is_written_to_a_new_file_that_only_its_owner_reads(desk: Desk) -> None:
    desk.write("comity.toml", STORE)
    ran = in_store(desk, "keys", "create", "agent:ci", "--out", "ci.key")
    assert ran.status == 0, ran.err
    file = desk.folder / "ci.key"
    assert KEY.fullmatch(file.read_text().removesuffix("\n"))
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().strip() not in ran.out
    (made,) = in_store(desk, "keys", "-o", "json").json["keys"]
    assert ran.out == f"Wrote key {made['id']} of agent:ci to ci.key.\n"


def test_no_file_is_written_where_no_key_is_made(desk: Desk) -> None:
    desk.write("comity.toml", STORE)
    file = desk.write("ci.key", "something else")
    for name, told in (("ci.key", "exists"), ("no/folder.key", "cannot be written")):
        ran = in_store(desk, "keys", "create", "agent:ci", "--out", name)
        assert (ran.status, ran.out, told in ran.err) == (2, "", True)
    assert file.read_text() == "something else"
    ran = in_store(desk, "keys", "create", "agent:ci", "--expires", "soon", "--out", "it.key")
    assert (ran.status, (desk.folder / "it.key").exists()) == (2, False)
    assert in_store(desk, "keys", "-o", "json").json["keys"] == []


def test_a_key_is_replaced_and_taken_back(desk: Desk) -> None:
    desk.write("comity.toml", STORE)
    made = in_store(
        desk, "keys", "create", "agent:ci", "--permission", "AdminRead", "-o", "json"
    ).json
    again = in_store(desk, "keys", "rotate", made["id"], "-o", "json").json
    assert again["permissions"] == ["AdminRead"]
    assert again["key"] != made["key"]
    assert in_store(desk, "keys", "revoke", again["id"]).status == 0
    shown = in_store(desk, "keys").out
    assert "revoked" in shown
    assert "until" in shown
    third = in_store(desk, "keys", "rotate", again["id"], "--grace", "0", "-o", "json")
    assert third.status == 0, third.err


def test_parties_are_added_kept_out_and_let_in(desk: Desk) -> None:
    desk.write("comity.toml", STORE)
    added = in_store(desk, "principals", "create", "person:ana@example.org", "--label", "Ana")
    assert added.status == 0, added.err
    assert "disabled" not in in_store(desk, "principals").out
    assert in_store(desk, "principals", "disable", "person:ana@example.org").status == 0
    (ana,) = in_store(desk, "principals", "-o", "json").json["principals"]
    assert (ana["kind"], ana["disabled"]) == ("person", True)
    assert in_store(desk, "principals", "enable", "person:ana@example.org").status == 0
    assert in_store(desk, "principals", "create", "person:ana@example.org").status == 2


def test_groups_are_changed_listed_and_end_with_their_principal(desk: Desk) -> None:
    desk.write("comity.toml", STORE)
    assert "There are no groups" in in_store(desk, "groups").out
    for ana in ("person:ana@example.org", "person:ben@example.org"):
        assert in_store(desk, "principals", "create", ana).status == 0
        changed = in_store(desk, "principals", "groups", ana, "--add", "sre", "--add", "on call")
        assert changed.status == 0, changed.err
        assert "on call, sre" in changed.out
    gone = in_store(desk, "principals", "groups", ana, "--remove", "on call", "-o", "json")
    assert gone.json["groups"] == ["sre"]
    listed = in_store(desk, "groups", "list", "-o", "json").json["groups"]
    assert [(each["subject"], each["member_count"]) for each in listed] == [
        ("group:on call", 1),
        ("group:sre", 2),
    ]
    assert "person:ana@example.org, person:ben@example.org" in in_store(desk, "groups").out
    assert in_store(desk, "principals", "delete", ana).status == 0
    (left,) = in_store(desk, "principals", "-o", "json").json["principals"]
    assert (left["id"], left["groups"]) == ("person:ana@example.org", ["on call", "sre"])
    for name in ("x\n", "*", "s*", "adm\u200bins"):
        assert in_store(desk, "principals", "groups", left["id"], "--add", name).status == 2
    for id in ("group:sre", "person:ana\u200b"):
        assert in_store(desk, "principals", "create", id).status == 2


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("keys", "create", "agent:ci", "--permission", "Everything"), 2, "is no permission"),
        (("keys", "create", "agent:ci", "--expires", "soon"), 2, "must be a time of"),
        (("keys", "create", "agent:ci", "--expires", "2020-01-01"), 2, "in the past"),
        (("keys", "create", "*"), 2, "cannot have a key"),
        (("keys", "create", "agent:ci\u200b"), 2, "cannot have a key"),
        (("keys", "revoke", "nobody"), 5, "there is no key"),
        (("principals", "disable", "agent:none"), 5, "there is no principal"),
        (("principals", "show", "agent:none"), 5, "there is no principal"),
        (("principals", "delete", "agent:none"), 5, "there is no principal"),
        (("principals", "groups", "agent:none", "--add", "sre"), 5, "there is no principal"),
    ],
)
def test_a_mistake_is_told_with_what_would_do(
    desk: Desk, words: tuple[str, ...], status: int, told: str
) -> None:
    desk.write("comity.toml", STORE)
    ran = in_store(desk, *words)
    assert ran.status == status
    assert told in ran.err
    assert "Traceback" not in ran.err


def test_without_a_gateway_and_a_store_there_is_nothing_to_keep_a_key_in(desk: Desk) -> None:
    ran = desk.run("keys", "create", "agent:ci", **NOBODY_THERE)
    assert ran.status == 3
    assert "comity serve" in ran.err
    assert "comity init" in in_store(desk, "keys", "create", "agent:ci").err
    desk.write("comity.toml", "port = 0\n")
    assert "[store]" in in_store(desk, "keys", "create", "agent:ci").err


def test_without_a_gateway_a_command_fails_and_names_offline(desk: Desk) -> None:
    desk.write("comity.toml", STORE)
    assert in_store(desk, "keys", "create", "agent:ci").status == 0
    for words in (
        *(("keys", "create", "agent:other"), ("principals", "create", "agent:other")),
        *(("keys", "list"), ("grants", "list"), ("approvals", "list"), ("audit", "list")),
    ):
        ran = desk.run(*words, **NOBODY_THERE)
        assert (ran.status, ran.out) == (3, ""), ran.err
        assert "--offline" in ran.err
    listed = in_store(desk, "keys", "-o", "json")
    assert [key["principal"] for key in listed.json["keys"]] == ["agent:ci"]
    shown = in_store(desk, "principals", "show", "agent:ci", "-o", "json").json
    assert (shown["id"], [key["label"] for key in shown["keys"]]) == ("agent:ci", [""])


@dataclass
class Guarded:
    """A gateway that asks everybody, the program it is, and a key of its operator."""

    desk: Desk
    origin: str
    program: Program
    operator: str

    def run(self, *words: str, key: str = "", **env: str) -> Ran:
        shown = {"COMITY_KEY": key} if key else {}
        return self.desk.run(*words, **{"COMITY_URL": self.origin, **shown, **env})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Generator[Guarded]:
    desk = Desk(tmp_path_factory.mktemp("guarded"))
    command, args = EXAMPLE["command"], json.dumps(EXAMPLE["args"])
    desk.write(
        "comity.toml",
        f'{STORE}[identity]\nmode = "required"\n'
        f'[[servers]]\nid = "try"\ncommand = "{command}"\nargs = {args}\n'
        '[[grants]]\nsubject = "person:ops"\nverb = "*"\ntarget = "*"\n'
        '[[grants]]\nsubject = "agent:ci"\ntarget = "try/echo"\n',
    )
    operator = in_store(desk, "keys", "create", "person:ops").lines[0]
    config, folder = str(desk.folder / "comity.toml"), {"COMITY_STORE_URL": _store(desk.folder)}
    with running([COMITY, "serve", "-c", config], {"LOG_LEVEL": "DEBUG", **folder}) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield Guarded(desk, origin, program, operator)


def _store(folder: Path) -> str:
    return f"sqlite:///{folder}/comity.db"


def test_the_store_of_a_running_gateway_is_only_read_offline(guarded: Guarded) -> None:
    config = ("-c", str(guarded.desk.folder / "comity.toml"))
    store = {"COMITY_STORE_URL": _store(guarded.desk.folder)}
    for words in (("keys", "create", "agent:refused"), ("principals", "create", "agent:refused")):
        ran = guarded.desk.run(*words, "--offline", *config, **store)
        assert ran.status == 2, ran.out
        assert guarded.origin in ran.err
    read = guarded.desk.run("keys", "--offline", "-o", "json", *config, **store)
    parties = {key["principal"] for key in read.json["keys"]}
    assert "person:ops" in parties
    assert "agent:refused" not in parties


def test_a_gateway_that_asks_who_comes_is_asked_with_a_key(guarded: Guarded) -> None:
    bare = guarded.run("status")
    assert bare.status == 4
    assert "COMITY_KEY" in bare.err
    assert guarded.run("status", key=guarded.operator).status == 0
    wrong = guarded.run("status", key=guarded.operator[:-1] + "0")
    assert "does not accept this key" in wrong.err
    assert guarded.operator[20:] not in wrong.err
    file = guarded.desk.folder / "key"
    file.write_text(f"{guarded.operator}\n")
    assert guarded.run("status", "--key-file", "key").status == 0
    assert guarded.run("status", COMITY_KEY_FILE=str(file)).status == 0
    absent = guarded.run("status", "--key-file", "none")
    assert (absent.status, "cannot be read" in absent.err) == (2, True)


def test_a_key_that_was_just_made_calls_what_its_party_was_granted(guarded: Guarded) -> None:
    made = guarded.run("keys", "create", "agent:ci", "-o", "json", key=guarded.operator).json
    assert made["created_by"] == "person:ops"
    request = urllib.request.Request(  # noqa: S310 - loopback only
        f"{guarded.origin}/api/keys", headers={"Authorization": f"Bearer {guarded.operator}"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310 - loopback only
        assert made["key"].split("_")[3] not in reply.read().decode()
    refused = guarded.run("keys", "create", "agent:other", key=made["key"])
    assert refused.status == 4
    assert "needs the grant admin/write" in refused.err
    assert guarded.run("keys", "revoke", made["id"], key=guarded.operator).status == 0
    assert "does not accept this key" in guarded.run("status", key=made["key"]).err
    for secret in (made["key"], guarded.operator):
        assert secret.split("_")[3] not in guarded.program.said


def test_a_second_gateway_finds_the_first_one_that_asks_who_comes(guarded: Guarded) -> None:
    port = guarded.origin.rpartition(":")[2]
    ran = guarded.desk.run("serve", "-c", "comity.toml", "--port", port)
    assert ran.status == 2
    assert "a gateway runs at" in ran.err


@pytest.mark.parametrize(
    ("words", "type"),
    [
        ("keys create agent:new", AuditType.KEY_ISSUED),
        ("keys rotate KEY", AuditType.KEY_ISSUED),
        ("keys revoke KEY", AuditType.KEY_REVOKED),
        ("principals create agent:new", AuditType.PRINCIPAL_CHANGED),
        ("principals delete agent:ci", AuditType.PRINCIPAL_CHANGED),
        ("grants create agent:ci files/*", AuditType.ACCESS_GRANTED),
        ("grants delete agent:ci docs/*", AuditType.ACCESS_REVOKED),
        ("grants apply -f grants.toml --yes", AuditType.ACCESS_GRANTED),
    ],
)
def test_a_change_in_the_store_alone_is_in_the_audit_log_and_signed(
    desk: Desk, words: str, type: AuditType
) -> None:
    desk.write("comity.toml", STORE)
    desk.write("grants.toml", '[[grants]]\nprincipal = "agent:ci"\ntarget = "mail/*"\n')
    made = in_store(desk, "keys", "create", "agent:ci", "-o", "json").json
    assert in_store(desk, "grants", "create", "agent:ci", "docs/*").status == 0
    before = len(recorded(desk))
    ran = in_store(desk, *words.replace("KEY", made["id"]).split())
    assert ran.status == 0, ran
    new = recorded(desk)[before:]
    assert {entry["actor"] for entry in new if entry["type"] == type} == {"person:local"}, new
    assert made["key"] not in json.dumps(new)
    assert in_store(desk, "audit", "verify").status == 0


def recorded(desk: Desk) -> list[dict[str, Any]]:
    """The entries of the audit log, oldest first."""
    ran = in_store(desk, "audit", "tail", "-n", "100", "-o", "json")
    return [json.loads(line) for line in ran.lines]
