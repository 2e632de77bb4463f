"""Logs a trouble once when it begins and once when it ends, however often it is met meanwhile."""

import logging


class TroubleLog:
    """One trouble that lasts: `begins` may hold a place for its cause."""

    def __init__(self, log: logging.Logger, begins: str, ends: str) -> None:
        self._log = log
        self._begins = begins
        self._ends = ends
        self._is_on = False

    def begin(self, *cause: object) -> None:
        if not self._is_on:
            self._is_on = True
            self._log.warning(self._begins, *cause)

    def end(self) -> None:
        if self._is_on:
            self._is_on = False
            self._log.warning(self._ends)
