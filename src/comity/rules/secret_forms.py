"""Secrets that are known by how they look: by their beginning, or by what stands before them.

Every pattern takes time in proportion to the text: no repetition stands inside another, and each
begins with letters that are written out. Whoever makes a new kind of key gives it such a beginning
for this very purpose.
"""

import re
from collections.abc import Callable
from typing import Final

from comity.rules.secret_names import is_secret_name

type Hide = Callable[[str], str]
"""What stands in the place of a secret."""

_SHORTEST: Final = 8
_RUN: Final = re.compile(r"[A-Za-z0-9_.-]{16}")
_BEGINNINGS: Final = (
    r"s(?<![A-Za-z0-9]s)k-[A-Za-z0-9_-]{16,}",  # several model providers; not in "task-..."
    r"s(?<![A-Za-z0-9]s)k_(?:live|test)_[A-Za-z0-9]{10,}",
    r"r(?<![A-Za-z0-9]r)k_(?:live|test)_[A-Za-z0-9]{10,}",
    r"whsec_[A-Za-z0-9+/=_-]{16,}",
    r"gh[oprsu]_[A-Za-z0-9]{16,}",
    r"github_pat_[A-Za-z0-9_]{16,}",
    r"gl(?:pat|rt|dt|cbt|ptt|soat)-[A-Za-z0-9_.-]{16,}",
    r"gsk_[A-Za-z0-9]{16,}",
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"xapp-[A-Za-z0-9-]{10,}",
    r"A(?<![A-Za-z0-9]A)(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}",
    r"AIza[A-Za-z0-9_-]{30,}",
    r"ATATT3[A-Za-z0-9_=-]{16,}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{16,}",
    r"ya29\.[A-Za-z0-9_-]{16,}",
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{0,}",
    r"npm_[A-Za-z0-9]{16,}",
    r"pypi-[A-Za-z0-9_-]{16,}",
    r"cmty_[A-Za-z0-9]{1,16}_[A-Za-z0-9]{11}_[A-Za-z0-9]{20,}",
    r"hf_[A-Za-z0-9]{16,}",
    r"hvs\.[A-Za-z0-9_-]{16,}",
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"do[oprt]_v1_[A-Za-z0-9]{16,}",
    r"dckr_pat_[A-Za-z0-9_-]{16,}",
    r"shp(?:at|ca|pa|ss)_[A-Za-z0-9]{16,}",
    r"sq0(?:atp|csp)-[A-Za-z0-9_-]{16,}",
    r"lin_api_[A-Za-z0-9]{16,}",
    r"figd_[A-Za-z0-9_-]{16,}",
    r"rubygems_[A-Za-z0-9]{16,}",
    r"tvly-[A-Za-z0-9-]{16,}",
)
_BEGUN: Final = re.compile("|".join(_BEGINNINGS))
_PEM: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:.*?-----END [A-Z0-9 ]{0,60}-----|.*)",
    re.DOTALL,
)
_SCHEME: Final = re.compile(
    r"\b([Bb][Ee][Aa][Rr][Ee][Rr]|[Bb][Aa][Ss][Ii][Cc]|[Dd][Pp][Oo][Pp])(\s{1,4}|%20)"
    r"([A-Za-z0-9+/=_.~-]{8,})"
)
_IN_URL: Final = re.compile(r"(://[^/\s:@?#]{0,256}+:)([^/\s@?#]{1,1024}+)(?=@)")
_NAMED: Final = re.compile(r"\b[A-Za-z][\w-]{1,63}+\\{0,3}+[\"']?+\s{0,3}+(?:=|:|%3[AaDd])\s{0,3}+")
_OPTION: Final = re.compile(r"(?<!\w)--?[A-Za-z][\w-]{1,63}+[\"']?+,?+\s{1,3}+")
_PAIRED: Final = re.compile(
    r"(?:name|key|header|field)\\{0,3}+[\"']\s{0,3}+:\s{0,3}+\\{0,3}+[\"']([\w-]{1,64}+)\\{0,3}+[\"']"
    r"\s{0,3}+,\s{0,3}+\\{0,3}+[\"']value\\{0,3}+[\"']\s{0,3}+:\s{0,3}+"
)
_VALUE: Final = re.compile(
    r"\\{1,3}[\"']([^\"'\\]{1,4096})"
    r"|\"((?:[^\"\\]|\\.){1,4096})|'((?:[^'\\]|\\.){1,4096})"
    r"|(?:(?i:bearer|basic|dpop|token)\s{1,3})?+((?!\[secret)[^\s\"'&]{1,4096})"
)
_HIDDEN: Final = re.compile(r"\[secret(?::[0-9a-f]{8})?\]")


