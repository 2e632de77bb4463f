"""The audit log: events, hash chain, verification, retention and export."""
