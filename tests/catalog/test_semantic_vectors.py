"""Vectors in memory and on disk."""

import hashlib
import stat
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.catalog.semantic.vectors import VectorFile, VectorTable
from tests.support.cases import loop_over

SIZE = 8


def unit(seed: int) -> np.ndarray:
    row = np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)
    return row / np.linalg.norm(row)


def filled(slots: set[int]) -> VectorTable:
    vectors = VectorTable(SIZE)
    for slot in slots:
        vectors.put(slot, unit(slot))
    return vectors


@given(
    slots=st.sets(st.integers(0, 600), max_size=40),
    hidden=st.sets(st.integers(0, 600), max_size=40),
    most=st.integers(0, 20),
    count=st.integers(1, 3),
)
def test_the_nearest_of_those_that_are_seen_are_found(
    slots: set[int], hidden: set[int], most: int, count: int
) -> None:
    vectors = filled(slots)
    sought = np.stack([unit(10_000 + each) for each in range(count)])
    seen = bytes(slot not in hidden for slot in range(601))
    cosines = {slot: max(float(unit(slot) @ each) for each in sought) for slot in slots - hidden}
    expected = sorted(cosines, key=lambda slot: (-cosines[slot], slot))[:most]
    best, also, least = vectors.find_nearest(sought, seen, most, range(601))
    assert [slot for slot, _ in best] == expected
    assert {slot for slot, near in enumerate(also) if near is not None} == cosines.keys()
    assert least == pytest.approx(min(cosines.values(), default=0.0), abs=1e-5)
    if not hidden:
        assert vectors.find_nearest(sought, None, most, ())[0] == best


def test_a_slot_that_was_dropped_is_gone_until_it_is_used_again() -> None:
    vectors = filled({0, 1, 2})
    vectors.remove(1)
    vectors.remove(5_000)
    assert len(vectors) == 2
    assert {slot for slot, _ in vectors.find_nearest(unit(1)[np.newaxis], None, 9, ())[0]} == {0, 2}
    vectors.put(1, unit(7))
    assert vectors.find_nearest(unit(7)[np.newaxis], None, 1, ())[0][0][0] == 1


def test_a_mask_that_is_older_than_the_newest_slots_shows_none_of_them() -> None:
    vectors = filled({0, 1, 400})
    best, also, _ = vectors.find_nearest(unit(400)[np.newaxis], b"\1\1", 9, (400, 9_999))
    assert {slot for slot, _ in best} == {0, 1}
    assert also == [None, None]


def test_what_is_as_near_as_another_comes_by_its_slot() -> None:
    vectors = VectorTable(SIZE)
    for slot in (9, 3, 5):
        vectors.put(slot, unit(1))
    assert [slot for slot, _ in vectors.find_nearest(unit(1)[np.newaxis], None, 2, ())[0]] == [3, 5]


ROW_SIZE = 4


def key(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def rows(numbers: Iterable[int]) -> np.ndarray:
    return np.array([[number, 0.5, -1, 0.25] for number in numbers], np.float32)


def keep(folder: Path, numbers: Iterable[int], most: int = 100) -> None:
    kept = VectorFile(folder, "model/1", ROW_SIZE, most)
    numbers = list(numbers)
    kept.add([key(number) for number in numbers], rows(numbers))
    kept.close()


def held(folder: Path, numbers: Iterable[int], model: str = "model/1") -> set[int]:
    kept = VectorFile(folder, model, ROW_SIZE)
    found = {number for number in numbers if kept.get(key(number)) is not None}
    kept.close()
    return found


def the_file(folder: Path) -> Path:
    (file,) = folder.glob("*.vectors")
    return file


def test_what_was_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    keep(tmp_path, [1, 2])
    keep(tmp_path, [3])
    kept = VectorFile(tmp_path, "model/1", ROW_SIZE)
    found = kept.get(key(2))
    assert found is not None
    assert (found == rows([2])[0]).all()
    assert kept.get(key(9)) is None
    kept.close()
    assert held(tmp_path, range(5)) == {1, 2, 3}


def test_another_model_has_vectors_of_its_own(tmp_path: Path) -> None:
    keep(tmp_path, [1])
    assert held(tmp_path, [1], "model/2") == set()
    assert held(tmp_path, [1]) == {1}


def test_nobody_else_may_read_them(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "vectors"
    keep(folder, [1])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    the_file(folder).chmod(0o644)
    keep(folder, [2])
    assert stat.S_IMODE(the_file(folder).stat().st_mode) == 0o600


@loop_over("cut", [1, 20, 43])
def test_a_last_one_that_is_not_whole_is_left_out(tmp_path: Path, cut: int) -> None:
    keep(tmp_path, [1, 2])
    file = the_file(tmp_path)
    file.write_bytes(file.read_bytes()[:-cut])
    keep(tmp_path, [3])
    assert held(tmp_path, [1, 2, 3]) == {1, 3}


def test_one_that_was_changed_is_not_taken(tmp_path: Path) -> None:
    keep(tmp_path, [1, 2])
    file = the_file(tmp_path)
    content = bytearray(file.read_bytes())
    content[-6] ^= 1
    file.write_bytes(content)
    assert held(tmp_path, [1, 2]) == {1}


@loop_over("content", [b"", b"something else", b"\0" * 10_000])
def test_a_file_of_something_else_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    keep(tmp_path, [1])
    the_file(tmp_path).write_bytes(content)
    assert held(tmp_path, [1]) == set()
    keep(tmp_path, [2])
    assert held(tmp_path, [1, 2]) == {2}


def test_a_second_process_reads_and_does_not_write(tmp_path: Path) -> None:
    keep(tmp_path, [1])
    first = VectorFile(tmp_path, "model/1", ROW_SIZE)
    assert first.get(key(1)) is not None
    second = VectorFile(tmp_path, "model/1", ROW_SIZE)
    assert second.get(key(1)) is not None
    second.add([key(2)], rows([2]))
    second.close()
    first.add([key(3)], rows([3]))
    first.close()
    assert held(tmp_path, [1, 2, 3]) == {1, 3}


def test_when_it_is_full_what_was_not_used_makes_room(tmp_path: Path) -> None:
    keep(tmp_path, range(8), most=8)
    kept = VectorFile(tmp_path, "model/1", ROW_SIZE, 8)
    assert kept.get(key(5)) is not None
    kept.add([key(20)], rows([20]))
    assert kept.get(key(5)) is not None
    kept.close()
    assert held(tmp_path, [*range(8), 20]) == {5, 20}
    assert the_file(tmp_path).stat().st_size < 200


def test_when_all_that_it_holds_is_used_it_takes_no_more(tmp_path: Path) -> None:
    kept = VectorFile(tmp_path, "model/1", ROW_SIZE, 2)
    kept.add([key(1), key(2)], rows([1, 2]))
    kept.add([key(3)], rows([3]))
    kept.close()
    assert held(tmp_path, [1, 2, 3]) == {1, 2}


def test_a_place_that_cannot_be_written_is_no_place_and_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    kept = VectorFile(tmp_path / "file" / "vectors", "model/1", ROW_SIZE)
    kept.add([key(1)], rows([1]))
    assert kept.get(key(1)) is None
    kept.close()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    keep(tmp_path, [1])
    file = the_file(tmp_path)
    precious = tmp_path / "precious"
    precious.write_text("something of value")
    file.unlink()
    file.symlink_to(precious)
    keep(tmp_path, [2])
    assert precious.read_text() == "something of value"
