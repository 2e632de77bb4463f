"""Recognizes secrets by value, by form and by name."""

import base64
import json
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Final
from urllib.parse import quote, quote_plus

from comity.toolkit.text import has_unsafe

SHORTEST: Final = 6
_MIN_ENCODED: Final = 7
_LOWER_HEX: Final = re.compile(r"%[0-9A-F]{2}")

type Tree = dict[str, "Tree"]


def spellings_of(known: Iterable[str]) -> dict[str, str]:
    """Return every encoding of the known values, each with its value."""
    found: dict[str, str] = {}
    for value in known:
        for line in value.splitlines():
            said = line.strip()
            if len(said) >= SHORTEST:
                found |= {written: said for written in _encodings_of(said) if written not in found}
    return found


def _encodings_of(value: str) -> Iterator[str]:
    yield value
    for encoded in (quote(value, safe=""), quote(value), quote_plus(value)):
        yield encoded
        yield _LOWER_HEX.sub(lambda found: found[0].lower(), encoded)
    for ascii_only in (True, False):
        yield json.dumps(value, ensure_ascii=ascii_only)[1:-1]
    data = value.encode("utf-8", "surrogatepass")
    for offset in range(3):
        for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
            inner = _inside(alphabet(bytes(offset) + data).decode(), offset, len(data))
            if len(inner) >= _MIN_ENCODED:
                yield inner


