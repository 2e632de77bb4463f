"""The checks of `comity config check` and `comity doctor`."""
