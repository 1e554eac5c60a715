# SPDX-License-Identifier: Apache-2.0
"""gpu-usher on the real nodes by its Helm chart, in the steps of deploy/README."""

import os
import subprocess
from pathlib import Path

from tests.e2e.stage import DEPLOY
from tests.realnodes.cluster import Cluster
from tests.realnodes.installation import NAMESPACE, Installation

CHART = DEPLOY / "chart"
RELEASE = "gpu-usher"
VALUES = (f"--values={CHART / 'values-production-self-signed.yaml'}",)
"""The production values for a cluster without cert-manager and the Prometheus operator."""
HELM_SECONDS = 360
"""Bound on one command: helm itself waits for pods for five minutes."""


class ChartInstallation(Installation):
    """A release of the chart: `install` and `uninstall` may be called again."""

    def __init__(self, cluster: Cluster, folder: Path, helm: Path) -> None:
        self._helm = helm
        self._home = folder
        super().__init__(cluster, folder)

    def install(self) -> None:
        """Install the release as deploy/README says: without webhooks first; an upgrade adds them."""
        namespace = self.plane.kubectl("apply", "--server-side", "-f", str(DEPLOY / "base" / "namespace.yaml"))
        assert namespace.code == 0, namespace.err
        if not self.run("list", "--short").split():
            self.run("install", RELEASE, str(CHART), *VALUES, "--set=webhooks.enabled=false", "--wait")
        self.upgrade("--set=webhooks.enabled=true")
        self.wait_until_admitting()

    def upgrade(self, *changes: str) -> None:
        """Upgrade the release with changed values, and wait until helm calls it done."""
        self.run("upgrade", RELEASE, str(CHART), "--reuse-values", *changes, "--wait")

    def remove_release(self) -> None:
        """Delete the webhooks and then the release, as deploy/README says."""
        self.remove_webhooks()
        self.run("uninstall", RELEASE, "--ignore-not-found", "--wait")

    def uninstall(self) -> None:
        """Remove the release, and what it leaves on purpose: the namespace, and the definition of policies."""
        self.remove_release()
        super().uninstall()

    def run(self, *words: str) -> str:
        """Run helm in our namespace as the administrator, and return what it prints."""
        homes = {f"HELM_{kind}_HOME": str(self._home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run(
            [str(self._helm), *words, f"--namespace={NAMESPACE}"],
            env={**os.environ, **homes, "KUBECONFIG": str(self.plane.kubeconfig("admin"))},
            capture_output=True,
            text=True,
            timeout=HELM_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"helm {' '.join(words)}: {done.stderr}"
        return done.stdout
