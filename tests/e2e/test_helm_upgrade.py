# SPDX-License-Identifier: Apache-2.0
"""`helm upgrade` with policies that are invalid: the real webhook refuses it, and the policies stay as they were.

Helm updates the other objects of the release all the same, because it collects the errors of an update (helm v3.22
pkg/kube/client.go), and `helm rollback` takes that back. The chart makes all objects but the webhooks, which call a
process of the tests instead of the Service.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.deploy.tools import find_tool
from tests.e2e.stage import DEPLOY, Service, create_namespace, plain_pod
from tests.e2e.test_bad_policies import BAD, CONFIG_MAPS, DENIED, GOOD, MOUNTED, Mount, install_all_webhooks, outcomes

DEPLOYMENT = "/apis/apps/v1/namespaces/gpu-usher/deployments/gpu-usher"
HELM_SECONDS = 120


class Release:
    """The chart's release on a control plane; each policy is a file of --set-file."""

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

    def upgrade(self, text: str, *changes: str) -> list[str]:
        """Return the words of an upgrade in which the team's policy has another text."""
        file = self._plane.folder / "team.yaml"
        file.write_text(text, "utf-8")
        policy = f"--set-file=policies.files.team\\.yaml={file}"
        return ["upgrade", "gpu-usher", str(DEPLOY / "chart"), "--reuse-values", policy, *changes]

    def statuses(self) -> list[str]:
        """List the status of each revision, the oldest first."""
        code, out, err = self.run("history", "gpu-usher", "--output=yaml")
        assert code == 0, err
        return [line.split()[-1] for line in out.splitlines() if "status:" in line]


@pytest.fixture(scope="module")
def release(plane: ControlPlane) -> Release:
    """Install the chart without webhooks, with a policy of a team."""
    helm = find_tool("helm")
    if isinstance(helm, str):
        pytest.skip(helm)
    add_nodes(plane.api, [node_object("h100", offers={"nvidia.com/gpu": 8})])
    create_namespace(plane, "gpu-usher")
    made = Release(plane, helm)
    words = made.upgrade(GOOD, "--set=webhooks.enabled=false", "--install")
    code, _, err = made.run(*(word for word in words if word != "--reuse-values"))
    assert code == 0, err
    return made


@pytest.fixture(scope="module")
def service(plane: ControlPlane, release: Release) -> Iterator[Service]:
    """The process that the webhooks call, with the account that the chart gives the replicas."""
    assert release.statuses() == ["deployed"]
    mount = Mount(plane)
    mount.renew()
    running = Service(plane, policies=str(mount.folder))
    try:
        running.wait_ready()
        install_all_webhooks(plane, running)
        yield running
    finally:
        running.process.stop()


def test_upgrade_with_an_invalid_policy_is_refused_and_a_rollback_takes_back_its_other_changes(
    plane: ControlPlane, release: Release, service: Service
) -> None:
    """F115, F131: the message names file, line and field; GPU pods are admitted by the old policies meanwhile."""
    policies, deployment = plane.api.get(f"{CONFIG_MAPS}/{MOUNTED}")["data"], plane.api.get(DEPLOYMENT)["spec"]
    assert outcomes(plane) == [True, True, False]

    upgrade = release.start(*release.upgrade(BAD, "--set=replicas=5"))
    admitted = [plane.kubectl.create(plain_pod("default", {"nvidia.com/gpu": 1}, "p"), dry_run=True).code]
    while upgrade.poll() is None:
        admitted.append(plane.kubectl.create(plain_pod("default", {"nvidia.com/gpu": 1}, "p"), dry_run=True).code)
    _, err = upgrade.communicate(timeout=HELM_SECONDS)

    assert upgrade.returncode == 1
    assert DENIED in err
    assert plane.api.get(f"{CONFIG_MAPS}/{MOUNTED}")["data"] == policies
    assert release.statuses() == ["deployed", "failed"]
    assert set(admitted) == {0}
    assert outcomes(plane) == [True, True, False]
    assert service.health()["policies"]["error"] is None
    assert plane.api.get(DEPLOYMENT)["spec"]["replicas"] == 5
    code, _, err = release.run("rollback", "gpu-usher")
    assert code == 0, err
    assert plane.api.get(DEPLOYMENT)["spec"] == deployment
    assert plane.api.get(f"{CONFIG_MAPS}/{MOUNTED}")["data"] == policies
