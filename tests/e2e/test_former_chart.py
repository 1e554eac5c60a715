# SPDX-License-Identifier: Apache-2.0
"""The former release's chart on a real API server, with its definition of GPUPolicy: upgraded by helm, rolled back."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.deploy.tools import find_tool
from tests.e2e.stage import DEPLOY, create_namespace, eventually
from tests.realnodes.printed_install import commands

HELM_SECONDS = 120
POLICIES = "/apis/gpu-usher.io/v1alpha1/gpupolicies"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpupolicies.gpu-usher.io"
VALUES = "values-production-self-signed.yaml"
GROUP = "gpu-usher.io"
SPEC: Object = {"action": "Enforce", "priority": 5, "admission": {"maxGPUsPerPod": 2, "override": False}}
LIMITS: Object = {"namespaceLimits": [{"products": ["H100"], "gpus": 3}]}
"""What the former release's definition lacks."""


class Release:
    """helm on a control plane, in our namespace."""

    def __init__(self, plane: ControlPlane, helm: Path) -> None:
        self._plane = plane
        self._helm = helm

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start helm in our namespace as the administrator."""
        homes = {f"HELM_{kind}_HOME": str(self._plane.folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        return subprocess.Popen(
            [str(self._helm), *words, "--namespace=gpu-usher"],
            env={**os.environ, **homes, "KUBECONFIG": str(self._plane.kubeconfig("admin"))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int | None, str, str]:
        """Run helm; the exit code, and what it prints on stdout and stderr."""
        process = self.start(*words)
        out, err = process.communicate(timeout=HELM_SECONDS)
        return process.returncode, out, err

    def statuses(self) -> list[str]:
        """List the status of each revision, the oldest first."""
        code, out, err = self.run("history", "gpu-usher", "--output=yaml")
        assert code == 0, err
        return [line.split()[-1] for line in out.splitlines() if "status:" in line]


@pytest.fixture(scope="module")
def release(plane: ControlPlane, former: Path) -> Iterator[Release]:
    """The former release's chart, installed with its values for production, and a policy."""
    helm = find_tool("helm")
    if isinstance(helm, str):
        pytest.skip(helm)
    create_namespace(plane, "gpu-usher")
    made = Release(plane, helm)
    chart = former / "deploy" / "chart"
    succeed(
        made, "install", "gpu-usher", str(chart), "-f", str(chart / VALUES), "--set=image.repository=team/gpu-usher"
    )
    store(plane, "older", SPEC)
    yield made
    succeed(made, "uninstall", "gpu-usher")
    plane.api.delete(DEFINITIONS)


def succeed(release: Release, *words: str) -> None:
    code, out, err = release.run(*words)
    assert code == 0, out + err


def store(plane: ControlPlane, name: str, spec: Object, version: str = "v1alpha1") -> None:
    """Store a GPUPolicy."""
    result = plane.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(gpu_policy(name, spec, version)))
    assert result.code == 0, result.err


def gpu_policy(name: str, spec: Object, version: str) -> Object:
    return {"apiVersion": f"{GROUP}/{version}", "kind": "GPUPolicy", "metadata": {"name": name}, "spec": spec}


def wait_until_stored(plane: ControlPlane, **specs: Object) -> None:
    """Wait until the GPUPolicies have these specs, as v1alpha1: with a changed definition they come back in a second.

    Meanwhile the API server answers 429, `storage is (re)initializing`, after which clients try again.
    """
    seen: dict[str, Object] = {}

    def as_wanted() -> bool:
        items = plane.api.client.get(POLICIES).json().get("items") or []
        seen.clear()
        seen.update({item["metadata"]["name"]: item["spec"] for item in items})
        return seen == specs

    try:
        eventually(f"they are {specs}", as_wanted)
    except AssertionError as error:
        raise AssertionError(f"{error}; they are {seen}") from error


def definition(plane: ControlPlane) -> list[Object]:
    """Read the versions of the definition, as the API server stores them."""
    versions: list[Object] = plane.api.get(DEFINITIONS)["spec"]["versions"]
    return versions


def upgrade_words() -> list[str]:
    """Return the arguments of the printed helm upgrade, with this tree's chart for the packed one."""
    *_, last = commands(DEPLOY / "README.md", "make chart").splitlines()
    words = last.replace(" -n gpu-usher", "").split()[1:]
    return [str(DEPLOY / "chart") if word.endswith(".tgz") else word for word in words]


def rendered(release: Release) -> dict[tuple[str, str], Object]:
    """Return the manifests of the release by kind and name."""
    code, out, err = release.run("get", "manifest", "gpu-usher")
    assert code == 0, err
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(out) if one}


def test_printed_helm_upgrade_replaces_the_definition_too_and_keeps_policies_and_values(
    plane: ControlPlane, release: Release
) -> None:
    """F115: the definition is a template of the chart, for helm never upgrades those of a chart's folder crds."""
    before = rendered(release)

    succeed(release, *upgrade_words())

    after = rendered(release)
    file = yaml.safe_load((DEPLOY / "components" / "crd" / "gpupolicies.yaml").read_text("utf-8"))
    versions = {version["name"]: version["schema"] for version in definition(plane)}
    assert versions == {version["name"]: version["schema"] for version in file["spec"]["versions"]}
    assert before.keys() - {("Lease", "gpu-usher-certificates")} == after.keys()
    images = [c["image"] for c in after["Deployment", "gpu-usher"]["spec"]["template"]["spec"]["containers"]]
    assert [image.partition(":")[0] for image in images] == ["team/gpu-usher"]
    wait_until_stored(plane, older=SPEC)


def test_helm_upgrade_by_reuse_values_passes_too(release: Release) -> None:
    """F115: values that the former chart lacks are absent then, since helm takes its defaults for those of the new."""
    succeed(release, "rollback", "gpu-usher", "1")

    succeed(release, *("--reuse-values" if word == "--reset-then-reuse-values" else word for word in upgrade_words()))

    assert release.statuses()[-1] == "deployed"


def test_helm_rollback_keeps_every_policy_but_newer_fields_until_they_are_applied_again(
    plane: ControlPlane, release: Release
) -> None:
    """F115, F131: under the former definition a field that it lacks is not shown, and gone after the next write."""
    succeed(release, *upgrade_words())
    store(plane, "newer", {**SPEC, "placement": LIMITS})

    succeed(release, "rollback", "gpu-usher", "1")

    assert [version["name"] for version in definition(plane)] == ["v1alpha1"]
    wait_until_stored(plane, older=SPEC, newer={**SPEC, "placement": {}})
    plane.api.patch(f"{POLICIES}/newer/status", {"status": {"hash": "0"}})
    succeed(release, *upgrade_words())
    wait_until_stored(plane, older=SPEC, newer={**SPEC, "placement": {}})
    store(plane, "newer", {**SPEC, "placement": LIMITS})
    wait_until_stored(plane, older=SPEC, newer={**SPEC, "placement": LIMITS})
