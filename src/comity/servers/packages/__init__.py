"""The lock file of a configuration, and the store of the packages that its servers run."""
