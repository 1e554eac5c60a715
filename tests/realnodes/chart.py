# SPDX-License-Identifier: Apache-2.0
"""gpu-usher on the real nodes by its Helm chart, with the commands that deploy/README prints."""

import re
from pathlib import Path

from tests.e2e.stage import DEPLOY
from tests.realnodes.cluster import Cluster
from tests.realnodes.printed_install import ROOT, PrintedInstallation, commands, image

PAGE = DEPLOY / "README.md"
VALUES = "deploy/chart/values-production-self-signed.yaml"
"""The values of the printed commands."""


class ChartInstallation(PrintedInstallation):
    """A release of the chart, by the block of deploy/README: `install` and `uninstall` may be called again."""

    def __init__(self, cluster: Cluster, folder: Path, helm: Path) -> None:
        super().__init__(cluster, folder, VALUES)
        (folder / "Makefile").symlink_to(ROOT / "Makefile")
        homes = " ".join(f"HELM_{kind}_HOME={folder / kind.lower()}" for kind in ("CACHE", "CONFIG", "DATA"))
        self.add_program("helm", f'KUBECONFIG={self.plane.kubeconfig("admin")} {homes} exec {helm} "$@"')

    def install(self) -> None:
        """Run the block; of a release that is there, its last line, which upgrades it."""
        block = commands(PAGE, "make chart").splitlines()
        assert VALUES in "\n".join(block)
        self.run("\n".join([f"IMAGE={image()}", *(block[-1:] if self._is_installed() else block)]))
        self.wait_until_admitting()

    def upgrade(self, *changes: str) -> None:
        """Upgrade the release with changed values, and wait until helm calls it done."""
        last = commands(PAGE, "make chart").splitlines()[-1]
        self.run(" ".join([last, *changes, "--wait"]))

    def remove_release(self) -> None:
        """Run the emergency line of deploy/README, and then what it prints for a release."""
        self.remove_printed_webhooks()
        (uninstall,) = re.findall(r"`(helm uninstall [^`]+)`", PAGE.read_text("utf-8"))
        self.run(uninstall)

    def uninstall(self) -> None:
        """Remove the release, and what it leaves on purpose: the namespace, and the definition of policies."""
        self.remove_webhooks()
        if self.has_program("helm") and self._is_installed():
            self.run("helm uninstall gpu-usher -n gpu-usher --wait")
        super().uninstall()

    def _is_installed(self) -> bool:
        return bool(self.run("helm list -n gpu-usher --all --short").split())
