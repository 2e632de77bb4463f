"""What follows from two configurations, one after the other."""

from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st

from comity.config import Changes, ServerSettings, Settings, Supervision, difference

NAMES = st.sampled_from(["a", "b", "c", "D"])
SERVERS = st.builds(
    ServerSettings,
    NAMES,
    st.just("label"),
    st.just("stdio"),
    command=st.sampled_from(["x", "y"]),
    env=st.sampled_from([MappingProxyType({"K": "1"}), MappingProxyType({"K": "2"}), {"K": "1"}]),
    disabled=st.booleans(),
    supervision=st.sampled_from([Supervision(), Supervision("never")]),
    live=st.sampled_from([{}, {"enabled": ("memory.*",)}]),
)


def settings_of(servers: list[ServerSettings]) -> Settings:
    return Settings(servers=tuple({each.id: each for each in servers}.values()))


SETTINGS = st.lists(SERVERS, max_size=5).map(settings_of)


def enabled(settings: Settings) -> dict[str, ServerSettings]:
    return {server.id: server for server in settings.servers if not server.disabled}


@given(SETTINGS, SETTINGS)
def test_what_is_done_to_the_old_makes_the_new_and_touches_no_other(
    old: Settings, new: Settings
) -> None:
    changes = difference(old, new)
    running = enabled(old)
    for name in changes.removed:
        del running[name]
    for server in changes.changed:
        assert running[server.id] != server
        running[server.id] = server
    for server in changes.decided:
        assert running[server.id] != server
        # The same server, of which something else is decided: it runs on.
        assert replace(running[server.id], live=server.live) == server
        running[server.id] = server
    for server in changes.added:
        assert server.id not in running
        running[server.id] = server
    assert running == enabled(new)


@given(SETTINGS)
def test_nothing_follows_from_the_same(settings: Settings) -> None:
    again = replace(settings, servers=tuple(reversed(settings.servers)))
    assert difference(settings, again) == Changes()
    assert str(Changes()) == "no server is other than it was"


def test_what_only_a_restart_can_change_is_named_as_it_is_written() -> None:
    new = Settings(port=1, depth=9, call_cap=timedelta(1), traces=True)
    assert difference(Settings(), new).needs_restart == (
        "port",
        "limits.depth",
        "limits.call_cap",
        "telemetry.traces",
    )


def test_the_changes_are_told_in_words() -> None:
    one, two = (ServerSettings(name, name, "stdio", command="x") for name in ("one", "two"))
    assert str(Changes((one, two), (), ("gone",))) == "added one, two; removed gone"
