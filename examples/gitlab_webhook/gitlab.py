"""What GitLab posts to a webhook: whether it is GitLab's, which event it is, and that in words."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Struct

LONGEST: Final = 300
"""Characters of what anybody in the world may have written: a title, a commit's first line."""

MOST_LINES: Final = 10


@dataclass(frozen=True, slots=True)
class Event:
    id: str
    text: str
    origin: Mapping[str, str] = field(default_factory=dict[str, str])


class _Project(Struct):
    path: str = msgspec.field(default="", name="path_with_namespace")


class _User(Struct):
    name: str = ""


class _Commit(Struct):
    message: str = ""


class _Build(Struct):
    name: str = ""
    status: str = ""


class _About(Struct):
    """Of a merge request, an issue or a pipeline."""

    id: int = 0
    iid: int = 0
    title: str = ""
    action: str = ""
    ref: str = ""
    status: str = ""


class _Posted(Struct):
    kind: str = msgspec.field(name="object_kind")
    project: _Project = msgspec.field(default_factory=_Project)
    user: _User = msgspec.field(default_factory=_User)
    about: _About = msgspec.field(default_factory=_About, name="object_attributes")
    # Of a push.
    pusher: str = msgspec.field(default="", name="user_name")
    ref: str = ""
    count: int = msgspec.field(default=0, name="total_commits_count")
    commits: list[_Commit] = msgspec.field(default_factory=list[_Commit])
    # Of a pipeline.
    builds: list[_Build] = msgspec.field(default_factory=list[_Build])


def is_genuine(headers: Mapping[str, str], token: str) -> bool:
    """Whether it bears the secret token that GitLab was given."""
    return hmac.compare_digest(headers.get("x-gitlab-token", "").encode(), token.encode())


def event_in(headers: Mapping[str, str], body: bytes) -> Event | None:
    """None for what nobody wants to know. Raises ValueError where it is nothing of GitLab's."""
    found = msgspec.json.decode(body, type=_Posted)
    words = _WORDS.get(found.kind)
    if words is None:
        return None
    origin = {"server": "gitlab", "webhook": found.kind, "repository": _line(found.project.path)}
    return Event(_id(headers, body), words(found), origin)


def _id(headers: Mapping[str, str], body: bytes) -> str:
    """The same for each try of one event, so that it counts once however often it comes."""
    # GitLab before 17.4 says it nowhere; but what it posts again has the same bytes.
    return headers.get("idempotency-key") or f"sha256_{hashlib.sha256(body).hexdigest()}"


def _pushed(said: _Posted) -> str:
    branch = _line(said.ref.removeprefix("refs/heads/"))
    listed = "\n".join(f"- {_line(each.message)}" for each in said.commits[:MOST_LINES])
    where = f"{branch} by {_line(said.pusher)} in {_line(said.project.path)}"
    return f"{said.count} new commits on {where}:\n{listed}"


def _merge_request(said: _Posted) -> str:
    return f"Merge request !{_deed(said)}"


def _issue(said: _Posted) -> str:
    return f"Issue #{_deed(said)}"


def _deed(said: _Posted) -> str:
    what = f"{said.about.iid} in {_line(said.project.path)}: {_line(said.about.action)}"
    return f"{what} by {_line(said.user.name)}: {_line(said.about.title)}"


def _pipeline(said: _Posted) -> str:
    failed = [_line(each.name) for each in said.builds if each.status == "failed"][:MOST_LINES]
    named = f"; failed: {', '.join(failed)}" if failed else ""
    where = f"{_line(said.about.ref)} in {_line(said.project.path)}"
    return f"Pipeline {said.about.id} of {where}: {_line(said.about.status)}{named}"


def _line(text: str) -> str:
    """The first line of what somebody wrote."""
    return next(iter(text.splitlines()), "")[:LONGEST]


_WORDS: Final = {
    "push": _pushed,
    "merge_request": _merge_request,
    "issue": _issue,
    "pipeline": _pipeline,
}
