# SPDX-License-Identifier: Apache-2.0
"""The Pod Security Standards as rows of pod_security.yaml, and which of them a pod violates.

A namespace's labels choose the level and the version that the API server enforces
(kubernetes/pod-security-admission policy and api/helpers.go).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

LEVEL, VERSION = "pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/enforce-version"
NEWEST = 1 << 30
"""The minor version that `latest` stands for."""
ABSENT: Any = object()
_VERSION = re.compile(r"v1\.(\d{1,4})", re.ASCII)


class PodSecurityRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of pod_security.yaml, which explains its fields."""

    message: str
    paths: tuple[str, ...]
    allowed: tuple[Any, ...] = ()
    denied: tuple[Any, ...] = ()
    one_of: tuple[str, ...] = ()
    contains: str = ""
    required: bool = False
    fallback: str = ""
    first: int = msgspec.field(name="from", default=0)
    until: int = NEWEST + 1
    replaced: int = NEWEST + 1
    not_on_windows: int = NEWEST + 1
    not_in_user_namespace: int = NEWEST + 1

    def violations(self, pod: Mapping[str, Any], version: int) -> Iterator[str]:
        """Yield the fields of a pod that violate the rule, as paths with names of containers."""
        spec = pod["spec"]
        windows = spec.get("os") == {"name": "windows"} and version >= self.not_on_windows
        own_users = spec.get("hostUsers") is False and version >= self.not_in_user_namespace
        if not self.first <= version < self.until or windows or own_users:
            return
        inherited = next((value for _, value in _values(pod, self.fallback)), ABSENT) if self.fallback else ABSENT
        for path in self.paths:
            for where, value in _values(pod, path):
                if self._is_violated(inherited if value is ABSENT else value):
                    yield where

    def _is_violated(self, value: Any) -> bool:
        if value is ABSENT:
            return self.required
        if self.one_of:
            return isinstance(value, Mapping) and all(value.get(key) is None for key in self.one_of)
        if self.contains:
            return not isinstance(value, list) or self.contains not in value
        return value in self.denied if self.denied else value not in self.allowed


Levels = Mapping[str, tuple[PodSecurityRule, ...]]
"""The rules by level; restricted has those of baseline, too."""


def pod_security_violations(levels: Levels, pod: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, list[str]]:
    """List what a pod violates in a namespace with these labels: the fields by the API server's name for it."""
    level = labels.get(LEVEL, "privileged")
    match = _VERSION.fullmatch(labels.get(VERSION, ""))
    version, found = int(match[1]) if match else NEWEST, dict[str, list[str]]()
    restricted = level == "restricted"
    rules = [*levels["baseline"], *(levels["restricted"] if restricted else ())] if level != "privileged" else []
    for rule in rules:
        if not (restricted and rule.replaced <= version):
            for where in rule.violations(pod, version):
                found.setdefault(rule.message, []).append(where)
    return found


CONTAINERS = ("initContainers", "containers", "ephemeralContainers")


def _values(node: Any, path: str, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of a path below an object; the value is ABSENT where a container, or the pod, has none."""
    key, _, rest = path.partition(".")
    name = key.removesuffix("[]")
    keys = CONTAINERS if name == "containers" and key != name else (name,)
    for member in keys:
        value = node.get(member) if isinstance(node, Mapping) else None
        place = f"{where}{member}"
        if key == name:
            if value is None or not rest:
                yield f"{where}{path}", ABSENT if value is None else value
            else:
                yield from _values(value, rest, f"{place}.")
            continue
        for index, item in enumerate(value if isinstance(value, list) else ()):
            label = item.get("name", index) if isinstance(item, Mapping) else index
            if rest:
                yield from _values(item, rest, f"{place}[{label}].")
            else:
                yield f"{place}[{label}]", item