def is_hidden(text: str) -> bool:
    """Whether this stands for a secret already."""
    return _HIDDEN.fullmatch(text) is not None


def bare(text: str) -> str:
    """A credential without the name of its scheme."""
    found = _SCHEME.fullmatch(text)
    return found[3] if found is not None else text


def without_secrets(text: str) -> str:
    """The text without what looks like a secret, where nobody needs to compare them."""
    return hide_forms(text, lambda _: "[secret]")


def without_clear_secrets(text: str) -> str:
    """The same for a sentence of our own, which names headers and variables and not their values.

    Only what looks like a secret by itself is left out: in `Authorization: the variable X is not
    set` the word behind the colon is none.
    """
    return _hide_clear(text, lambda _: "[secret]") if len(text) >= _SHORTEST else text


def hide_forms(text: str, hide: Hide) -> str:
    """The text without what looks like a secret."""
    return _hide_introduced(_hide_clear(text, hide), hide) if len(text) >= _SHORTEST else text


def _hide_clear(text: str, hide: Hide) -> str:
    """Hide what is a secret wherever it stands."""
    if "-----BEGIN" in text:
        text = _PEM.sub(lambda found: hide(found[0]), text)
    if "://" in text and "@" in text:
        text = _IN_URL.sub(lambda found: found[1] + _once(found[2], hide), text)
    if _RUN.search(text) is not None:
        text = _BEGUN.sub(lambda found: hide(found[0]), text)
    lowered = text.lower()
    if "bearer" in lowered or "basic" in lowered or "dpop" in lowered:
        text = _SCHEME.sub(lambda found: _credential(found, hide), text)
    return text


def _hide_introduced(text: str, hide: Hide) -> str:
    """Hide what follows a word that says what it is."""
    if "=" in text or ":" in text or "%3" in text:
        text = _hide_named(text, _NAMED, hide)
        text = _hide_named(text, _PAIRED, hide) if "value" in text else text
    return _hide_named(text, _OPTION, hide) if "-" in text and " " in text else text


def _credential(found: re.Match[str], hide: Hide) -> str:
    scheme, gap, said = found.groups()
    # "Basic knowledge" is none.
    is_prose = said.isalpha() and said.islower() and len(said) < 20
    return found[0] if is_prose else scheme + gap + hide(said)


def _hide_named(text: str, names: re.Pattern[str], hide: Hide) -> str:
    """Hide what stands behind a name that says what it is."""
    pieces: list[str] = []
    done = 0
    for found in names.finditer(text):
        if found.start() < done or not is_secret_name(found[found.lastindex or 0]):
            continue
        if _HIDDEN.match(text, max(0, found.start() - 1)) is not None:
            continue
        value = _VALUE.match(text, found.end())
        if value is None or value.lastindex is None or is_hidden(value[value.lastindex]):
            continue
        pieces += (text[done : value.start(value.lastindex)], _once(value[value.lastindex], hide))
        done = value.end(value.lastindex)
    return "".join((*pieces, text[done:])) if pieces else text


def _once(said: str, hide: Hide) -> str:
    return said if is_hidden(said) else hide(said)
