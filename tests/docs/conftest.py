"""The pages run as a reader runs them: servers are confined by default."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def confined_by_default() -> Iterator[None]:
    before = os.environ.pop("COMITY_POLICY_SANDBOX", None)
    yield
    if before is not None:
        os.environ["COMITY_POLICY_SANDBOX"] = before
