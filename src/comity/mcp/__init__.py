"""The Model Context Protocol and its extensions as pure functions and values, without I/O."""
