# SPDX-License-Identifier: Apache-2.0
"""`kubectl gpu-usher` runs the program kubectl-gpu_usher, which the wheel installs on PATH."""

import os
import subprocess
import sys
from pathlib import Path

from app import __version__
from tests.controlplane.binaries import Binaries
from tests.controlplane.cluster import ControlPlane
from tests.e2e.stage import create_namespace, create_pod, eventually, gpu_pod, read_pod

WHERE = "plugin"
SECONDS = 120


def plugin(binaries: Binaries, kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [*binaries.command("kubectl"), "gpu-usher", *words],
        env={**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_kubectl_runs_our_commands_against_the_cluster_of_its_kubeconfig(
    plane: ControlPlane, binaries: Binaries
) -> None:
    """F83: explain a pending pod with kubectl."""
    create_namespace(plane, WHERE)
    pod = create_pod(plane, gpu_pod("train-0", WHERE, {"nvidia.com/gpu": 1}))
    eventually("it is there", lambda: read_pod(plane, pod)["metadata"]["uid"])
    kubeconfig = plane.kubeconfig("admin")

    version = plugin(binaries, kubeconfig, "--version")
    explained = plugin(binaries, kubeconfig, "explain", "pod", f"{WHERE}/train-0")

    assert (version.returncode, version.stdout.strip()) == (0, __version__)
    assert explained.returncode == 1, explained.stderr
    assert "train-0" in explained.stdout
