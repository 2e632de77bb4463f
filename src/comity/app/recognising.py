"""Who is recognised at the doors, and by what, as the settings say."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from comity.adapters.secret_files import read_secret, write_secret
from comity.adapters.tokens import open_tokens
from comity.app.reaching import proxies_of
from comity.config import Settings
from comity.kernel.identity import Identity, Register
from comity.kernel.snapshot import Snapshot
from comity.ports.identity import Tokens
from comity.rules.keys import mac
from comity.rules.tasks import TaskNames
from comity.surfaces.auth_member import AuthMember
from comity.surfaces.reception import Reception
from comity.wire.errors import Misconfigured

VARIABLE: Final = "COMITY_PEPPER"
LEAST_BYTES: Final = 16
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def refuse_an_open_door(settings: Settings) -> None:
    """Whoever needs no credentials is let in from this machine alone."""
    if settings.identity_mode == "local" and settings.host not in LOOPBACK:
        raise Misconfigured(
            f"listening on {settings.host} without asking who comes would open every tool to the "
            'network; set mode = "required" in [identity] and give out keys with `comity keys '
            "create`, or listen on 127.0.0.1"
        )


def make_tokens(settings: Settings) -> Tokens | None:
    if not settings.issuers:
        return None
    return open_tokens(settings.issuers, settings.clock_skew, proxies_of(settings))


def make_reception(settings: Settings, identity: Identity, snapshot: Snapshot) -> Reception:
    reception = Reception(
        identity,
        snapshot.grants,
        accepts_auth_member=settings.accept_auth_member,
        issuers=[each.issuer for each in settings.issuers],
        scopes=[scope for each in settings.issuers for scope in each.required_scopes],
        public_url=settings.public_url,
    )
    reception.known = snapshot
    return reception


def make_identity(
    settings: Settings, register: Register, tokens: Tokens | None, operator_token: str = ""
) -> Identity:
    is_local = settings.identity_mode == "local"
    return Identity(register, tokens, is_local=is_local, operator_token=operator_token)


def make_task_names(identity: Identity) -> TaskNames:
    """Every node that has the pepper knows the tasks that another gave out."""
    return TaskNames(mac(identity.pepper, b"task names"))


def make_auth_member(settings: Settings, identity: Identity) -> AuthMember:
    return AuthMember(identity if settings.accept_auth_member else None)


def pepper_of(
    settings: Settings, beside: Path | None, environ: Mapping[str, str] = os.environ
) -> bytes:
    """The secret without which a stored key recognises nothing.

    From the environment or a file that the operator names; or else made once, `beside` a store on
    this machine. Without any store it lasts as long as the process, as all keys do then.
    """
    if environ.get(VARIABLE):
        return _long_enough(environ[VARIABLE].encode(), VARIABLE)
    if settings.pepper_file:
        return _long_enough(
            read_secret(settings.pepper_file, "identity.pepper_file"), settings.pepper_file
        )
    return secrets.token_bytes(32) if beside is None else _made_once(beside)


def demand_pepper(settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
    """A store that several nodes share has no place beside it that all of them see."""
    if not is_pepper_given(settings, environ):
        raise Misconfigured(
            "PostgreSQL and [cluster] need a pepper that every node has: make one with `openssl "
            f"rand -hex 32`, and give it in {VARIABLE}, or in the file that pepper_file in "
            "[identity] names"
        )


def is_pepper_given(settings: Settings, environ: Mapping[str, str] = os.environ) -> bool:
    return bool(settings.pepper_file or environ.get(VARIABLE))


def _long_enough(pepper: bytes, where: str) -> bytes:
    found = pepper.strip()
    if len(found) < LEAST_BYTES:
        raise Misconfigured(
            f"{where} holds fewer than {LEAST_BYTES} bytes; make one with `openssl rand -hex 32`"
        )
    return found


def _made_once(file: Path) -> bytes:
    """Create the pepper; of two processes that start at once, both read the same one."""
    if not file.exists():
        try:
            write_secret(file, secrets.token_hex(32).encode(), keep_existing=True)
        except OSError as problem:
            raise Misconfigured(
                f"the secret for keys cannot be written to {file}: {problem.strerror}; "
                "name another with pepper_file in [identity]"
            ) from None
    return _long_enough(read_secret(file, "identity.pepper_file"), str(file))
