"""Names whose values are secrets: by whole words, however they are put together.

`API-Key`, `api_key` and `apiKey` are one name. `tokenize` and `secretary` hold no such word, and
`token_count` and `max_tokens` are numbers of something.
"""

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise
from typing import Final

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LONGEST_REMEMBERED: Final = 64


def _words(said: str) -> frozenset[str]:
    return frozenset(said.split())


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
"""Beside one of these words a name says something about a secret, and is none."""


def is_secret_name(name: str) -> bool:
    """Whether what stands under this name is nobody's to read."""
    return _remembered(name) if len(name) <= _LONGEST_REMEMBERED else _is_secret(name)


def _is_secret(name: str) -> bool:
    if not name.isascii():  # wide letters and the like look the same to whoever reads them
        name = unicodedata.normalize("NFKC", name)
    words = [word.lower() for word in _WORD.findall(name)]
    if not _SECRET.isdisjoint(words):
        return _ABOUT.isdisjoint(words)
    return any(word == "key" and before in _KEYS for before, word in pairwise(words))


_remembered: Final = lru_cache(maxsize=4096)(_is_secret)
