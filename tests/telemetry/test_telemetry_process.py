"""What the operating system says of this process, held against what others read of it."""

import os
import time

import psutil
import pytest

from comity.telemetry import process
from comity.telemetry.process import ProcessMetrics


def told() -> dict[str, float]:
    found: dict[str, float] = {}
    for family in ProcessMetrics("1.2.3")():
        ((_, figure),) = family.samples
        assert isinstance(figure, int | float)
        found[family.name] = figure
    return found


def test_memory_files_and_start_are_what_others_read() -> None:
    figures, other = told(), psutil.Process()
    assert abs(figures["process_start_time_seconds"] - other.create_time()) < 2
    assert figures["process_resident_memory_bytes"] == pytest.approx(other.memory_info().rss, 0.2)
    assert figures["process_open_fds"] == pytest.approx(other.num_fds(), abs=2)
    assert 0 < figures["process_open_fds"] < figures["process_max_fds"]
    assert figures["process_virtual_memory_bytes"] > figures["process_resident_memory_bytes"]


def test_an_opened_file_is_counted() -> None:
    before = told()["process_open_fds"]
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
    try:
        assert told()["process_open_fds"] == before + 10
    finally:
        for each in opened:
            os.close(each)


def test_work_is_counted() -> None:
    before = told()["process_cpu_seconds_total"]
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert told()["process_cpu_seconds_total"] >= before + 0.05


def test_the_version_is_a_label_of_a_constant() -> None:
    (about, one) = ProcessMetrics("1.2.3")()[0].samples[0]
    assert (dict(about)["version"], one) == ("1.2.3", 1)


def test_a_system_that_tells_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_PROC", process.Path("/nowhere"))
    monkeypatch.setattr(process, "resource", None)
    before = time.time()
    names = told()
    assert {"process_open_fds", "process_max_fds"} & names.keys() == set()
    assert names["process_start_time_seconds"] >= before
