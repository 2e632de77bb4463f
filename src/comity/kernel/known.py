"""Figures of what calls are judged by: how much it is, and how sure."""

from math import isfinite

from comity.kernel.snapshot import Snapshot
from comity.wire.exposition import Family


class KnownFigures:
    """What is known of the records on this node."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __call__(self) -> list[Family]:
        snapshot = self._snapshot
        grants = sum(len(each.grants) for each in snapshot.grants.latest.subjects.values())
        counts = (
            (("kind", "grants"), grants),
            (("kind", "parties"), len(snapshot.parties)),
            (("kind", "keys"), len(snapshot.keys)),
        )
        # Where nothing grows old, or nothing is known, there is no age.
        ages = [((), snapshot.certainty.age)] if _has_an_age(snapshot) else []
        return [
            Family(
                "comity_policy_known",
                "gauge",
                "Whether calls can be judged; without it all are refused.",
                [((), int(snapshot.certainty.holds))],
            ),
            Family(
                "comity_policy_age_seconds",
                "gauge",
                "How long ago the store was last asked for what is known.",
                ages,
            ),
            Family(
                "comity_policy_version",
                "gauge",
                "The version of the records that calls are judged by.",
                [((), snapshot.version)],
            ),
            Family(
                "comity_records",
                "gauge",
                "Grants, parties and keys that are known here.",
                [((label,), count) for label, count in counts],
            ),
        ]


def _has_an_age(snapshot: Snapshot) -> bool:
    return snapshot.certainty.grows_old and isfinite(snapshot.certainty.age)
