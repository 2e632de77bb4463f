"""The web console: its built files, and the routes that only it needs."""
