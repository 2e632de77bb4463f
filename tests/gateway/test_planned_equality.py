"""A call with a plan has the same answer, the same effects and the same record as one without.

`tests/scale` repeats this with many more requests.
"""

from pathlib import Path
from typing import Final

from tests.gateway.planned_scene import check_coverage, compare_gateways

REQUESTS: Final = 1000


async def test_calls_with_and_without_plans_are_equal(tmp_path: Path) -> None:
    check_coverage(await compare_gateways(tmp_path, REQUESTS, seed=15), REQUESTS)


async def test_calls_whose_records_are_durable_are_equal(tmp_path: Path) -> None:
    # Here the audit log must be on disk before a risky call leaves, so calls wait for it.
    seen = await compare_gateways(tmp_path, REQUESTS // 2, seed=17, has_store=True)
    check_coverage(seen, REQUESTS // 2)
    assert seen["dev.comity.call_intended"] > REQUESTS // 50
