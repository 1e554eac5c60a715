# SPDX-License-Identifier: Apache-2.0
"""The environment hole: GPUs taken by a variable, a mount or a CDI annotation instead of being asked for (F12).

A container runtime with NVIDIA's hook gives a container every GPU that NVIDIA_VISIBLE_DEVICES names, whatever the
scheduler thinks, and the pod's own value counts before the device plugin's; other variables give GPUs, channels or
control as well (app/knowledge/toolkit_env.yaml). NVIDIA's operands need that; they run in exempt namespaces. What
`envFrom` and an image's own environment bring is not in the pod, and not seen.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.admission.case import PodChange, PodForm, ReviewedPod
from app.admission.json_patch import Operation, append
from app.knowledge.toolkit_env import EXPANDED, ToolkitEnv, ToolkitVariable
from app.kube.pods import Container
from app.values.errors import OversizedPod
from app.values.json_members import member, objects

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
DEVICE_FOLDER = "nvidia-container-devices"
DEVICE_MOUNTS = f"/var/run/{DEVICE_FOLDER}"
"""Mount paths below it are a device list (device-list-strategy volume-mounts)."""
MOST_TAKINGS = 512
"""Of a pod; each is taken away by an operation of its own. Guess: eight GPUs in each of 64 containers."""
CDI = "cdi.k8s.io/"
"""Annotations with this prefix name devices for the container runtime (Container Device Interface)."""
HIDDEN = {"name": VISIBLE, "value": "void"}


@dataclass(frozen=True, slots=True)
class DeviceAccess:
    """How devices are taken. `who`: the container's name, or "pod"; `given`: it asks for a GPU too; `word`: by what.

    `hideable`: setting NVIDIA_VISIBLE_DEVICES to void ends it, and it is no reason to take away what is at `path`.
    """

    who: str
    given: bool
    path: tuple[str, ...]
    word: str
    hideable: bool = False

    @property
    def wants(self) -> str:
        """Say what is wanted instead."""
        return f"{VISIBLE}: void beside it" if self.hideable else "no such setting"


def takings(case: ReviewedPod) -> Iterator[DeviceAccess]:
    """List every way in which devices are taken that nobody gave, those of one list in the order of the list.

    Raises OversizedPod for more than a pod of people has.
    """
    for count, taking in enumerate(_takings(case)):
        if count == MOST_TAKINGS:
            raise OversizedPod(f"devices: taken in more than {MOST_TAKINGS} ways, wants fewer variables and mounts")
        yield taking


def _takings(case: ReviewedPod) -> Iterator[DeviceAccess]:
    for key, value in case.pod.annotations.items() if case.form is not PodForm.Ephemeral else ():
        if key.startswith(CDI) and any(f"{family.name}.com/" in value for family in case.knowledge.families.all):
            yield DeviceAccess("pod", case.asks, ("metadata", "annotations", key), key[:40])
    for container in guarded(case):
        raw = case.raw(container)
        where = f"spec.{container.list_name}[{container.index}]."
        yield from _by_variables(case, container, [each for _, each in objects(raw, "env", where)])
        for index, mount in objects(raw, "volumeMounts", where):
            path = member(mount, "mountPath", str, f"{where}volumeMounts[{index}].") or ""
            if DEVICE_FOLDER in path and _cleaned(path).startswith(DEVICE_MOUNTS):
                yield _taking(case, container, DEVICE_MOUNTS, "volumeMounts", index)


def _by_variables(case: ReviewedPod, container: Container, env: Sequence[Mapping[str, Any]]) -> Iterator[DeviceAccess]:
    """List the variables that give what the container was not given; those that another hides once, by the first."""
    table, asks, hideable = case.knowledge.toolkit_env, given(case, container), set[str]()
    for index, variable in enumerate(env):
        row = table.get(str(variable.get("name", "")))
        if row is None or not row.takes(variable) or (row.beside_gpu and asks):
            continue
        if row.hidden_by and (row.name in hideable or _hidden(row, env, table)):
            continue
        hideable.add(row.name)
        yield replace(_taking(case, container, row.name, "env", index), hideable=bool(row.hidden_by))


def _hidden(row: ToolkitVariable, env: Sequence[Mapping[str, Any]], table: ToolkitEnv) -> bool:
    """Tell whether other variables of the same container make this one harmless; of a name given twice, both must."""
    hiding = [each for each in env if each.get("name") == row.hidden_by]
    required = [each for each in env if each.get("name") == row.required_by]
    hides = bool(hiding) and not table[row.hidden_by].takes(hiding[-1])
    return hides or (bool(required) and all(map(_says_something, required)))


def _says_something(variable: Mapping[str, Any]) -> bool:
    value = variable.get("value") or ""
    return not variable.get("valueFrom") and bool(value) and EXPANDED not in value


def _taking(case: ReviewedPod, container: Container, word: str, list_name: str, index: int) -> DeviceAccess:
    return DeviceAccess(container.name, given(case, container), _path(container, list_name, str(index)), word)


def _cleaned(path: str) -> str:
    """Clean a mount path as the container toolkit does before it compares."""
    return "/" + posixpath.normpath("/" + path).lstrip("/")


def guarded(case: ReviewedPod) -> tuple[Container, ...]:
    """List the containers that the guard looks at; ephemeral ones that are there already cannot be changed."""
    if case.form is not PodForm.Ephemeral:
        return case.pod.containers
    return tuple(each for each in case.pod.ephemeral if each.name not in case.settled)


def given(case: ReviewedPod, container: Container) -> bool:
    """Tell whether a container asks for a GPU itself, by its resources or by a claim; one nobody knows yet may be."""
    if case.units(container) > 0 or container.name in case.claimed.containers:
        return True
    resources = case.raw(container).get("resources") or {}
    return bool(resources.get("claims") and case.claimed.unknown)


def guard_devices(case: ReviewedPod) -> Iterator[PodChange]:
    """Take away what would take GPUs (Strip); besides, show containers that ask for none that they have none (Void)."""
    mode = case.rules.visible_devices
    if mode not in ("Strip", "Void"):
        return
    for taking in reversed(list(takings(case))):  # from the end, so that positions before it stay true
        if taking.hideable:
            if mode == "Strip":  # Void hides devices from every container that asks for none
                yield _change(taking, Operation("add", (*taking.path[:-1], "-"), HIDDEN), f"hidden by {VISIBLE}: void")
        elif mode == "Void" and taking.word == VISIBLE and not taking.given:
            yield _change(taking, Operation("replace", taking.path, HIDDEN), "set to void")
        else:
            yield _change(taking, Operation("remove", taking.path), "removed")


def hide_devices(case: ReviewedPod) -> Iterator[PodChange]:
    """Set the variable to void where a container asks for no GPU, since its image may say otherwise (Void)."""
    if case.rules.visible_devices != "Void":
        return
    for container in guarded(case):
        named = any(name == VISIBLE for name, _ in container.env)
        if not named and not given(case, container):
            operation = append(case.document, _path(container, "env"), HIDDEN)
            yield PodChange((operation,), f"{container.name}: {VISIBLE} set to void")


def _path(container: Container, *rest: str) -> tuple[str, ...]:
    return ("spec", container.list_name, str(container.index), *rest)


def _change(taking: DeviceAccess, operation: Operation, done: str) -> PodChange:
    record = f"{taking.who}: {taking.word} {done}"
    return PodChange((operation,), record, f"{record}: ask for the GPU in limits")
