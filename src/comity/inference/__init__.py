"""Language models: providers, routing, budgets and inference."""
