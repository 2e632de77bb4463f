"""The manifests of deploy/kubernetes: valid, unprivileged, and with a configuration that loads."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

# It has no types.
import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]  # it has none
import pytest
import yaml

from comity.app.settings import Settings
from comity.app.settings_reader import load_settings
from tests.deploy.files import DEPLOY, understood

type Manifest = dict[str, Any]

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed, which has Kustomize"),
]

OVERLAYS = DEPLOY / "kubernetes" / "overlays"
NAMES = ("single", "cluster", "cluster-tls")
VERSIONS = ("1.29", "1.33")

every_overlay = pytest.mark.parametrize("name", NAMES)


@cache
def rendered(folder: Path) -> str:
    assert KUBECTL is not None
    command = [KUBECTL, "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(folder: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(rendered(folder)))


def of_kind(manifests: list[Manifest], kind: str) -> Manifest:
    (found,) = [each for each in manifests if each["kind"] == kind]
    return found


def pod_of(manifests: list[Manifest]) -> Manifest:
    return of_kind(manifests, "StatefulSet")["spec"]["template"]["spec"]


def settings_of(name: str, tmp_path: Path) -> Settings:
    """The configuration that the pods read, with the addresses of the secret."""
    config = tmp_path / "comity.toml"
    config.write_text(of_kind(render(OVERLAYS / name), "ConfigMap")["data"]["comity.toml"])
    env = pod_of(render(OVERLAYS / name))["containers"][0].get("env", [])
    urls = {"store-url": "postgresql://comity@db/comity", "cluster-url": "nats://hush@nats:4222"}
    given = {
        each["name"].removesuffix("_FILE"): urls[each["value"].rpartition("/")[2]] for each in env
    }
    return load_settings(config, given)


def test_every_overlay_is_tested() -> None:
    assert {each.name for each in OVERLAYS.iterdir()} == {*NAMES}


@every_overlay
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_manifest(name: str, version: str) -> None:
    manifests = render(OVERLAYS / name)
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert len({*names}) == len(names)
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_wrong_field_would_be_found() -> None:
    manifest = of_kind(render(OVERLAYS / "single"), "StatefulSet")
    manifest["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, VERSIONS[0], strict=True)


@every_overlay
def test_no_container_has_privileges(name: str) -> None:
    pod = pod_of(render(OVERLAYS / name))
    assert pod["automountServiceAccountToken"] is False
    # The variables of a Service with the name `comity` would be taken for settings.
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@every_overlay
def test_everything_that_is_mounted_exists(name: str) -> None:
    manifests = render(OVERLAYS / name)
    pod = pod_of(manifests)
    claims = of_kind(manifests, "StatefulSet")["spec"].get("volumeClaimTemplates", [])
    volumes = [*(each["name"] for each in pod["volumes"])]
    volumes += [each["metadata"]["name"] for each in claims]
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert mounted <= {*volumes}
    assert len({*volumes}) == len(volumes)
    # Without it Comity could not write below its read-only root.
    (comity,) = pod["containers"]
    places = {each["mountPath"] for each in comity["volumeMounts"]}
    assert {"/etc/comity", "/var/lib/comity", "/tmp"} <= places


@every_overlay
def test_the_commands_are_real_ones(name: str) -> None:
    pod = pod_of(render(OVERLAYS / name))
    commands = {each["name"]: understood(each["args"]) for each in pod["containers"]}
    assert commands == {"comity": "serve"}
    assert {understood(each["args"]) for each in pod.get("initContainers", [])} <= {"db"}


@every_overlay
def test_probes_ask_with_a_name_that_comity_accepts(name: str) -> None:
    (comity,) = pod_of(render(OVERLAYS / name))["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked: dict[str, Any] = comity[probe]["httpGet"]
        assert asked["httpHeaders"] == [{"name": "Host", "value": "localhost"}]
        assert asked["path"] == ("/readyz" if probe == "readinessProbe" else "/livez")


@every_overlay
def test_the_configuration_requires_credentials_and_knows_its_service(
    name: str, tmp_path: Path
) -> None:
    settings = settings_of(name, tmp_path)
    assert (settings.host, settings.identity.mode) == ("0.0.0.0", "required")
    services = [each for each in render(OVERLAYS / name) if each["kind"] == "Service"]
    assert "comity" in {each["metadata"]["name"] for each in services}
    assert "comity" in settings.allowed_hosts


@pytest.mark.parametrize("name", ["cluster", "cluster-tls"])
def test_nodes_of_a_cluster_share_their_secrets(name: str, tmp_path: Path) -> None:
    settings = settings_of(name, tmp_path)
    assert settings.store.url.startswith("postgresql://")
    assert settings.cluster.url.startswith("nats://")
    assert of_kind(render(OVERLAYS / name), "StatefulSet")["spec"]["replicas"] == 3
    pod = pod_of(render(OVERLAYS / name))
    (secret,) = [each["secret"] for each in pod["volumes"] if "secret" in each]
    assert secret["secretName"] == "comity"
    # The keys that the comment of the overlay tells to create are those that are read.
    told = (OVERLAYS / "cluster" / "kustomization.yaml").read_text(encoding="utf-8")
    env = pod["containers"][0]["env"]
    read = {Path(each["value"]).name for each in env} | {Path(settings.identity.pepper_file).name}
    assert {*re.findall(r"--from-literal=([a-z-]+)=", told)} == read


def test_a_single_node_keeps_its_store_on_a_volume(tmp_path: Path) -> None:
    settings = settings_of("single", tmp_path)
    stateful = of_kind(render(OVERLAYS / "single"), "StatefulSet")
    (claim,) = stateful["spec"]["volumeClaimTemplates"]
    (comity,) = stateful["spec"]["template"]["spec"]["containers"]
    (place,) = [
        each["mountPath"]
        for each in comity["volumeMounts"]
        if each["name"] == claim["metadata"]["name"]
    ]
    assert settings.store.url == f"sqlite:///{place}/comity.db"
    assert stateful["spec"]["replicas"] == 1
