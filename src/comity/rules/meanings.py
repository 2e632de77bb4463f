"""What an argument is to its tool: as its operator says, else as its name does."""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final

_LONGEST: Final = 120
_SEPARATORS: Final = re.compile(r"[\s_.-]+")
_NUMBERS: Final = re.compile(r"\[\d+\]")


class Meaning(StrEnum):
    """What an argument is to the tool that gets it."""

    COMMAND = "command"
    WORDS = "words"
    CODE = "code"
    SQL = "sql"
    PATH = "path"
    URL = "url"
    HOST = "host"
    METHOD = "method"
    MODE = "mode"
    ACTION = "action"
    TEXT = "text"
    UNKNOWN = "unknown"


_NAMES: Final[Mapping[Meaning, str]] = {
    Meaning.COMMAND: "command cmd commandline shell shellcommand bash exec execute run cmdline",
    Meaning.WORDS: "args arguments argv parameters flags options cmdargs commandargs",
    Meaning.CODE: "code source sourcecode script program python pythoncode snippet pycode",
    Meaning.SQL: "sql statement sqlquery sqlstatement",
    Meaning.PATH: (
        "path file filename filepath cwd directory dir folder root workdir workingdirectory "
        "paths files destination dest target src filenames filepaths directories outputpath"
    ),
    Meaning.URL: "url uri href link endpoint urls links uris webhook callback callbackurl baseurl",
    Meaning.HOST: "host hostname address ip ipaddress domain server hosts addresses remote proxy",
    Meaning.METHOD: "method httpmethod verb requestmethod",
    Meaning.MODE: "mode openmode filemode accessmode",
    Meaning.ACTION: "action operation op",
}
MEANINGS: Final = {name: meaning for meaning, names in _NAMES.items() for name in names.split()}


def meaning_of(where: str, name: str, told: Mapping[str, str]) -> Meaning:
    """By the operator's word on its dotted path or its name; else by what its name says."""
    if told:
        said = told.get(_NUMBERS.sub("", where)) or told.get(name)
        if said is not None:
            return Meaning(said)
    return _by_name(name[:_LONGEST])


@lru_cache(4096)
def _by_name(name: str) -> Meaning:
    return MEANINGS.get(_SEPARATORS.sub("", name).casefold(), Meaning.UNKNOWN)
