# SPDX-License-Identifier: Apache-2.0
"""Manifests from YAML files: every pod template below given directories that asks for a GPU."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.builders import knowledge
from tests.corpus.shapes import CONTAINER_LISTS, FOLDER, SHAPES, defaulted

Object = dict[str, Any]
ROOT = FOLDER.parent.parent
LARGEST_BYTES = 1 << 20
"""Files above this size are not read, since such files are generated (a guess)."""
DEEPEST = 30


@dataclass(frozen=True)
class Manifest:
    """A pod that a file would create. `where` is the collection, the file, and the object's kind and name."""

    where: str
    pod: Object


@dataclass(frozen=True)
class Collection:
    """The GPU pods of one directory.

    `files` were read, and `unread` are no YAML, such as Helm templates. `templates` are of pods with and without GPUs.
    """

    name: str
    files: int
    unread: int
    templates: int
    gpu_pods: tuple[Manifest, ...]


def own_collection() -> Collection:
    """Return the documented shapes of the corpus, and the manifests of deploy/."""
    shapes = [pod for name, shape in SHAPES.items() for pod in pods_of(shape.object, f"corpus {name}")]
    deploy = read_collection("deploy", ROOT / "deploy")
    gpu_pods = _distinct([manifest for manifest in shapes if asks_for_gpus(manifest.pod)])
    return Collection("corpus", len(SHAPES) + deploy.files, deploy.unread, len(shapes) + deploy.templates, gpu_pods)


def read_collection(name: str, directory: Path) -> Collection:
    """Read every YAML file below a directory."""
    files = unread = 0
    manifests: list[Manifest] = []
    for path in sorted({*directory.rglob("*.yaml"), *directory.rglob("*.yml")}):
        if not path.is_file() or path.is_symlink() or path.stat().st_size > LARGEST_BYTES:
            continue
        try:
            documents = list(yaml.load_all(path.read_text("utf-8"), yaml.CSafeLoader))
        except (yaml.YAMLError, UnicodeDecodeError, ValueError):
            unread += 1
            continue
        files += 1
        for document in documents:
            manifests += pods_of(document, f"{name} {path.relative_to(directory)}")
    return Collection(
        name,
        files,
        unread,
        len(manifests),
        _distinct([manifest for manifest in manifests if asks_for_gpus(manifest.pod)]),
    )


def pods_of(document: Any, where: str, depth: int = 0) -> Iterator[Manifest]:
    """Yield the pods and pod templates in an object at any depth, since custom resources may have them anywhere."""
    if depth > DEEPEST:
        return
    if isinstance(document, list):
        for item in document:
            yield from pods_of(item, where, depth + 1)
    if not isinstance(document, dict):
        return
    spec = document.get("spec")
    if isinstance(spec, dict) and _readable(spec):
        yield Manifest(f"{where} {document.get('kind', 'template')}", _pod(document, spec))
    for value in document.values():
        yield from pods_of(value, where, depth + 1)


def _readable(spec: Object) -> bool:
    """Tell whether the API server would decode this as a pod's spec, since some examples are only outlines."""
    lists = [spec.get(name) or [] for name in CONTAINER_LISTS]
    if not spec.get("containers") or not all(isinstance(entries, list) for entries in lists):
        return False
    containers = [container for entries in lists for container in entries]
    return all(isinstance(entry, dict) and "name" in entry and _amounts_readable(entry) for entry in containers)


def _amounts_readable(container: Object) -> bool:
    resources = container.get("resources") or {}
    sides = [resources.get(side) or {} for side in ("requests", "limits")] if isinstance(resources, dict) else [None]
    return all(
        isinstance(side, dict) and all(isinstance(amount, str | int | float) for amount in side.values())
        for side in sides
    )


def _pod(document: Object, spec: Object) -> Object:
    """Make the Pod as the API server sends it to a webhook, with amounts as text and requests equal to limits."""
    metadata = document.get("metadata") if isinstance(document.get("metadata"), dict) else {}
    members = {key: value for key, value in (metadata or {}).items() if key in ("labels", "annotations") and value}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team-a", **members}, "spec": spec}
    return defaulted(json.loads(json.dumps(pod, default=str)))


def asks_for_gpus(pod: Object) -> bool:
    """Tell whether some container names a GPU resource."""
    return any(_is_gpu(name) for name in amounts(pod))


@cache
def _is_gpu(name: str) -> bool:
    return knowledge().families.of(name) is not None


def amounts(pod: Object) -> dict[str, list[str]]:
    """Collect the amounts by GPU resource. Init containers are left out, since later containers reuse their GPUs."""
    by_resource: dict[str, list[str]] = {}
    for container in pod["spec"]["containers"]:
        for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            if _is_gpu(name):
                by_resource.setdefault(name, []).append(amount)
        for name in (container.get("resources") or {}).get("requests") or {}:
            if _is_gpu(name):
                by_resource.setdefault(name, [])
    return by_resource


def _distinct(manifests: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Keep one of several equal pods."""
    return tuple({json.dumps(manifest.pod, sort_keys=True): manifest for manifest in manifests}.values())
