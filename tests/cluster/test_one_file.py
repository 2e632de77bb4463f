"""One gateway on a SQLite file that another process changes, and that outlives the gateway."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from comity.adapters import stores
from comity.kernel.minting import mint
from comity.wire.grants import CALL, Effect, Grant
from comity.wire.parties import Key, Party
from tests.cli.program import EXAMPLE
from tests.cluster.callers import Ended, calling
from tests.interop.processes import comity

WITHIN = 1.0
PEPPER = "pepper-" * 8
ENVIRONMENT = {"COMITY_PEPPER": PEPPER}
GRANT = Grant("agent:ci", CALL, "example/echo", Effect.ALLOW)

pytestmark = pytest.mark.timeout(180)


def written(folder: Path) -> tuple[Path, str]:
    """A configuration, and the address of its store."""
    url = f"sqlite:///{folder / 'comity.db'}"
    arguments = ", ".join(f'"{each}"' for each in EXAMPLE["args"])
    config = folder / "comity.toml"
    config.write_text(
        f'[identity]\nmode = "required"\n[store]\nurl = "{url}"\n'
        f'[[servers]]\nid = "example"\ncommand = "{EXAMPLE["command"]}"\nargs = [{arguments}]\n',
        encoding="utf-8",
    )
    return config, url


def succeeded(call: Ended) -> bool:
    return call.succeeded


def denied(call: Ended) -> bool:
    return call.error_type == "access_denied"


async def test_what_another_process_grants_counts_and_is_there_after_a_restart(
    tmp_path: Path,
) -> None:
    config, url = written(tmp_path)
    whole, record = mint(PEPPER.encode(), Key("", "agent:ci", b""))
    records = stores.open_store(url)
    with comity(config, ENVIRONMENT) as origin:
        # The gateway has made the file by now, and only its owner may read it.
        assert os.stat(url.removeprefix("sqlite:///")).st_mode & 0o077 == 0  # noqa: PTH116
        await records.open()
        await records.parties.put(Party("agent:ci"))
        await records.keys.put(record, datetime.now(UTC))
        async with calling([origin], whole, "example__echo", {"message": "x"}, 4) as calls:
            await calls.everywhere([origin], denied)
            await records.grants.put(GRANT)
            await calls.everywhere([origin], succeeded)
    with comity(config, ENVIRONMENT) as origin:
        async with calling([origin], whole, "example__echo", {"message": "x"}, 4) as calls:
            await calls.everywhere([origin], succeeded)
            assert not any(denied(call) for call in calls.ended)
            assert await records.grants.revoke("agent:ci", CALL, "example/echo")
            revoked = time.monotonic()
            await calls.until(lambda ended: any(call.began > revoked + WITHIN for call in ended))
            late = [call for call in calls.ended if call.began > revoked + WITHIN]
            assert [call for call in late if call.succeeded] == []
    used = await records.keys.get(record.id)
    assert used is not None
    assert used.last_used is not None
    await records.close()
