"""MCPL support: live servers, scopes, state, pushes, hooks, turns and channels."""
