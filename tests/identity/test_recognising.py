"""What keys are recognised by: given, or made once beside the store and for nobody else to read."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from comity.app.settings import Settings
from comity.errors import Misconfigured
from comity.identity.settings import IdentitySettings
from comity.identity.wiring import demand_pepper, pepper_of, refuse_open_gateway
from tests.support.cases import loop_over

GIVEN = "0123456789abcdef-from-elsewhere"


def test_a_pepper_beside_the_store_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "comity.pepper"
    first = pepper_of(Settings(), file, {})
    assert len(first) == 64
    assert pepper_of(Settings(), file, {}) == first
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_of_many_who_start_at_once_all_have_one_pepper(tmp_path: Path) -> None:
    file = tmp_path / "comity.pepper"
    with ThreadPoolExecutor(8) as threads:
        begun = [threads.submit(pepper_of, Settings(), file, {}) for _ in range(32)]
        found = {each.result() for each in begun}
    assert len(found) == 1
    assert list(tmp_path.iterdir()) == [file]


def test_a_pepper_that_is_given_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_text(f"{GIVEN}\n")
    file.chmod(0o600)
    settings = Settings(identity=IdentitySettings(pepper_file=str(file)))
    assert pepper_of(settings, tmp_path / "beside", {}) == GIVEN.encode()
    other = {"COMITY_PEPPER": "another-of-at-least-16-bytes"}
    assert pepper_of(settings, None, other) == b"another-of-at-least-16-bytes"
    assert not (tmp_path / "beside").exists()


def test_without_a_store_each_start_has_its_own() -> None:
    assert pepper_of(Settings(), None, {}) != pepper_of(Settings(), None, {})


@loop_over(
    ("text", "mode", "told"),
    [("short", 0o600, "fewer than 16 bytes"), (GIVEN, 0o644, "chmod 600"), (None, 0, "cannot be")],
)
def test_a_pepper_that_cannot_be_is_refused_with_what_to_do(
    tmp_path: Path, text: str | None, mode: int, told: str
) -> None:
    file = tmp_path / "pepper"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(Misconfigured, match=told) as refused:
        pepper_of(Settings(identity=IdentitySettings(pepper_file=str(file))), None, {})
    assert GIVEN not in str(refused.value)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="pepper_file in"):
        pepper_of(Settings(), tmp_path / "none" / "pepper", {})


def test_a_store_of_several_nodes_needs_a_pepper_that_is_given() -> None:
    with pytest.raises(Misconfigured, match="openssl rand"):
        demand_pepper(Settings(), {})
    demand_pepper(Settings(identity=IdentitySettings(pepper_file="x")), {})
    demand_pepper(Settings(), {"COMITY_PEPPER": GIVEN})


def test_an_address_that_others_reach_needs_identities() -> None:
    with pytest.raises(Misconfigured, match='mode = "required"'):
        refuse_open_gateway(Settings(host="0.0.0.0"))
    refuse_open_gateway(Settings(host="0.0.0.0", identity=IdentitySettings(mode="required")))
    refuse_open_gateway(Settings(host="::1"))
