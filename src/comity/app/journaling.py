"""The journal as the settings say: where it is kept, who signs it, what may stand in it."""

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from comity.adapters.log_lines import LONGEST_EXCEPTION, hide_with
from comity.adapters.signing import load_or_make
from comity.adapters.state_folder import prepare_state_folder, state_folder
from comity.adapters.stores import file_of
from comity.adapters.witnesses import LastSignedFile, open_witness
from comity.app.reaching import proxies_of
from comity.config import Settings
from comity.kernel.checkpoints import Checkpoints
from comity.kernel.gate import Gate
from comity.kernel.journal import Journal, Pace
from comity.kernel.recording import Arguments, Recorder, Redact
from comity.kernel.retention import Retention
from comity.kernel.snapshot import Snapshot
from comity.kernel.underway import Underway
from comity.ports.journaling import Signer
from comity.rules.keys import mac
from comity.rules.proof import name_of
from comity.rules.proof_chain import CheckpointInterval
from comity.rules.redaction import Redactor
from comity.rules.secret_names import is_secret_name

log = logging.getLogger(__name__)

KEY_NAME: Final = "audit-log.key"
LONG: Final = 20
"""What is this long and one word may be a secret, whatever its name."""


@dataclass(frozen=True, slots=True)
class Journaling:
    """The journal, who writes into it what calls do, and who leaves secrets out of it."""

    journal: Journal
    recorder: Recorder
    redactor: Redactor
    checkpoints: Checkpoints | None = None

    @property
    def redact(self) -> Redact:
        return self.redactor.redact

    def attach(self, gate: Gate, underway: Underway) -> "Journaling":
        """Have every call written down that passes this gate."""
        gate.admission.recording = self.recorder
        underway.recorder = self.recorder
        if gate.retries is not None:
            gate.retries.told.append(self.recorder.retried)
        return self


@asynccontextmanager
async def journaled(
    settings: Settings, snapshot: Snapshot, pepper: bytes
) -> AsyncGenerator[Journaling]:
    """The journal kept, signed and thinned out, until the way out."""
    signer = make_signer(settings)
    journal = Journal(snapshot.records.journal, node_of(settings, signer), _pace(settings))
    journal.is_lasting = bool(settings.store_url)
    key = mac(pepper, b"redaction")
    redactor = Redactor(known_secrets(settings, pepper), key)
    hide_with(partial(redactor.words, longest=LONGEST_EXCEPTION))
    recorder = Recorder(journal, redactor.redact, Arguments(settings.journal_arguments), key)
    recorder.begin_run(secrets.token_hex(8))
    async with AsyncExitStack() as ending:
        checkpoints = None
        if signer is not None:
            checkpoints = _checkpoints(settings, journal, signer)
            # After the last entry is kept, so that it is signed too.
            ending.push_async_callback(checkpoints.close)
        await ending.enter_async_context(journal.kept())
        if settings.journal_retention:
            thinning = asyncio.ensure_future(
                Retention(journal, settings.journal_retention).keep_on()
            )
            ending.callback(thinning.cancel)
        yield Journaling(journal, recorder, redactor, checkpoints)


def make_signer(settings: Settings) -> Signer | None:
    """Who signs here; nobody where nothing is kept. The key is made where there is none."""
    file = signing_key_file(settings)
    if file is None:
        return None
    is_in_state_folder = not settings.journal_key_file and file_of(settings.store_url) is None
    if is_in_state_folder:
        prepare_state_folder()
    is_new = not file.exists()
    signer = load_or_make(file)
    if is_new:
        # Beside a SQLite file nobody overlooks it; in the state folder of a server one may.
        log.log(
            logging.WARNING if is_in_state_folder else logging.INFO,
            "Created the key that signs the audit log: %s. Back it up. If it is lost, Comity "
            "creates another and begins a new chain; earlier entries stay provable with the "
            "public key %s.",
            *(file, signer.key),
        )
    return signer


def signing_key_file(settings: Settings) -> Path | None:
    """Where the key is that signs the audit log: as the settings say, or beside a SQLite file.

    The key for a log in PostgreSQL stands in this user's state folder: each machine has its own.
    """
    if settings.journal_key_file:
        return Path(settings.journal_key_file)
    if not settings.store_url:
        return None
    file = file_of(settings.store_url)
    return state_folder() / KEY_NAME if file is None else file.with_name(f"{file.name}.journal-key")


def node_of(settings: Settings, signer: Signer | None) -> str:
    """What this node's chain is called: as told, or after its key, or after its machine."""
    if settings.journal_node:
        return settings.journal_node
    return socket.gethostname() if signer is None else name_of(signer.key)


def known_secrets(settings: Settings, pepper: bytes) -> Iterator[str]:
    """What the gateway was given that nobody else should read."""
    yield pepper.decode("latin-1")
    yield pepper.hex()
    yield from _in_address(settings.store_url)
    yield from _in_address(settings.ask_webhook)
    for hook in settings.hook_rows:
        yield from _lines_of(hook.secret_file)
    for server in settings.servers:
        yield from _in_address(server.url)
        for name, value in (*server.env.items(), *server.headers.items()):
            if _may_be_secret(name, value):
                yield value
                # Of `Bearer XYZ` the second word is the secret.
                yield value.rpartition(" ")[2]


def _lines_of(file: str) -> Iterator[str]:
    """The secrets in a file; where it cannot be read, whoever needs it says so."""
    with suppress(OSError):
        yield from Path(file).read_text("latin-1").split()


def _may_be_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or (len(value) >= LONG and not set(value) & set(" /\\"))


def _in_address(url: str) -> Iterator[str]:
    try:
        password = urlsplit(url).password
    except ValueError:
        return
    if password:
        yield password


def _pace(settings: Settings) -> Pace:
    # Half of what is promised: the rest is the time that a commit takes.
    linger = min(settings.durable_within / 2, timedelta(seconds=10))
    return Pace(linger, settings.journal_patience, settings.journal_most_waiting)


def _checkpoints(settings: Settings, journal: Journal, signer: Signer) -> Checkpoints:
    where = settings.checkpoint_file
    witnesses = [open_witness(where, proxies_of(settings))] if where else []
    interval = CheckpointInterval(settings.checkpoint_every, settings.checkpoint_within)
    key_file = signing_key_file(settings)
    last = None if key_file is None else LastSignedFile(_beside(key_file))
    return Checkpoints(journal, signer, witnesses, interval, last)


def _beside(key_file: Path) -> Path:
    return key_file.with_name(f"{key_file.name}.last-signed")
