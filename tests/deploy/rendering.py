# SPDX-License-Identifier: Apache-2.0
"""Render deploy/ with the real tools: kustomize, as kubectl has it, and helm."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.binaries import find_binaries, kubernetes_version
from tests.deploy.tools import find_tool

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
OVERLAYS = ("dev", "webhook-only", "production")
RENDER_SECONDS = 60
"""Bound; each takes some 0.2 s."""
Object = dict[str, Any]
Key = tuple[str, str, str]


def kustomized(overlay: str | Path) -> list[Object]:
    """Build an overlay, one of ours by its name; skips where there is no kubectl."""
    return _objects(_run([*kubectl_command(), "kustomize", str(DEPLOY / "overlays" / overlay)]))


def helmed(*words: str) -> list[Object]:
    """Render the chart; skips where there is no helm."""
    return _objects(_run(helm_command("template", *words)))


def helm_command(verb: str, *words: str) -> list[str]:
    """Give the command line of a verb over the chart, in our namespace, for a cluster of the tests' version."""
    found = find_tool("helm")
    if isinstance(found, str):
        pytest.skip(found)
    version = f"--kube-version={kubernetes_version()}"
    name = ["gpu-usher"] if verb == "template" else []
    return [str(found), verb, *name, str(DEPLOY / "chart"), "--namespace=gpu-usher", version, *words]


def kubectl_command() -> tuple[str, ...]:
    """Give the words that start kubectl; skips where there is none."""
    found = find_binaries()
    if isinstance(found, str):
        pytest.skip(found)
    return found.command("kubectl")


def by_key(objects: list[Object]) -> dict[Key, Object]:
    """Order objects by kind, namespace and name; each may be there once."""
    found = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in objects}
    assert len(found) == len(objects)
    return found


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=RENDER_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _objects(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text) if each]
