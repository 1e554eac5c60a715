# SPDX-License-Identifier: Apache-2.0
"""Manifests at hand: every pod template in the YAML files of directories that asks for a GPU."""

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
"""Of a file that is read; larger ones are generated (a guess)."""
DEEPEST = 30


@dataclass(frozen=True)
class Manifest:
    """A pod as some file would have it created. `where`: the collection, the file, the object's kind and name."""

    where: str
    pod: Object


@dataclass(frozen=True)
class Collection:
    """The GPU pods of one directory.

    `files`: read; `unread`: no YAML, such as templates of Helm; `templates`: of pods, with and without GPUs.
    """

    name: str
    files: int
    unread: int
    templates: int
    gpu_pods: tuple[Manifest, ...]


def own_collection() -> Collection:
    """Give the documented shapes of the corpus, and what deploy/ has."""
    shapes = [pod for name, shape in SHAPES.items() for pod in pods_of(shape.object, f"corpus {name}")]
    deploy = read_collection("deploy", ROOT / "deploy")
    gpu_pods = _distinct([each for each in shapes if asks_for_gpus(each.pod)])
    return Collection("corpus", len(SHAPES) + deploy.files, deploy.unread, len(shapes) + deploy.templates, gpu_pods)


def read_collection(name: str, directory: Path) -> Collection:
    """Read every YAML file below a directory."""
    files = unread = 0
    found: list[Manifest] = []
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
            found += pods_of(document, f"{name} {path.relative_to(directory)}")
    return Collection(name, files, unread, len(found), _distinct([each for each in found if asks_for_gpus(each.pod)]))


def pods_of(document: Any, where: str, depth: int = 0) -> Iterator[Manifest]:
    """List the pods and pod templates in an object, however deep: custom resources have theirs anywhere."""
    if depth > DEEPEST:
        return
    if isinstance(document, list):
        for each in document:
            yield from pods_of(each, where, depth + 1)
    if not isinstance(document, dict):
        return
    spec = document.get("spec")
    if isinstance(spec, dict) and _readable(spec):
        yield Manifest(f"{where} {document.get('kind', 'template')}", _pod(document, spec))
    for value in document.values():
        yield from pods_of(value, where, depth + 1)


def _readable(spec: Object) -> bool:
    """Tell whether it is a pod's spec that the API server would decode; some examples are outlines."""
    lists = [spec.get(name) or [] for name in CONTAINER_LISTS]
    if not spec.get("containers") or not all(isinstance(each, list) for each in lists):
        return False
    found = [each for containers in lists for each in containers]
    return all(isinstance(each, dict) and "name" in each and _amounts_readable(each) for each in found)


def _amounts_readable(container: Object) -> bool:
    resources = container.get("resources") or {}
    sides = [resources.get(side) or {} for side in ("requests", "limits")] if isinstance(resources, dict) else [None]
    return all(
        isinstance(side, dict) and all(isinstance(amount, str | int | float) for amount in side.values())
        for side in sides
    )


def _pod(document: Object, spec: Object) -> Object:
    """Make the Pod that the API server sends to a webhook: amounts as text, limits as requests."""
    metadata = document.get("metadata") if isinstance(document.get("metadata"), dict) else {}
    kept = {key: value for key, value in (metadata or {}).items() if key in ("labels", "annotations") and value}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team-a", **kept}, "spec": spec}
    return defaulted(json.loads(json.dumps(pod, default=str)))


def asks_for_gpus(pod: Object) -> bool:
    """Tell whether some container names a GPU resource."""
    return any(_is_gpu(name) for name in amounts(pod))


@cache
def _is_gpu(name: str) -> bool:
    return knowledge().families.of(name) is not None


def amounts(pod: Object) -> dict[str, list[str]]:
    """Collect what the containers ask, by GPU resource; init containers run before the others and reuse theirs."""
    found: dict[str, list[str]] = {}
    for each in pod["spec"]["containers"]:
        for name, amount in ((each.get("resources") or {}).get("limits") or {}).items():
            if _is_gpu(name):
                found.setdefault(name, []).append(amount)
        for name in (each.get("resources") or {}).get("requests") or {}:
            if _is_gpu(name):
                found.setdefault(name, [])
    return found


def _distinct(manifests: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Keep one of several equal pods."""
    return tuple({json.dumps(each.pod, sort_keys=True): each for each in manifests}.values())
