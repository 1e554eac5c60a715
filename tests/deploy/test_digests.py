# SPDX-License-Identifier: Apache-2.0
"""Images by digest: the instructions of deploy/README pin every image that production runs."""

import os
import re
from pathlib import Path

from tests.deploy.rendering import DEPLOY, Object, helmed, kustomized

DIGEST = "sha256:" + "0123456789abcdef" * 4


def images(objects: list[Object]) -> set[str]:
    """List the images of all containers."""
    pods = [document["spec"]["template"]["spec"] for document in objects if document["kind"] == "Deployment"]
    return {container["image"] for pod in pods for container in [*pod.get("initContainers", ()), *pod["containers"]]}


def test_kustomization_of_the_readme_pins_every_image(tmp_path: Path) -> None:
    """F114: the operator fills in the digests, since no registry was asked for them; none may be missing."""
    blocks = re.findall(r"```yaml\n(.*?)```", (DEPLOY / "README.md").read_text("utf-8"), re.DOTALL)
    (text,) = [block for block in blocks if "images:" in block]
    production = os.path.relpath(DEPLOY / "overlays" / "production", tmp_path.resolve())
    text = text.replace("deploy/overlays/production", production).replace("sha256:…", DIGEST)
    (tmp_path / "kustomization.yaml").write_text(text.replace("REGISTRY", "registry.example"), "utf-8")

    assert images(kustomized(tmp_path)) == {
        f"registry.example/gpu-usher@{DIGEST}",
        f"registry.k8s.io/kube-scheduler@{DIGEST}",
    }


def test_values_of_the_chart_pin_every_image() -> None:
    """F115: the chart does the same."""
    objects = helmed(
        *("--values", str(DEPLOY / "chart" / "values-production.yaml"), f"--set=image.digest={DIGEST}"),
        f"--set=secondScheduler.image=registry.k8s.io/kube-scheduler@{DIGEST}",
    )

    assert images(objects) == {f"gpu-usher@{DIGEST}", f"registry.k8s.io/kube-scheduler@{DIGEST}"}
