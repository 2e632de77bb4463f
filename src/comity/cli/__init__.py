"""The command-line kit: the table of commands, options, output and the API client."""
