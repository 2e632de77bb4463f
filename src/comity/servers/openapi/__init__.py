"""An OpenAPI document as a server: its operations become tools that make HTTP requests."""
