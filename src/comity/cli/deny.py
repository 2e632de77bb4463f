"""`comity deny`, which stands beside `comity approve`."""

from comity.cli.approve import deny as command

__all__ = ["command"]
