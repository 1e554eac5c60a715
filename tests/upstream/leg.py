# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.upstream.leg LEG FOCUS FOLDER`: run the suite once on a cluster of three real nodes, in a sandbox.

`none` is a cluster without gpu-usher. `default` has the webhooks as deploy/ ships them and the extender in the
cluster's own scheduler, and `every-pod` the same with `scheduler-config --every-pod`. The report goes to FOLDER.
"""

import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.controlplane.binaries import find_binaries
from tests.controlplane.kubectl import Object
from tests.e2e.stage import install_webhooks, scheduler_configuration, serving
from tests.realnodes import nvidia
from tests.realnodes.cluster import Cluster, real_cluster
from tests.realnodes.control_plane import NAMES, RealControlPlane
from tests.realnodes.worlds import make_world
from tests.upstream import programs

LEGS = ("none", "default", "every-pod")
PROCESSES = 6
"""Tests at the same time, which wait for pods most of their time; a guess for two cores."""
LIMIT = "40m"
"""Bound on a run, after which ginkgo ends it and reports what was not run."""
RUN_SECONDS = 2700
SKIPPED = r"\[Disruptive\]|\[Flaky\]|\[Slow\]|\[Alpha\]|OffByDefault|StatefulSet|HPA|Windows|DNS|Aggregator"
"""What needs a cloud, volumes, a feature that is off, cluster DNS or an image that is not made here, or takes long."""
ZONE = "topology.kubernetes.io/zone"
PLAIN: Object = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


class FullControlPlane(RealControlPlane):
    """A control plane with all controllers that are on by default, as the suite expects them."""

    controllers = ("*",)
    gates = ()


def main(leg: str, focus: str, folder: Path) -> int:
    """Run one leg; the exit code is that of ginkgo, which is 1 where tests failed."""
    binaries, built, suite = find_binaries(), nvidia.find(), programs.find()
    if isinstance(binaries, str) or isinstance(built, str) or isinstance(suite, str):
        raise SystemExit(f"upstream: {[why for why in (binaries, built, suite) if isinstance(why, str)]}")
    archives = programs.archives(suite)
    worlds = [make_world("h100", name) for name in NAMES]
    with ExitStack() as stack:
        cluster = stack.enter_context(real_cluster(binaries, archives, built, worlds, FullControlPlane))
        for node in cluster.nodes.values():
            cluster.plane.api.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {ZONE: f"zone-{node.name}"}}})
            for archive in archives.values():
                node.import_image(archive)
        _start_scheduler(leg, cluster, stack)
        return _play(suite, cluster, focus, folder)


def _start_scheduler(leg: str, cluster: Cluster, stack: ExitStack) -> None:
    """Start the cluster's own scheduler, with gpu-usher beside it but in the leg `none`."""
    plane = cluster.plane
    if leg == "none":
        plane.start_scheduler(PLAIN)
        return
    service = stack.enter_context(serving(plane))
    install_webhooks(plane, service)
    words = ("--for", "default", *(("--every-pod",) if leg == "every-pod" else ()))
    plane.start_scheduler(scheduler_configuration(service, *words))


def _play(suite: Path, cluster: Cluster, focus: str, folder: Path) -> int:
    kubeconfig = str(cluster.plane.kubeconfig("admin"))
    kubectl = folder / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nexec {" ".join(cluster.plane.binaries.command("kubectl"))} "$@"\n', "utf-8")
    kubectl.chmod(0o755)
    command = [
        str(suite / programs.RUNNER),
        f"--procs={PROCESSES}",
        f"--focus={focus}",
        f"--skip={SKIPPED}",
        f"--timeout={LIMIT}",
        "--keep-going",
        "--junit-report=report.xml",
        f"--output-dir={folder}",
        "--silence-skips",
        "--no-color",
        str(suite / programs.SUITE),
        "--",
        f"--kubeconfig={kubeconfig}",
        f"--kubectl-path={kubectl}",
        "--provider=skeleton",
        "--num-nodes=3",
        "--disable-log-dump",
    ]
    with (folder / "log").open("wb") as log:
        return subprocess.run(command, stdout=log, stderr=log, timeout=RUN_SECONDS, check=False).returncode


if __name__ == "__main__":
    target = Path(sys.argv[3])
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    sys.exit(main(sys.argv[1], sys.argv[2], target))
