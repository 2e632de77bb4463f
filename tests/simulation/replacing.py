"""Replaces functions of the product in a process that serves nothing but a simulation."""


def replace_member(owner: object, name: str, value: object) -> None:
    """Set a member of a class or module, whatever its type says about that."""
    setattr(owner, name, value)
