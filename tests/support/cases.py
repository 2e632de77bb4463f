"""Many quick cases in one test: `loop_over` stands where `pytest.mark.parametrize` could.

A case of pytest costs several milliseconds beside what it does, and far more in a run with several
workers. Where a case takes no time, one test goes through all of them and tells each that fails.
"""

import inspect
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

MOST_TOLD = 10
LONGEST_LABEL = 120

type CaseFunction = Callable[..., Any]
type Row = tuple[str, dict[str, Any]]
type Labels = Sequence[str] | Callable[[Any], object] | None
type Ids = Iterable[str] | Callable[[Any], object] | None


def loop_over(
    names: str | Sequence[str], cases: Iterable[Any], *, ids: Ids = None
) -> Callable[[CaseFunction], CaseFunction]:
    """Call the test once for each case, as `pytest.mark.parametrize` would, but in one test.

    Fixtures are shared by all cases; only `tmp_path` is a new folder for each of them. A test that
    takes other fixtures with a state of their own has to use `pytest.mark.parametrize`.
    """
    parameters = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
    labels = ids if ids is None or callable(ids) else list(ids)
    rows = list(_read_rows(parameters, list(cases), labels))

    def decorate(test: CaseFunction) -> CaseFunction:
        assert not hasattr(test, "is_hypothesis_test"), "a property cannot be looped over"
        signature = inspect.signature(test)
        others = [each for each in signature.parameters.values() if each.name not in parameters]

        loop = _loop_async if inspect.iscoroutinefunction(test) else _loop
        run = loop(test, rows)
        run.__signature__ = signature.replace(parameters=others)
        return run

    return decorate


def _loop(test: CaseFunction, rows: list[Row]) -> CaseFunction:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        failures = FailedCases(len(rows))
        for number, (label, values) in enumerate(rows):
            with failures.note(label):
                test(**_give_folder(fixtures, number), **values)
        failures.tell()

    return run


def _loop_async(test: CaseFunction, rows: list[Row]) -> CaseFunction:
    @wraps(test)
    async def run(**fixtures: Any) -> None:
        failures = FailedCases(len(rows))
        for number, (label, values) in enumerate(rows):
            with failures.note(label):
                await test(**_give_folder(fixtures, number), **values)
        failures.tell()

    return run


class FailedCases:
    """What failed among some cases, to be told at once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._told: list[str] = []
        self._skipped: list[str] = []

    @contextmanager
    def note(self, label: str) -> Generator[None]:
        """What fails in this block is told at the end, and the next case goes on."""
        try:
            yield
        except pytest.skip.Exception as skipped:
            self._skipped.append(str(skipped))
        except (Exception, pytest.fail.Exception) as error:
            self._told.append(f"[{label}]\n{_explain(error)}")

    def tell(self) -> None:
        """Fail if any case failed, or if there was none; skip if all were skipped."""
        if self._told or not self._count:
            first = "\n".join(self._told[:MOST_TOLD])
            pytest.fail(f"{len(self._told)} of {self._count} cases failed\n{first}", pytrace=False)
        if len(self._skipped) == self._count:
            pytest.skip(self._skipped[0])


def _read_rows(parameters: list[str], cases: list[Any], ids: Labels) -> Generator[Row]:
    for number, case in enumerate(cases):
        # What `pytest.param` makes has no public class.
        is_param = type(case).__name__ == "ParameterSet"
        assert not (is_param and case.marks), "a case of a loop has no marks"
        values = case.values if is_param else (case,) if len(parameters) == 1 else case
        label = case.id if is_param and case.id else _label(values, number, ids)
        yield label, dict(zip(parameters, values, strict=True))


def _label(values: Sequence[Any], number: int, ids: Labels) -> str:
    if callable(ids):
        text = "-".join(str(ids(each)) for each in values)
    elif ids is not None:
        text = str(ids[number])
    else:
        text = ", ".join(map(repr, values))
    return text if len(text) <= LONGEST_LABEL else text[:LONGEST_LABEL] + "…"


def _give_folder(fixtures: Mapping[str, Any], number: int) -> dict[str, Any]:
    given = dict(fixtures)
    if isinstance(folder := given.get("tmp_path"), Path):
        given["tmp_path"] = folder / f"case-{number}"
        given["tmp_path"].mkdir()
    return given


def _explain(error: BaseException) -> str:
    if isinstance(error, pytest.fail.Exception) and not error.pytrace:
        return str(error)
    # The first two frames are the loop itself.
    frames = traceback.extract_tb(error.__traceback__)[2:] or traceback.extract_tb(
        error.__traceback__
    )
    return "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
