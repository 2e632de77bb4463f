"""Security schemes of a document, and the credentials that an operator configured for them."""

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from comity.errors import MalformedMessage
from comity.redaction.secrets import is_secret_name
from comity.servers.openapi.document import ApiDocument, as_text

MAX_SCHEMES: Final = 64
MIN_REDACTED_LENGTH: Final = 6
REDACTED: Final = b"[redacted]"
_SECRET_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,200}")

type SchemeKind = Literal["key", "basic", "bearer"]
type SchemePlace = Literal["header", "query", "cookie"]


@dataclass(frozen=True, slots=True)
class SecurityScheme:
    """How a credential is sent. OAuth and OpenID Connect send an access token as bearer."""

    kind: SchemeKind
    place: SchemePlace
    name: str
    is_oauth: bool = False


def read_schemes(document: ApiDocument) -> dict[str, SecurityScheme]:
    """Return the usable security schemes of a document."""
    found: dict[str, SecurityScheme] = {}
    for label, each in list(document.component("securitySchemes").items())[:MAX_SCHEMES]:
        try:
            table = document.resolve(each)
        except MalformedMessage:
            continue
        kind, scheme = as_text(table.get("type")), as_text(table.get("scheme")).lower()
        name, place = as_text(table.get("name")), table.get("in")
        if kind == "apiKey" and place in ("header", "query", "cookie") and _TOKEN.fullmatch(name):
            found[label] = SecurityScheme("key", place, name)
        elif kind == "http" and scheme == "basic":
            found[label] = SecurityScheme("basic", "header", "Authorization")
        elif kind == "http" and scheme == "bearer":
            found[label] = SecurityScheme("bearer", "header", "Authorization")
        elif kind in ("oauth2", "openIdConnect"):
            found[label] = SecurityScheme("bearer", "header", "Authorization", is_oauth=True)
    return found


@dataclass(frozen=True, slots=True, repr=False)
class SentCredentials:
    """The credentials of one request, by their place."""

    headers: tuple[tuple[str, str], ...] = ()
    query: tuple[tuple[str, str], ...] = ()
    cookies: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class ApiCredentials:
    """The configured credentials of one server: by scheme, and headers of every request."""

    schemes: Mapping[str, SecurityScheme]
    by_scheme: Mapping[str, str]
    headers: Mapping[str, str]

    @classmethod
    def of(
        cls,
        schemes: Mapping[str, SecurityScheme],
        by_scheme: Mapping[str, str],
        headers: Mapping[str, str],
    ) -> "ApiCredentials":
        """Check and collect credentials. Raises MalformedMessage, which quotes none of them."""
        for label, value in by_scheme.items():
            if label not in schemes:
                known = ", ".join(sorted(schemes)) or "none"
                raise MalformedMessage(
                    f"`auth` names {label!r:.60}, and its security schemes are: {known:.300}"
                )
            if not value or _CONTROL.search(value) or not value.isascii():
                raise MalformedMessage(f"`auth.{label:.60}` is empty or no ASCII text")
            if schemes[label].kind == "basic" and ":" not in value:
                raise MalformedMessage(f"`auth.{label:.60}` must be user:password")
        return cls(schemes, by_scheme, headers)

    def choose(self, alternatives: Iterable[tuple[str, ...]]) -> SentCredentials:
        """Return the credentials for an operation. Raises MalformedMessage if there are none."""
        choices = tuple(alternatives)
        for labels in choices:
            if all(self._has(label) for label in labels):
                return self._sent(labels)
        if not choices:
            return SentCredentials()
        raise MalformedMessage(self._missing_text(choices))

    def redact(self, data: bytes) -> bytes:
        """Return the data of an API without the credentials, which some APIs repeat."""
        for value in self._secrets():
            data = data.replace(value, REDACTED)
        return data

    def _secrets(self) -> Iterable[bytes]:
        named = {each.name.lower() for each in self.schemes.values() if each.place == "header"}
        headers = (
            value
            for name, value in self.headers.items()
            if name.lower() in _SECRET_HEADERS | named or is_secret_name(name)
        )
        for value in (*self.by_scheme.values(), *headers):
            # A header may hold a scheme before the credential: `Bearer abc`.
            for part in (value, value.rpartition(" ")[2], _basic(value)):
                if len(part) >= MIN_REDACTED_LENGTH:
                    yield part.encode("utf-8")

    def _has(self, label: str) -> bool:
        scheme = self.schemes.get(label)
        if scheme is None:
            return False
        in_headers = {name.lower() for name in self.headers}
        return label in self.by_scheme or (
            scheme.place == "header" and scheme.name.lower() in in_headers
        )

    def _sent(self, labels: Iterable[str]) -> SentCredentials:
        found: dict[str, list[tuple[str, str]]] = {"header": [], "query": [], "cookie": []}
        for label in labels:
            if label in self.by_scheme:
                scheme, value = self.schemes[label], self.by_scheme[label]
                if scheme.kind == "basic":
                    value = f"Basic {_basic(value)}"
                elif scheme.kind == "bearer":
                    value = f"Bearer {value}"
                found[scheme.place].append((scheme.name, value))
        return SentCredentials(
            tuple(found["header"]), tuple(found["query"]), tuple(found["cookie"])
        )

    def _missing_text(self, choices: tuple[tuple[str, ...], ...]) -> str:
        label = choices[0][0]
        scheme = self.schemes.get(label)
        if scheme is None:
            return f"the operation needs the credential {label!r:.60}, which Comity cannot send"
        needs = "an OAuth access token" if scheme.is_oauth else "a credential"
        return (
            f"the operation needs {needs} for {label!r:.60}; the operator sets it as "
            f"`auth.{label:.60}` of this server"
        )


def _basic(value: str) -> str:
    return base64.b64encode(value.encode("utf-8")).decode("ascii")
