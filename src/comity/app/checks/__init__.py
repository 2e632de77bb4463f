"""The checks of `comity check` and `comity doctor`."""
