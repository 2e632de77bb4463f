"""The bus and the leases on NATS with JetStream."""
