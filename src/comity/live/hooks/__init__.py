"""Context hooks that run before and after inference."""
