# SPDX-License-Identifier: Apache-2.0
"""The environment hole: GPUs taken by a variable, a mount or a CDI annotation instead of being asked for (F12).

A container runtime with NVIDIA's hook gives a container every GPU that NVIDIA_VISIBLE_DEVICES names, whatever the
scheduler thinks, and the pod's own value counts before the device plugin's (facts: image_cuda env). NVIDIA's operands
need that; they run in exempt namespaces.
"""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.admission.case import Case, Change, Form
from app.admission.patch import Operation, append
from app.errors import OversizedPod
from app.pods import Container, member, objects

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
CONTROLLING = ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES")
"""Variables that let a container reconfigure or watch MIG devices that it was not given."""
HARMLESS = ("", "void", "none")
"""Values that give no GPU; `none` still gives the driver's libraries."""
DEVICE_FOLDER = "nvidia-container-devices"
DEVICE_MOUNTS = f"/var/run/{DEVICE_FOLDER}"
"""Mount paths below it are a device list (device-list-strategy volume-mounts)."""
MOST_TAKINGS = 512
"""Of a pod; each is taken away by an operation of its own. Guess: eight GPUs in each of 64 containers."""
CDI = "cdi.k8s.io/"
"""Annotations with this prefix name devices for the container runtime (Container Device Interface)."""
HIDDEN = {"name": VISIBLE, "value": "void"}


@dataclass(frozen=True, slots=True)
class Taking:
    """How devices are taken. `who`: the container's name, or "pod"; `given`: it asks for a GPU too; `word`: by what."""

    who: str
    given: bool
    path: tuple[str, ...]
    word: str


def takings(case: Case) -> Iterator[Taking]:
    """List every way in which devices are taken that nobody gave, those of one list in the order of the list.

    Raises OversizedPod for more than a pod of people has.
    """
    for count, taking in enumerate(_takings(case)):
        if count == MOST_TAKINGS:
            raise OversizedPod(f"devices: taken in more than {MOST_TAKINGS} ways, wants fewer variables and mounts")
        yield taking


def _takings(case: Case) -> Iterator[Taking]:
    for key, value in case.pod.annotations.items() if case.form is not Form.Ephemeral else ():
        if key.startswith(CDI) and any(f"{family.name}.com/" in value for family in case.knowledge.families.all):
            yield Taking("pod", case.asks, ("metadata", "annotations", key), key[:40])
    for container in guarded(case):
        raw = case.raw(container)
        where = f"spec.{container.list_name}[{container.index}]."
        for index, variable in objects(raw, "env", where):
            name = str(variable.get("name", ""))
            if name in CONTROLLING or (name == VISIBLE and not _harmless(variable)):
                yield _taking(case, container, name, "env", index)
        for index, mount in objects(raw, "volumeMounts", where):
            path = member(mount, "mountPath", str, f"{where}volumeMounts[{index}].") or ""
            if DEVICE_FOLDER in path and _cleaned(path).startswith(DEVICE_MOUNTS):
                yield _taking(case, container, DEVICE_MOUNTS, "volumeMounts", index)


def _taking(case: Case, container: Container, word: str, list_name: str, index: int) -> Taking:
    return Taking(container.name, given(case, container), _path(container, list_name, str(index)), word)


def _cleaned(path: str) -> str:
    """Clean a mount path as the container toolkit does before it compares."""
    return "/" + posixpath.normpath("/" + path).lstrip("/")


def guarded(case: Case) -> tuple[Container, ...]:
    """List the containers that the guard looks at; ephemeral ones that are there already cannot be changed."""
    if case.form is not Form.Ephemeral:
        return case.pod.containers
    return tuple(each for each in case.pod.ephemeral if each.name not in case.settled)


def given(case: Case, container: Container) -> bool:
    """Tell whether a container asks for a GPU itself, by its resources or by a claim; one nobody knows yet may be."""
    if case.units(container) > 0 or container.name in case.claimed.containers:
        return True
    resources = case.raw(container).get("resources") or {}
    return bool(resources.get("claims") and case.claimed.unknown)


def _harmless(variable: Mapping[str, Any]) -> bool:
    """Tell whether a literal value gives no GPU; what comes from elsewhere cannot be seen."""
    return not variable.get("valueFrom") and (variable.get("value") or "") in HARMLESS


def guard_devices(case: Case) -> Iterator[Change]:
    """Take away what would take GPUs (Strip); besides, show containers that ask for none that they have none (Void)."""
    mode = case.rules.visible_devices
    if mode not in ("Strip", "Void"):
        return
    for taking in reversed(list(takings(case))):  # from the end, so that positions before it stay true
        if mode == "Void" and taking.word == VISIBLE and not taking.given:
            yield _change(taking, Operation("replace", taking.path, HIDDEN), "set to void")
        else:
            yield _change(taking, Operation("remove", taking.path), "removed")


def hide_devices(case: Case) -> Iterator[Change]:
    """Set the variable to void where a container asks for no GPU, since its image may say otherwise (Void)."""
    if case.rules.visible_devices != "Void":
        return
    for container in guarded(case):
        named = any(name == VISIBLE for name, _ in container.env)
        if not named and not given(case, container):
            operation = append(case.document, _path(container, "env"), HIDDEN)
            yield Change((operation,), f"{container.name}: {VISIBLE} set to void")


def _path(container: Container, *rest: str) -> tuple[str, ...]:
    return ("spec", container.list_name, str(container.index), *rest)


def _change(taking: Taking, operation: Operation, done: str) -> Change:
    record = f"{taking.who}: {taking.word} {done}"
    return Change((operation,), record, f"{record}: ask for the GPU in limits")
