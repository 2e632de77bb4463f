"""The table `[secrets]`: the keys that seal stored credentials, and where secrets are read."""

from dataclasses import dataclass
from typing import Final

from comity.config.fields import setting, text_list_type

PEPPER: Final = "pepper"
ENVIRONMENT: Final = "env"

KEYS: Final = text_list_type(
    r"pepper|(file|env|keyring|vault|aws|gcp|azure):\S{1,500}",
    '"pepper", "file:PATH", "env:NAME", "keyring:SERVICE/NAME", "vault:ENGINE/KEY", "aws:ARN", '
    '"gcp:RESOURCE" or "azure:URL"',
)
SOURCES: Final = text_list_type(
    r"env|(file|keyring|vault|aws|gcp|azure):\S{1,500}",
    '"env", "file:FOLDER", "keyring:SERVICE", "vault:ENGINE/PATH", "aws:REGION", '
    '"gcp:projects/PROJECT" or "azure:URL"',
)


@dataclass(frozen=True, slots=True)
class SecretSettings:
    """The keys of stored credentials, and the sources of `${secret:NAME}`."""

    keys: tuple[str, ...] = setting(
        (PEPPER,),
        "The keys for stored credentials: the first one seals, and all of them unseal.",
        KEYS,
    )
    sources: tuple[str, ...] = setting(
        (ENVIRONMENT, "file:/run/secrets"),
        "Where Comity reads `${secret:NAME}`; the first source with the name counts.",
        SOURCES,
    )
