# SPDX-License-Identifier: Apache-2.0
"""Render deploy/ with the real tools: with kustomize, as part of kubectl, and with helm."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.binaries import find_binaries
from tests.controlplane.module_files import kubernetes_version
from tests.deploy.tools import find_tool

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
OVERLAYS = ("dev", "webhook-only", "production-self-signed", "production")
RENDER_SECONDS = 60
"""Seconds for a tool; each takes about 0.2 s."""
Object = dict[str, Any]
Key = tuple[str, str, str]


def kustomized(overlay: str | Path) -> list[Object]:
    """Build an overlay by its name or path; the test skips where there is no kubectl."""
    return _objects(_run([*kubectl_command(), "kustomize", str(DEPLOY / "overlays" / overlay)]))


def helmed(*words: str) -> list[Object]:
    """Render the chart; the test skips where there is no helm."""
    return _objects(_run(helm_command("template", *words)))


def helm_command(verb: str, *words: str) -> list[str]:
    """Return the command line of a verb over the chart, in our namespace, for a cluster of the tests' version."""
    program = find_tool("helm")
    if isinstance(program, str):
        pytest.skip(program)
    version = f"--kube-version={kubernetes_version()}"
    name = ["gpu-usher"] if verb == "template" else []
    return [str(program), verb, *name, str(DEPLOY / "chart"), "--namespace=gpu-usher", version, *words]


def kubectl_command() -> tuple[str, ...]:
    """Return the words that start kubectl; the test skips where there is none."""
    binaries = find_binaries()
    if isinstance(binaries, str):
        pytest.skip(binaries)
    return binaries.command("kubectl")


def by_key(objects: list[Object]) -> dict[Key, Object]:
    """Return objects by kind, namespace and name, each of which occurs once."""
    ordered = {}
    for document in objects:
        metadata = document["metadata"]
        ordered[document["kind"], metadata.get("namespace", ""), metadata["name"]] = document
    assert len(ordered) == len(objects)
    return ordered


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=RENDER_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _objects(text: str) -> list[Object]:
    return [document for document in yaml.safe_load_all(text) if document]
