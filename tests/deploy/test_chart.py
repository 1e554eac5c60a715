# SPDX-License-Identifier: Apache-2.0
"""The chart renders what kustomize does, for the values that match, and refuses values without a meaning."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import DEPLOY, OVERLAYS, Object, by_key, helm_command, helmed, kustomized

CREATED = ("--set", "namespace.create=true")


def without_helms_own(document: Object) -> Object:
    """Remove the annotation that only tells helm what to keep."""
    annotations = {
        key: value
        for key, value in (document["metadata"].get("annotations") or {}).items()
        if not key.startswith("helm.sh/")
    }
    rest = {key: value for key, value in document["metadata"].items() if key != "annotations"}
    return {**document, "metadata": {**rest, **({"annotations": annotations} if annotations else {})}}


def comparable(value: Any, kind: str = "") -> Any:
    """Remove the line breaks of PromQL, since kustomize adds an empty line to folded text."""
    if isinstance(value, dict):
        return {key: comparable(member, value.get("kind", kind)) for key, member in value.items()}
    if isinstance(value, list):
        return [comparable(member, kind) for member in value]
    return " ".join(value.split()) if kind == "PrometheusRule" and isinstance(value, str) else value


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_chart_renders_the_objects_of_the_overlay(overlay: str) -> None:
    """F113, F115: both tools render the same source."""
    expected = by_key(kustomized(overlay))

    rendered = by_key(helmed("--values", str(DEPLOY / "chart" / f"values-{overlay}.yaml"), *CREATED))

    assert expected.keys() == rendered.keys()
    for key, document in expected.items():
        assert comparable(document) == comparable(without_helms_own(rendered[key])), key


def test_definition_of_policies_stays_when_the_chart_is_uninstalled() -> None:
    """F115: every GPUPolicy would be deleted with its definition."""
    definition = by_key(helmed())["CustomResourceDefinition", "", "gpupolicies.gpu-usher.io"]

    assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_switch_adds_the_component_that_makes_claim_templates() -> None:
    """F115, F135: the objects are those of the component, and no others."""
    added = by_key(helmed("--set", "claimTemplates.enabled=true"))
    for key in by_key(helmed()):
        del added[key]
    folder = DEPLOY / "components" / "claim-templates"
    written = [
        document
        for name in ("rbac.yaml", "deployment.yaml")
        for document in yaml.safe_load_all((folder / name).read_text("utf-8"))
    ]

    assert {key: document["kind"] for key, document in added.items()} == {
        key: document["kind"] for key, document in by_key(written).items()
    }


def test_chart_without_webhooks_is_the_first_step_of_an_installation() -> None:
    """ADM-10: no webhook configuration is created before the replicas run."""
    first = by_key(helmed("--set", "webhooks.enabled=false"))
    second = by_key(helmed())

    assert {kind for kind, _, _ in second.keys() - first.keys()} == {
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    }


@pytest.mark.parametrize(
    ("values", "member"),
    [
        ("replicas=0", "replicas"),
        ("replica=3", "replica"),
        ("webhooks.validate.failurePolicy=Open", "failurePolicy"),
        ("webhooks.mutate.timeoutSeconds=31", "timeoutSeconds"),
        ("certificates.mode=none", "mode"),
        ("certificates.mode=secret", "caBundle"),
        ("env.SHADOW=true", "SHADOW"),
        ("image.digest=latest", "digest"),
    ],
)
def test_value_that_means_nothing_is_refused(values: str, member: str) -> None:
    """F115: the schema or the template names the value."""
    done = subprocess.run(helm_command("template", "--set", values), capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert member in done.stderr


def test_values_reach_every_container_of_ours() -> None:
    digest = "sha256:" + "0" * 64
    objects = by_key(
        helmed(
            *("--set", f"image.repository=registry.example/gpu-usher,image.digest={digest}"),
            *("--set", "secondScheduler.enabled=true,secondScheduler.image=registry.example/scheduler:v1"),
            *("--set-string", "env.GPU_USHER_SHADOW=true"),
        )
    )

    pods = [document["spec"]["template"]["spec"] for (kind, _, _), document in objects.items() if kind == "Deployment"]
    containers = [container for pod in pods for container in [*pod.get("initContainers", []), *pod["containers"]]]

    assert len(containers) == 4
    for container in containers:
        own = container["name"] != "kube-scheduler"
        image = f"gpu-usher@{digest}" if own else "scheduler:v1"
        assert container["image"] == f"registry.example/{image}"
        if "env" in container:
            assert {"name": "GPU_USHER_SHADOW", "value": "true"} in container["env"]


def test_packaged_chart_has_no_links_and_renders_the_same_without_a_word(tmp_path: Path) -> None:
    """F113: helm prints a line for each symbolic link of deploy/chart."""
    made = subprocess.run(
        ["make", "-s", "chart", f"BUILD={tmp_path}"], cwd=DEPLOY.parent, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    archive = Path(made.stdout.strip())
    words = [str(archive) if word == str(DEPLOY / "chart") else word for word in helm_command("template")]

    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert by_key([document for document in yaml.safe_load_all(done.stdout) if document]) == by_key(helmed())


@pytest.mark.parametrize("mode", ["self-signed", "cert-manager"])
def test_switch_adds_the_api_for_tenants_as_the_component_does(mode: str, tmp_path: Path) -> None:
    """F113, F115: the APIService, the right of tenants, and the port of the replicas and of their Service."""
    overlay = {
        "resources": [f"{_relative(tmp_path)}/base"],
        "components": [f"{_relative(tmp_path)}/components/{name}" for name in ("crd", "dra", "explain-api", mode)],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay), "utf-8")
    expected = by_key(kustomized(tmp_path))

    rendered = by_key(helmed("--set", f"explainApi.enabled=true,certificates.mode={mode}", *CREATED))

    assert expected.keys() == rendered.keys()
    for key, document in expected.items():
        assert comparable(document) == comparable(without_helms_own(rendered[key])), key
    service = rendered["Service", "gpu-usher", "gpu-usher"]
    api = rendered["APIService", "", "v1alpha1.explain.gpu-usher.io"]
    assert api["spec"]["service"]["port"] in {port["port"] for port in service["spec"]["ports"]}


def test_switch_adds_the_registries_as_the_component_does(tmp_path: Path) -> None:
    overlay = {
        "resources": [f"{_relative(tmp_path)}/base"],
        "components": [
            f"{_relative(tmp_path)}/components/{name}"
            for name in ("crd", "dra", "second-scheduler", "image-facts", "self-signed")
        ],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay), "utf-8")
    expected = by_key(kustomized(tmp_path))

    rendered = by_key(helmed("--set", "imageFacts.enabled=true,secondScheduler.enabled=true", *CREATED))

    assert expected.keys() == rendered.keys()
    for key, document in expected.items():
        assert comparable(document) == comparable(without_helms_own(rendered[key])), key
    mounted = [key for key, document in rendered.items() if "gpu-usher-registries" in str(document.get("spec"))]
    assert {name for _, _, name in mounted} == {"gpu-usher", "gpu-usher-scheduler"}


def _relative(folder: Path) -> str:
    return os.path.relpath(DEPLOY.resolve(), folder.resolve())
