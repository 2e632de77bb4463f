"""Events, subscriptions and outgoing webhooks."""
