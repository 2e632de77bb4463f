"""What every test run carries: the ledger of requirements, and pytest's own test bench."""

pytest_plugins = ["pytester", "tests.ledger.plugin"]
