# SPDX-License-Identifier: Apache-2.0
"""gpu-usher on the real nodes by the commands that the pages print, run by a shell as a person would paste them."""

import re
import shlex
import subprocess
from pathlib import Path

from tests.e2e.stage import DEPLOY
from tests.realnodes.cluster import Cluster
from tests.realnodes.components import CTR
from tests.realnodes.images import full_name, our_image
from tests.realnodes.installation import UNINSTALL_SECONDS, Installation
from tests.realnodes.node import SOCKET

ROOT = DEPLOY.parent
RUN_SECONDS = 420
"""Bound on one block of commands: a rollout of three replicas, or the end of all pods."""
BLOCKS = re.compile(r"```console\n(.*?)```", re.DOTALL)
FORMS = re.compile(r"deploy/overlays/[a-z-]+")
OF_ANOTHER_RELEASE = re.compile(r"Warning: policies for gpu-usher \S+ are not checked by \S+: see /readyz after .*")


def commands(page: Path, words: str) -> str:
    """Return the commands of the only console block of a page that begins with these words, one a line."""
    found = [block for block in BLOCKS.findall(page.read_text("utf-8")) if block.startswith(f"$ {words}")]
    assert len(found) == 1, f"{page.name}: {len(found)} blocks begin with {words!r}"
    return "\n".join(line.removeprefix("$ ") for line in found[0].splitlines() if line.startswith("$ "))


def install_commands() -> str:
    """Return README's install block."""
    return commands(ROOT / "README.md", "OVERLAY=")


def forms() -> list[str]:
    """List the overlays that the first line of README's install block offers: the one it sets, and the other."""
    return FORMS.findall(install_commands().splitlines()[0])


def image() -> str:
    """Return the name of the image in README's install block."""
    (name,) = re.findall(r"IMAGE=(\S+)", install_commands())
    return str(name)


class PrintedInstallation(Installation):
    """gpu-usher by README's install block in one of its two forms, and by the uninstall blocks of deploy/README.

    `docker` is a program that writes down its arguments: the nodes have the image by its printed name already.
    """

    def __init__(self, cluster: Cluster, folder: Path, form: str) -> None:
        self._folder = folder
        self.form = form
        super().__init__(cluster, folder)
        for node in cluster.nodes.values():
            words = ("-a", SOCKET, "-n", "k8s.io", "images", "tag", "--force")
            node.run(str(CTR), *words, full_name(our_image()), image())
        (folder / "deploy").symlink_to(DEPLOY)
        programs = {
            "kubectl": f'KUBECONFIG={self.plane.kubeconfig("admin")} exec {shlex.join(self._kubectl())} "$@"',
            "docker": f'echo "$@" >> {folder / "docker.log"}',
        }
        (folder / "bin").mkdir()
        for name, line in programs.items():
            self.add_program(name, line)

    def add_program(self, name: str, line: str) -> None:
        """Put a program of one line of shell on the PATH of the commands."""
        path = self._folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{line}\n", "utf-8")
        path.chmod(0o755)

    def has_program(self, name: str) -> bool:
        """Tell whether a program was put on the PATH; none is while the cluster is being cleared for the first."""
        return (self._folder / "bin" / name).exists()

    def _kubectl(self) -> tuple[str, ...]:
        return self.plane.binaries.command("kubectl")

    def install(self) -> None:
        """Run README's install block, with the overlay of this form in its first line."""
        first, _, rest = install_commands().partition("\n")
        self.run(f"{first.replace(forms()[0], self.form, 1)}\n{rest}")
        self.wait_until_admitting()

    def remove(self, keep_policies: bool) -> None:
        """Run the emergency line of deploy/README, and the one of its two uninstall blocks that is asked for."""
        rest = " -l" if keep_policies else "\n"
        self.remove_printed_webhooks()
        self.run(commands(DEPLOY / "README.md", f"kubectl delete --ignore-not-found -f gpu-usher.yaml{rest}"))

    def remove_printed_webhooks(self) -> None:
        """Run the emergency line of deploy/README."""
        self.run(commands(DEPLOY / "README.md", "kubectl delete mutatingwebhookconfigurations"))

    def run(self, lines: str) -> str:
        """Run commands in one shell, which ends at the first that fails, and return what they print.

        The webhook's warning about policies of another release is the only one that an upgrade may print.
        """
        done = subprocess.run(
            ["sh", "-e", "-c", lines],
            cwd=self._folder,
            env={"PATH": f"{self._folder / 'bin'}:/usr/local/bin:/usr/bin:/bin", "HOME": str(self._folder)},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS + UNINSTALL_SECONDS,
            check=False,
        )
        errors = [line for line in done.stderr.splitlines() if not OF_ANOTHER_RELEASE.fullmatch(line)]
        assert (done.returncode, errors) == (0, []), f"{lines}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def docker_calls(self) -> list[str]:
        """List the calls of docker, which no test may make: the image is built by tests/realnodes/images.py."""
        return (self._folder / "docker.log").read_text("utf-8").splitlines()
