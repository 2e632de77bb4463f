"""Servers of the configuration file, added and removed by command."""
