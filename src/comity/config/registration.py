"""What can be decided of servers that agents register at run time, as rows. (MGP §15.4, D-30)"""

import re
from typing import Final

from comity.config.kinds import DURATION, TRUTH, Kind, number, one_of, texts
from comity.config.setting import Setting
from comity.rules.documents import Written
from comity.rules.registering import pattern_problem

_COUNT: Final = number(1, 10_000)
_FOLDERS: Final = texts(r"/.+|~(/.*)?", "a folder, as /srv/scripts")
_HOSTS: Final = texts(r"\.?[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", "tools.example.org")


def _commands(written: Written) -> tuple[str, ...]:
    for item in written.items():
        problem = pattern_problem(item.text())
        if problem is not None:
            raise item.wrong(problem)
    return tuple(item.text() for item in written.items())


def _namespace(written: Written) -> str:
    if not re.fullmatch("[a-z0-9]+", written.text()):
        raise written.wrong("must be a word of small letters and digits")
    return written.text()


_COMMANDS: Final = Kind(_commands, {"type": "array", "items": {"type": "string"}})
_NAMESPACE: Final = Kind(_namespace, {"type": "string", "pattern": "^[a-z0-9]+$"})

REGISTRATION: Final = (
    Setting(
        "commands",
        "registration",
        _COMMANDS,
        "commands that may be registered, word by word; `*` in a word, `...` for all further words",
        "registration_commands",
    ),
    Setting(
        "folders",
        "registration",
        _FOLDERS,
        "folders whose scripts may be registered with `python`; each is looked at first",
        "registration_folders",
    ),
    Setting(
        "hosts",
        "registration",
        _HOSTS,
        "hosts of urls that may be registered though they are not public",
        "registration_hosts",
    ),
    Setting(
        "from_network",
        "registration",
        TRUTH,
        "whether whoever comes with credentials may register, and not this machine alone",
        "registration_from_network",
    ),
    Setting(
        "namespace",
        "registration",
        _NAMESPACE,
        "what ids of registered servers begin with, before a dot",
        "registration_namespace",
    ),
    Setting("most", "registration", _COUNT, "servers registered at once", "registration_most"),
    Setting(
        "most_of_one", "registration", _COUNT, "of them, by one party", "registration_most_of_one"
    ),
    Setting(
        "lives",
        "registration",
        one_of("session", "deregistered"),
        "until when a registered server is there: its client's session ends, or it is deregistered",
        "registration_lives",
    ),
    Setting(
        "longest",
        "registration",
        DURATION,
        "how long a registered server is there at most, unless it is kept",
        "registration_longest",
    ),
    Setting(
        "keep",
        "registration",
        TRUTH,
        'whether it outlives a restart; with `lives = "deregistered"`',
        "registration_keep",
    ),
    Setting(
        "creator_may_call",
        "registration",
        TRUTH,
        "whether who registers a server is granted to call its tools",
        "registration_creator_may_call",
    ),
    Setting(
        "creating",
        "registration",
        TRUTH,
        "whether agents that were granted `code_execution` may make tools of code",
        "registration_creating",
    ),
    Setting(
        "confine",
        "registration",
        TRUTH,
        "whether registered programs run only where this machine can confine them",
        "registration_confine",
    ),
    Setting(
        "readable",
        "registration",
        _FOLDERS,
        "folders that registered programs may read, beside the system's own",
        "registration_readable",
    ),
    Setting(
        "writable",
        "registration",
        _FOLDERS,
        "folders that registered programs may write to, beside one of their own",
        "registration_writable",
    ),
)
