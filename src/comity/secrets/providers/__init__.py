"""Products that hold keys and secrets: this machine, Vault, AWS, Google Cloud and Azure."""
