"""What can be decided of discovery mode and of toolbelts, as rows. (MGP §16)"""

from typing import Final

from comity.config.kinds import TRUTH, number, one_of
from comity.config.pinned import PINNED
from comity.config.setting import Setting
from comity.wire.tool_discovery import MOST_RESULTS

# The gateway's own tools alone take some seven hundred.
_WHOLE: Final = number(1_500, 10_000_000)
_SHARE: Final = number(0, 10_000_000)
TOOLBELTS: Final = (
    Setting(
        "mode",
        "discovery",
        one_of("off", "on"),
        "`on`: clients list a few tools and find the others by searching",
        "discovery_mode",
    ),
    Setting("pinned", "discovery", PINNED, "tools that are always listed then", "pinned_tools"),
    Setting(
        "max_tokens",
        "discovery",
        _WHOLE,
        "how many tokens of definitions stand in a client's context at most",
        "tool_tokens",
    ),
    Setting(
        "pinned_reserve",
        "discovery",
        _SHARE,
        "of them, for pinned tools and the gateway's own",
        "tool_pinned_reserve",
    ),
    Setting(
        "discovery_reserve",
        "discovery",
        _SHARE,
        "of them, for the results of one search",
        "tool_discovery_reserve",
    ),
    Setting(
        "cache_limit",
        "discovery",
        _SHARE,
        "of them, for tools that were used or asked for",
        "tool_cache_limit",
    ),
    Setting(
        "results",
        "discovery",
        number(1, MOST_RESULTS),
        "how many tools a search gives unless it says so itself",
        "tool_results",
    ),
    Setting(
        "log_searches",
        "discovery",
        TRUTH,
        "whether the journal keeps what was searched for and found",
    ),
)
