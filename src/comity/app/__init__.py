"""The one place where parts are chosen and joined."""
