# SPDX-License-Identifier: Apache-2.0
"""Neighbours as processes beside the control plane: their objects, their accounts, and Services that lead to them."""

import json
from collections.abc import Iterable
from pathlib import Path

import yaml

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object

ESTABLISHED_SECONDS = 30


def rendered(plane: ControlPlane, folder: Path) -> list[Object]:
    """List the objects of a folder with a kustomization, by the control plane's own kubectl."""
    result = plane.kubectl("kustomize", str(folder))
    assert result.code == 0, result.err
    return list(yaml.safe_load_all(result.out))


def apply(plane: ControlPlane, objects: Iterable[Object]) -> None:
    """Apply objects server-side, and wait for the kinds that they define."""
    listed = list(objects)
    result = plane.kubectl(
        "apply", "--server-side", "-f", "-", stdin="\n---\n".join(json.dumps(document) for document in listed)
    )
    assert result.code == 0, result.err
    kinds = [f"crd/{one['metadata']['name']}" for one in listed if one["kind"] == "CustomResourceDefinition"]
    if kinds:
        result = plane.kubectl("wait", "--for=condition=established", *kinds, f"--timeout={ESTABLISHED_SECONDS}s")
        assert result.code == 0, result.err


def lead_service(plane: ControlPlane, namespace: str, name: str) -> None:
    """Create a Service that leads to loopback, where no network of pods is.

    The API server calls webhooks and conversions at the name that it gives (k8s.io/apiserver pkg/util/proxy), and
    expects the certificate of the Service all the same. The port is that of the caller's clientConfig.
    """
    spec = {"type": "ExternalName", "externalName": "127.0.0.1"}
    apply(
        plane,
        [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec}],
    )


def at_port(document: Object, port: int) -> Object:
    """Set the port in every clientConfig of a webhook configuration or of a kind that is converted by a webhook."""
    conversion = (document.get("spec") or {}).get("conversion") or {}
    for webhook in (*document.get("webhooks", ()), *filter(None, [conversion.get("webhook")])):
        webhook["clientConfig"]["service"]["port"] = port
    return document


def account_kubeconfig(plane: ControlPlane, namespace: str, account: str) -> Path:
    """Write a kubeconfig with a token of a ServiceAccount, which has the rights of its own roles."""
    result = plane.kubectl("create", "token", account, f"--namespace={namespace}")
    assert result.code == 0, result.err
    document = json.loads(plane.kubeconfig("admin").read_text("utf-8"))
    document["users"][0]["user"]["token"] = result.out.strip()
    path = plane.folder / f"{account}.kubeconfig"
    path.write_text(json.dumps(document), "utf-8")
    return path
