"""What can be decided of turns, as rows: how far each may go, and for how long it waits."""

from typing import Final

from comity.config.kinds import DURATION, DURATION_OR_NEVER, TEXT, number
from comity.config.setting import Setting

_FEW: Final = number(1, 1_000)
_TOKENS: Final = number(1, 10_000_000)
_SIZE: Final = number(1_024, 16 * 1024 * 1024)

TURNS: Final = (
    Setting("party", "turns", TEXT, "in whose name a model uses tools", "turn_party"),
    Setting("system", "turns", TEXT, "what every model is told first", "turn_system"),
    Setting(
        "before", "turns", DURATION, "how long a server may take before a model", "turn_before"
    ),
    Setting(
        "after", "turns", DURATION, "how long one may take that rewrites what it said", "turn_after"
    ),
    Setting("deadline", "turns", DURATION, "how long a whole turn may take", "turn_deadline"),
    Setting("steps", "turns", _FEW, "how often a model is asked in one turn", "turn_steps"),
    Setting("tools", "turns", _FEW, "how many tools it may use at once", "turn_tools"),
    Setting("depth", "turns", _FEW, "how many turns may bring about each other", "turn_depth"),
    Setting("attempts", "turns", _FEW, "how often a turn is tried", "turn_attempts"),
    Setting("at_once", "turns", _FEW, "how many turns this node takes at once", "turns_at_once"),
    Setting("hook_bytes", "turns", _SIZE, "how long a server's answer may be", "turn_hook_bytes"),
    Setting(
        "injected_tokens",
        "turns",
        _TOKENS,
        "about how much all servers together may add to what a model reads",
        "turn_injected_tokens",
    ),
    Setting(
        "result_length",
        "turns",
        _SIZE,
        "how much of a tool's answer it reads",
        "turn_result_length",
    ),
    Setting(
        "message_length",
        "turns",
        _SIZE,
        "how much of what is to be answered",
        "turn_message_length",
    ),
    Setting("reply_tokens", "turns", _TOKENS, "how much it may say at once", "turn_reply_tokens"),
    Setting(
        "tool_tokens",
        "turns",
        _TOKENS,
        "how much the tools in its list may take",
        "turn_tool_tokens",
    ),
    Setting(
        "past_turns",
        "turns",
        _FEW,
        "how many turns of the past it reads at most",
        "turn_past_turns",
    ),
    Setting(
        "kept",
        "turns",
        DURATION_OR_NEVER,
        "how long what was said is kept; 0 keeps it for good",
        "turns_kept",
    ),
)
