"""The table `[registration]`: servers that agents register at run time. (MGP §15.4, D-30)"""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from comity.config.document import ConfigValue
from comity.config.fields import FieldType, number_type, setting, text_list_type
from comity.servers.registration.rules import pattern_problem

type RegisteredUntil = Literal["session", "deregistered"]

_COUNT: Final = number_type(1, 10_000)
_FOLDERS: Final = text_list_type(r"/.+|~(/.*)?", "a folder, as /srv/scripts")
_HOSTS: Final = text_list_type(r"\.?[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", "tools.example.org")


def _commands(written: ConfigValue) -> tuple[str, ...]:
    for item in written.items():
        problem = pattern_problem(item.text())
        if problem is not None:
            raise item.wrong(problem)
    return tuple(item.text() for item in written.items())


def _namespace(written: ConfigValue) -> str:
    if not re.fullmatch("[a-z0-9]+", written.text()):
        raise written.wrong("must be a word of small letters and digits")
    return written.text()


_COMMANDS: Final = FieldType(_commands, {"type": "array", "items": {"type": "string"}})
_NAMESPACE: Final = FieldType(_namespace, {"type": "string", "pattern": "^[a-z0-9]+$"})


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """The servers that agents may register, from where, and for how long."""

    commands: tuple[str, ...] = setting(
        (),
        "The commands that agents may register, word by word; `*` in a word, `...` for the rest.",
        _COMMANDS,
    )
    folders: tuple[str, ...] = setting(
        (),
        "The folders whose scripts agents may register with `python`; Comity checks each script.",
        _FOLDERS,
    )
    hosts: tuple[str, ...] = setting(
        (), "The hosts of URLs that agents may register though they are not public.", _HOSTS
    )
    from_network: bool = setting(
        False, "Whether any client with credentials may register, and not this machine alone."
    )
    namespace: str = setting(
        "dynamic", "The word before the dot in the ID of a registered server.", _NAMESPACE
    )
    max_servers: int = setting(20, "The servers registered at once.", _COUNT)
    max_servers_per_principal: int = setting(5, "The number of them by one principal.", _COUNT)
    lifetime: RegisteredUntil = setting(
        "session", "Until when a server stays: its client's session ends, or it is deregistered."
    )
    max_lifetime: timedelta = setting(
        timedelta(hours=8), "The maximum lifetime of a registered server, unless `persist` is set."
    )
    persist: bool = setting(
        False, 'Whether a server outlives a restart; needs `lifetime = "deregistered"`.'
    )
    creator_may_call: bool = setting(
        False, "Whether the principal that registers a server is granted its tools."
    )
    allow_code_tools: bool = setting(
        False, "Whether agents that were granted `code_execution` may make tools of code."
    )
    sandbox: bool = setting(
        True, "Whether registered programs run only where this machine has a sandbox for them."
    )
    readable_folders: tuple[str, ...] = setting(
        (), "The folders that registered programs may read, beside those of the system.", _FOLDERS
    )
    writable_folders: tuple[str, ...] = setting(
        (), "The folders that registered programs may write, beside one of their own.", _FOLDERS
    )

    @property
    def ends_with_session(self) -> bool:
        return self.lifetime == "session"

    @property
    def is_kept(self) -> bool:
        return self.persist and not self.ends_with_session
