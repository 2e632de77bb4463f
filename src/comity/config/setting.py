"""One thing that an operator can decide: where it is written, how it is read, what it is for."""

from dataclasses import dataclass

from comity.config.kinds import Kind


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that an operator can decide, and the table in which it is written."""

    name: str
    table: str
    kind: Kind
    help: str
    # What it is called among all settings, where its name alone would say too little there.
    known_as: str = ""
    # Whether another value is taken over while the gateway runs.
    is_live: bool = False

    @property
    def field(self) -> str:
        return self.known_as or self.name
