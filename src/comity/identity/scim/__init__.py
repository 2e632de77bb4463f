"""SCIM 2.0: an identity provider writes users and groups."""
