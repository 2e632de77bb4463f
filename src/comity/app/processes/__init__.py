"""Processes of one machine: a shared local gateway, workers, their bus and the stdio bridge."""
