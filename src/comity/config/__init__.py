"""Reading of configuration files, with the position of every error."""
