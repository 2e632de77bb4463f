"""The arguments that a view fixes or gives defaults for, and the calls that it refuses for them."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Raw

from comity.catalog.definitions import name_skeleton
from comity.errors import INVALID_TOOL_ARGS, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import UNSET, Frame, ToolCallParams

MAX_UNKNOWN_ARGUMENTS: Final = 200
MAX_UNKNOWN_NAME_LENGTH: Final = 128
"""Undeclared arguments beyond these limits are refused where a view fixes one."""

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_PARAMETERS: Final = ("name", "arguments")


def folded_name(name: str) -> str:
    """Return a name without case, separators and marks; names that look alike become equal."""
    return "".join(each for each in name_skeleton(name) if each.isalnum())


class ArgumentRewrite:
    """Replaces the arguments of a call by those that the server receives.

    A server may ignore case or separators in names. A call therefore may not name a fixed argument
    in any spelling, unless the tool declares that other spelling as an argument of its own. The
    other names that the tool does not declare are plain words.
    """

    __slots__ = ("_declared", "_defaults", "_fixed", "_fixed_by_fold")

    def __init__(
        self,
        fixed: Mapping[str, object],
        defaults: Mapping[str, object],
        declared: Iterable[str],
    ) -> None:
        self._fixed = {name: jsonrpc.to_raw(value) for name, value in fixed.items()}
        self._defaults = {name: jsonrpc.to_raw(value) for name, value in defaults.items()}
        self._declared = frozenset(declared) - self._fixed.keys()
        self._fixed_by_fold = {folded_name(name): name for name in fixed}

    def apply(self, frame: Frame, tool: str) -> Frame:
        """Return a call of the server's own tool with the final arguments.

        Raises MalformedMessage if the call tries to set a fixed argument.
        """
        plain = frame.tool
        if plain is not None and frame.id is not UNSET and frame.id is not None:
            arguments = self._rewrite(plain.arguments)
            return jsonrpc.make_tool_call(frame.id, ToolCallParams(tool, arguments, plain.meta))
        parameters = frame.parameters
        for name in parameters:
            # A server that ignores case would read the second spelling.
            if name not in _PARAMETERS and name.casefold() in _PARAMETERS:
                raise _refusal(f"the parameter {name!r:.80} shadows {name.casefold()!r}")
        arguments = self._rewrite(parameters.get("arguments", UNSET))
        made = {**parameters, "name": tool, "arguments": arguments}
        return jsonrpc.with_params(frame, jsonrpc.to_raw(made))

    def _rewrite(self, raw: Raw | jsonrpc.UnsetType) -> Raw:
        # The members stay as the client wrote them. Only their names are decoded.
        try:
            given = {} if raw is UNSET else jsonrpc.decode_members(raw)
        except MalformedMessage as error:
            raise _refusal(f"arguments must be an object: {error}") from None
        if not given.keys() <= self._declared:
            self._check_names([name for name in given if name not in self._declared])
        return jsonrpc.to_raw({**self._defaults, **given, **self._fixed})

    def _check_names(self, unknown: list[str]) -> None:
        """Raise MalformedMessage if an undeclared argument is, or looks like, a fixed one."""
        if not self._fixed:
            return
        if len(unknown) > MAX_UNKNOWN_ARGUMENTS:
            raise _refusal("the call has too many arguments that the tool does not declare")
        for name in unknown:
            if len(name) > MAX_UNKNOWN_NAME_LENGTH:
                raise _refusal("the name of an argument that the tool does not declare is too long")
            fixed = self._fixed_by_fold.get(folded_name(name))
            if fixed is None:
                # A server may read `region[0]` or `$.region` as the fixed argument. No table of
                # letters that look alike is complete.
                if not _PLAIN_NAME.fullmatch(name):
                    raise _refusal(
                        f"the tool declares no argument {name!r}; this view passes only names of "
                        "A-Z a-z 0-9 _ and - to it"
                    )
                continue
            said = f"the argument {fixed!r} is fixed by this view; leave it out"
            raise _refusal(said if name == fixed else f"{said} ({name!r} looks like it)")


def _refusal(reason: str) -> MalformedMessage:
    return MalformedMessage(reason, INVALID_TOOL_ARGS)
