"""What every test run carries: the ledger, a test bench for plugins, how properties are sought."""

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "tests.ledger.plugin"]

# A property never fails for being slow: the machine may be busy with something else. In CI one
# commit always tries the same examples; elsewhere each run tries new ones.
settings.register_profile(
    "comity",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("comity")
