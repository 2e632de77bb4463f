"""New keys: drawn by lot, each of them another, and recognised afterwards."""

from datetime import UTC, datetime

from comity.identity import keys
from comity.identity.keys import mint_key
from comity.identity.principals import ApiKey

PEPPER = b"p" * 32
WANTED = ApiKey("", "agent:ci", b"", label="for tests", permissions=("AdminRead",))


def test_a_new_key_is_recognised_by_its_record() -> None:
    whole, record = mint_key(PEPPER, WANTED)
    shown = keys.parse_key(whole.encode())
    assert shown is not None
    assert keys.verify_key(PEPPER, shown, record, datetime.now(UTC)) is record
    assert (record.party, record.label, record.permissions) == (
        "agent:ci",
        "for tests",
        ("AdminRead",),
    )
    assert shown.id == record.id


def test_no_two_keys_are_alike() -> None:
    made = [mint_key(PEPPER, WANTED) for _ in range(200)]
    assert len({whole for whole, _ in made}) == len({key.id for _, key in made}) == 200


def test_nothing_of_a_key_but_its_id_is_in_its_record() -> None:
    whole, record = mint_key(PEPPER, WANTED)
    secret = whole.split("_")[3]
    assert secret.encode() not in record.mac
    assert secret not in str(vars(type(record))) + repr(record)
