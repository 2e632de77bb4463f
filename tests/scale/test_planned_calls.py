"""100,000 requests, valid and hostile: plans change neither an answer nor a record."""

from pathlib import Path
from typing import Final

import pytest

from tests.gateway.planned_scene import check_coverage, compare_gateways

REQUESTS: Final = 100_000


@pytest.mark.timeout(3600)
async def test_many_calls_with_and_without_plans_are_equal(tmp_path: Path) -> None:
    check_coverage(await compare_gateways(tmp_path, REQUESTS, seed=16), REQUESTS)
