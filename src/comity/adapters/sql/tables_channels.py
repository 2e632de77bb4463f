"""The table of what came in from channels and was said there. (0011)"""

from sqlalchemy import Column, Index, Table, Text

from comity.adapters.sql.tables import METADATA, Moment

DEEDS = Table(
    "comity_channel_deeds",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("until", Moment),
    # None until it is settled.
    Column("note", Text),
    Index("comity_channel_deeds_by_time", "at"),
)
