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
from comity.adapters.stores import file_of
from comity.adapters.witnesses import open_witness
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
from comity.rules.redaction import Redactor
from comity.rules.secret_names import is_secret_name

log = logging.getLogger(__name__)

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
    """Who signs here; nobody where nothing is kept, or where nobody said with what."""
    if settings.journal_key_file:
        return load_or_make(Path(settings.journal_key_file))
    file = file_of(settings.store_url)
    if file is not None:
        return load_or_make(file.with_name(f"{file.name}.journal-key"))
    if settings.store_url:
        log.warning("nobody signs the journal: name a file with key_file in [journal]")
    return None


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
    witnesses = [open_witness(where)] if where else []
    every, within = settings.checkpoint_every, settings.checkpoint_within
    return Checkpoints(journal, signer, witnesses, every, within)
