"""What a module names to use virtual time and the fixtures of the kit.

    pytest_plugins = ["tests.kit.fixtures"]
    event_loop_policy = virtual_time
    pytestmark = on_virtual_time

The fixtures are a plugin of such modules alone, so that no other run imports a whole gateway.
"""

import pytest

from tests.kit.clock import VirtualTime

on_virtual_time = [
    pytest.mark.asyncio(loop_scope="module"),
    # The hook that replaces this fixture would give every async test of the run a parameter.
    pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture"),
    # Such a module may have tests without a loop.
    pytest.mark.filterwarnings("ignore:.*but it is not an async function"),
]
each_transport = pytest.mark.parametrize("server", ["stdio", "http"], indirect=True)


@pytest.fixture(scope="module")
def virtual_time() -> VirtualTime:
    """The policy of a module's event loop, in place of the fixture `event_loop_policy`."""
    return VirtualTime()