def _inside(encoded: str, offset: int, length: int) -> str:
    """Return the base64 digits that depend on the value alone, not on the bytes around it."""
    first = (0, 2, 3)[offset]
    return encoded[first : (offset + length) * 8 // 6]


def compile_pattern(written: Mapping[str, str]) -> re.Pattern[str] | None:
    """Compile one pattern for all spellings, longest first; None if there are none.

    The pattern is a tree, so that a position in a text costs the same for many spellings as for
    few.
    """
    tree: Tree = {}
    for each in written:
        branch = tree
        for letter in each:
            branch = branch.setdefault(letter, {})
        branch[""] = {}
    return re.compile(_of(tree)) if tree else None


def compile_hint(written: Iterable[str]) -> re.Pattern[str] | None:
    """Compile a pattern that matches every text with a spelling, and few other texts.

    The pattern holds one short piece of each spelling, which begins with a rare letter. Most
    positions of most texts are then skipped at once.
    """
    pieces = {_rarest(each): "" for each in written}
    return compile_pattern(pieces)


def hint_letters(written: Iterable[str]) -> str:
    """Return letters of which every text that the hint matches has one.

    A search for a letter costs almost nothing, and texts without a digit or a rare letter have
    none of these.
    """
    return "".join(sorted({_rarest(each)[0] for each in written}))


def _rarest(text: str) -> str:
    last = len(text) - _PIECE
    start = min(range(last + 1), key=lambda place: _OFTEN.get(text[place], 0))
    return text[start : start + _PIECE]


_PIECE: Final = 4
_OFTEN: Final = {letter: often for often, letter in enumerate("'\"QZXJ#$0123456789")} | {
    letter: often
    for often, letter in enumerate("KVWYBGFUPMHLDCRNIOATSEqjzx@&kvwybgfpumhldcrnioatse=:-._/ ", 30)
}
"""The frequency rank of letters in texts; letters not listed are rarer."""


def _of(tree: Tree) -> str:
    run = ""
    while len(tree) == 1 and "" not in tree:
        letter, tree = next(iter(tree.items()))
        run += re.escape(letter)
    longer = [re.escape(letter) + _of(below) for letter, below in tree.items() if letter]
    if not longer:
        return run
    return run + "(?:" + "|".join(longer) + (")?" if "" in tree else ")")


_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_MAX_REMEMBERED_LENGTH: Final = 64


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET: Final = _words(
    """password passwords passwd passphrase passcode pwd pw secret secrets token tokens
    authorization auth apikey apikeys cookie cookies session sessions sessionid credential
    credentials creds bearer jwt otp totp pin cvv cvc ssn mnemonic privatekey secretkey accesskey
    signingkey encryptionkey authtoken accesstoken refreshtoken idtoken clientsecret userpassword
    connectionstring authheader sid csrf xsrf pat"""
)
_KEYS: Final = _words(
    "api private secret access signing encryption master account shared service auth"
)
_ABOUT: Final = _words(
    """count counts limit limits type types length lengths budget usage size expiry expires expired
    expiration seconds ttl max min num number total used policy name names hint enabled required
    strategy mode method scheme provider url uri endpoint"""
)
"""With one of these words, a name describes a secret and does not hold one."""


def is_secret_name(name: str) -> bool:
    """Return whether the value under this name is a secret."""
    return _remembered(name) if len(name) <= _MAX_REMEMBERED_LENGTH else _is_secret(name)


def _is_secret(name: str) -> bool:
    if not name.isascii():  # fullwidth letters and the like look the same to a reader
        name = unicodedata.normalize("NFKC", name)
    words = [word.lower() for word in _WORD.findall(name)]
    if not _SECRET.isdisjoint(words):
        return _ABOUT.isdisjoint(words)
    return any(word == "key" and before in _KEYS for before, word in pairwise(words))


_remembered: Final = lru_cache(maxsize=4096)(_is_secret)


type Hide = Callable[[str], str]
"""Returns the replacement of a secret."""

MIN_FORM_LENGTH: Final = 8
_RUN_LENGTH: Final = 16
_RUN: Final = re.compile(rf"[A-Za-z0-9_.-]{{{_RUN_LENGTH}}}")
_RUN_CHARACTERS: Final = frozenset(f"{string.ascii_letters}{string.digits}_.-".encode())
_UNSAFE_MARK: Final = b"!"
_MARK_OF_BYTE: Final = bytes(
    ord("+")
    if byte in _RUN_CHARACTERS
    else ord("!" if byte < 128 and has_unsafe(chr(byte)) else " ")
    for byte in range(256)
)
_RUN_MARKS: Final = b"+" * _RUN_LENGTH
"""A run after `_MARK_OF_BYTE` has made each of its characters a plus."""

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
# Bounded and possessive repeats keep the search fast on texts made to slow it down.
_URL_PASSWORD: Final = re.compile(r"(://[^/\s:@?#]{0,256}+:)([^/\s@?#]{1,1024}+)(?=@)")
_NAMED_SECRET: Final = re.compile(
    r"\b[A-Za-z][\w-]{1,63}+\\{0,3}+[\"']?+\s{0,3}+(?:=|:|%3[AaDd])\s{0,3}+"
)
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
    """Return whether the text is already a mark for a secret."""
    return _HIDDEN.fullmatch(text) is not None


def strip_scheme(text: str) -> str:
    """Return a credential without the name of its scheme."""
    found = _SCHEME.fullmatch(text)
    return found[3] if found is not None else text


def without_secrets(text: str) -> str:
    """Return the text with `[secret]` for everything that looks like a secret.

    Unlike the marks of `Redactor`, these replacements cannot be compared.
    """
    return hide_forms(text, lambda _: "[secret]")


def without_clear_secrets(text: str) -> str:
    """Return one of Comity's own messages without secrets.

    Such a message names headers and variables but not their values. Only text that looks like a
    secret by itself is replaced: in `Authorization: the variable X is not set`, the word after the
    colon is none.
    """
    return _hide_clear(text, lambda _: "[secret]") if len(text) >= MIN_FORM_LENGTH else text


def is_plain(text: str) -> bool:
    """Return whether neither `hide_forms` nor `escape_unsafe` would change a text.

    A text that looks as if they might is not plain either. Every text that `hide_forms` changes has
    a sign before a value, a long run of letters and digits, or the name of a scheme. The search
    works on bytes, so that no word and no lower letter of a long text becomes an object. One pass
    finds both runs and control characters. A pattern takes far longer for thousands of characters.
    """
    if "=" in text or ":" in text or "%" in text or "-" in text:
        # All signs belong to forms, and no form is that short.
        return len(text) < MIN_FORM_LENGTH and not has_unsafe(text)
    # A text of a client may hold halves of surrogate pairs. They are in no run and in no scheme.
    data = text.encode("utf-8", "surrogatepass")
    marks = data.translate(_MARK_OF_BYTE)
    if _RUN_MARKS in marks or _UNSAFE_MARK in marks:
        return False
    lowered = data.lower()
    if b"bearer" in lowered or b"basic" in lowered or b"dpop" in lowered:
        return False
    return text.isascii() or text.isprintable() or not has_unsafe(text)


def hide_forms(text: str, hide: Hide) -> str:
    """Return the text with everything that looks like a secret replaced."""
    return _hide_introduced(_hide_clear(text, hide), hide) if len(text) >= MIN_FORM_LENGTH else text


def _hide_clear(text: str, hide: Hide) -> str:
    """Replace text that is a secret in any position."""
    if "-----BEGIN" in text:
        text = _PEM.sub(lambda found: hide(found[0]), text)
    if "://" in text and "@" in text:
        text = _URL_PASSWORD.sub(lambda found: found[1] + _hide_once(found[2], hide), text)
    if _RUN.search(text) is not None:
        text = _BEGUN.sub(lambda found: hide(found[0]), text)
    lowered = text.lower()
    if "bearer" in lowered or "basic" in lowered or "dpop" in lowered:
        text = _SCHEME.sub(lambda found: _credential(found, hide), text)
    return text


def _hide_introduced(text: str, hide: Hide) -> str:
    """Replace the values that follow the name of a secret."""
    if "=" in text or ":" in text or "%3" in text:
        text = _hide_named(text, _NAMED_SECRET, hide)
        text = _hide_named(text, _PAIRED, hide) if "value" in text else text
    return _hide_named(text, _OPTION, hide) if "-" in text and " " in text else text


def _credential(match: re.Match[str], hide: Hide) -> str:
    scheme, gap, said = match.groups()
    # "Basic knowledge" is prose and not a credential.
    is_prose = said.isalpha() and said.islower() and len(said) < 20
    return match[0] if is_prose else scheme + gap + hide(said)


def _hide_named(text: str, names: re.Pattern[str], hide: Hide) -> str:
    """Replace the values that follow names matched by `names`, if the name is secret."""
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
        pieces += (
            text[done : value.start(value.lastindex)],
            _hide_once(value[value.lastindex], hide),
        )
        done = value.end(value.lastindex)
    return "".join((*pieces, text[done:])) if pieces else text


def _hide_once(text: str, hide: Hide) -> str:
    return text if is_hidden(text) else hide(text)
