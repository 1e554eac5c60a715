# SPDX-License-Identifier: Apache-2.0
"""Names of GPU resources: the extended resources of each vendor in families, and the keys of the taints on such nodes.

A name that no family has may be misspelt, or one that the API server refuses; `similar_resources` finds the GPU
resource that is meant.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from app.knowledge.mig_profiles import RESOURCE_FORM, nominal_size, profile_of

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""The name of a namespace, a DNS label (RFC 1123)."""
DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""The prefix of resource names that contain a DeviceClass (k8s.io/api resource/v1 ResourceDeviceClassPrefix)."""


@dataclass(frozen=True, slots=True)
class GPUsElsewhere:
    """Resources by which a family's GPUs are given to virtual machines, or are shared and placed by another project.

    `names` is a regular expression (RE2) for whole names. `unit` is what one unit is, and `per_gpu` the number of units
    of a whole GPU where a resource counts parts of one.
    """

    names: str
    unit: str
    per_gpu: int = 1


@dataclass(frozen=True, slots=True)
class Family:
    """The resources of one GPU vendor.

    A resource belongs to the family by its name in `resources` or by one of `prefixes`. `whole` is the resource whose
    unit is a whole GPU where GPUs are not shared. `device_classes` are the DeviceClasses of the vendor's DRA driver
    that give GPUs, that of whole GPUs first. `passthrough` is a regular expression (RE2) for all names of `elsewhere`,
    empty if there are none. `cuda` says that the GPUs run CUDA, and that GPU Feature Discovery
    labels their nodes. `mig_prefix` is the one of `prefixes` that is followed by a MIG profile, empty for GPUs without
    MIG. `labeller` is what labels the vendor's nodes, and `health_source` what says why a GPU is unhealthy, both as
    advice names them.
    """

    name: str
    resources: frozenset[str]
    prefixes: tuple[str, ...]
    whole: str
    taint_keys: tuple[str, ...]
    device_classes: tuple[str, ...] = ()
    passthrough: str = ""
    cuda: bool = False
    mig_prefix: str = ""
    elsewhere: tuple[GPUsElsewhere, ...] = ()
    labeller: str = "the vendor's node labeller"
    health_source: str = "the vendor's tools"

    def has(self, resource: str) -> bool:
        """Tell whether a resource name belongs to the family."""
        return resource in self.resources or resource.startswith(self.prefixes)


@lru_cache(maxsize=4096)
def matches_whole_name(pattern: str, name: str) -> bool:
    """Match a whole name against a pattern; cached, since pods use few different resources."""
    return re.fullmatch(pattern, name) is not None


@dataclass(frozen=True, slots=True)
class TaintMeaning:
    """One row of node_taints.yaml, whose comment explains the fields."""

    key: str
    says: str
    remedy: str
    passes: bool


def meaning_of_taint(key: str, taints: Iterable[TaintMeaning]) -> TaintMeaning | None:
    """Find what the key of a taint means; None for a taint that a pod may tolerate."""
    return next((row for row in taints if matches_whole_name(row.key, key)), None)


@dataclass(frozen=True, slots=True)
class Families:
    """All resource families, and the namespaces of the vendors' own operators and daemons, which are exempt.

    `device_class_prefix` is the prefix of the resources by which a pod requests devices of a DeviceClass without a
    ResourceClaim. `mig_gpu` is the resource whose unit is a whole GPU that MIG can partition, and `mig_prefix` the
    prefix of the resources of its slices. Both are empty if no family has MIG. `classes_without_gpus` are DeviceClasses
    that GPU drivers install for other devices. `taints` say of taints that no pod is to tolerate what they mean.
    `others` are GPUs of no family. `counted_by_others` are resources of other projects' extenders: the resources, the
    schedulers that ask them, and the annotation of the devices of a pod.
    """

    all: tuple[Family, ...]
    infrastructure_namespaces: tuple[str, ...]
    device_class_prefix: str = DEVICE_CLASS_PREFIX
    mig_gpu: str = ""
    mig_prefix: str = ""
    classes_without_gpus: tuple[str, ...] = ()
    taints: tuple[TaintMeaning, ...] = ()
    others: tuple[GPUsElsewhere, ...] = ()
    counted_by_others: tuple[tuple[frozenset[str], frozenset[str], str], ...] = ()

    def uncounted(self, scheduler: str, annotations: Iterable[str]) -> frozenset[str]:
        """List the resources of which kube-scheduler counts none for a pod, since another project's extender does."""
        rows = self.counted_by_others
        counted = (names for names, schedulers, key in rows if scheduler in schedulers or key in annotations)
        return frozenset().union(*counted)

    def is_fault(self, key: str) -> bool:
        """Tell whether a taint of a node or of a device is one that no pod is to tolerate."""
        return meaning_of_taint(key, self.taints) is not None

    def of(self, resource: str) -> Family | None:
        """Find the family of a resource; None if it is not a GPU resource."""
        if "/" not in resource:
            return None
        for family in self.all:  # runs for each resource of each event, in half the time of next() over a generator
            if family.has(resource):
                return family
        return None

    def gpus_behind(self, resource: str) -> str:
        """Name the resource of the GPUs behind a GPU resource, whatever the device plugin calls shares or partitions.

        MIG slices of a profile are devices of their own; partitions of other vendors are the GPUs under another name.
        """
        family = self.of(resource)
        partition = family is not None and resource.startswith(family.prefixes) and not profile_of(resource)
        return family.whole if family and partition else resource.removesuffix(".shared")

    def passthrough_family(self, resource: str) -> Family | None:
        """Find the family of a resource by which others give GPUs (`Family.elsewhere`); None for any other resource.

        Guards, limits, tolerations and the inventory know such a resource; it is not placed.
        """
        if self.of(resource) is not None:
            return None
        families = (family for family in self.all if family.passthrough)
        return next((family for family in families if matches_whole_name(family.passthrough, resource)), None)

    def sorted_out(self, names: Iterable[str]) -> tuple[dict[str, Family], dict[str, Family]]:
        """Sort resource names out by family: GPU resources, and those by which others give GPUs; each by name."""
        qualified = [name for name in sorted(set(names)) if "/" in name]
        own = {name: family for name in qualified if (family := self.of(name))}
        others = {name: family for name in qualified if name not in own and (family := self.passthrough_family(name))}
        return own, others

    def elsewhere(self, resource: str) -> GPUsElsewhere | None:
        """Find what a unit of a resource is by which others give GPUs, of no family too; None for other resources."""
        family = self.passthrough_family(resource) if "/" in resource else None
        rows = family.elsewhere if family else self.others
        return next((row for row in rows if matches_whole_name(row.names, resource)), None)

    def implicit_class(self, resource: str) -> str | None:
        """Give the DeviceClass that is part of a resource name (KEP-5004); None for other names."""
        has_prefix = resource.startswith(self.device_class_prefix)
        return resource.removeprefix(self.device_class_prefix) if has_prefix else None

    def of_device_class(self, name: str) -> Family | None:
        """Find the family of a vendor's DeviceClass; None for one that gives no GPU, and for the cluster's own ones."""
        return next((family for family in self.all if name in family.device_classes), None)

    def named(self, name: str) -> Family | None:
        """Find the family of a name; None for a name that no row has."""
        return next((family for family in self.all if family.name == name), None)

    def runs_cuda(self, name: str) -> bool:
        """Tell whether GPUs of a family run CUDA; those of no known family may."""
        family = self.named(name)
        return family is None or family.cuda

    def is_infrastructure(self, namespace: str) -> bool:
        """Tell whether a namespace is exempt by its name, because it runs a vendor's own operator or daemons."""
        return namespace in self.infrastructure_namespaces


def load_families(
    rows: Iterable[Mapping[str, Any]],
    infrastructure_namespaces: Iterable[str],
    device_class_prefix: str = DEVICE_CLASS_PREFIX,
    classes_without_gpus: Iterable[str] = (),
    taints: Iterable[Mapping[str, Any]] = (),
    other_gpus: Iterable[Mapping[str, Any]] = (),
    counted_by_others: Iterable[Mapping[str, Any]] = (),
) -> Families:
    """Read families.yaml.

    Raises ValueError for an exempt namespace that is not a complete name, since any user could create one with a
    prefix, and for MIG resources that do not belong to the one family with MIG.
    """
    namespaces = tuple(infrastructure_namespaces)
    for name in namespaces:
        if not _LABEL.fullmatch(name):
            raise ValueError(f"infrastructure_namespaces: got {name!r}, wants the exact name of a namespace")
    families = tuple(
        Family(
            name=row["name"],
            resources=frozenset(row["resources"]),
            prefixes=tuple(row["prefixes"]),
            whole=row["whole"],
            taint_keys=tuple(row["taint_keys"]),
            device_classes=tuple(row.get("device_classes", ())),
            passthrough="|".join(each["names"] for each in row.get("elsewhere", ())),
            elsewhere=_elsewhere(row.get("elsewhere", ())),
            cuda=row.get("cuda", False),
            mig_prefix=row.get("mig_prefix", ""),
            **{key: row[key] for key in ("labeller", "health_source") if key in row},
        )
        for row in rows
    )
    mig = _family_with_mig(families)
    whole, prefix = (mig.whole, mig.mig_prefix) if mig else ("", "")
    meanings = (TaintMeaning(row["key"], row["says"], row["remedy"], row.get("passes", False)) for row in taints)
    without = tuple(classes_without_gpus)
    others = _elsewhere(other_gpus)
    extenders = tuple(
        (frozenset(row["resources"]), frozenset(row["schedulers"]), row["annotation"]) for row in counted_by_others
    )
    of_tables = device_class_prefix, whole, prefix, without, tuple(meanings), others, extenders
    return Families(families, namespaces, *of_tables)


def _elsewhere(rows: Iterable[Mapping[str, Any]]) -> tuple[GPUsElsewhere, ...]:
    return tuple(GPUsElsewhere(row["names"], row["unit"], row.get("per_gpu", 1)) for row in rows)


def _family_with_mig(families: tuple[Family, ...]) -> Family | None:
    """Find the family with MIG, of which there is one at most, since the tables of MIG profiles name no vendor.

    Raises ValueError if `mig_prefix` has another form than MIG's, or if resources of that form do not begin with it:
    `profile_of` would read them as slices.
    """
    mig = next((family for family in families if family.mig_prefix), None)
    if mig and not mig.mig_prefix.endswith(RESOURCE_FORM):
        raise ValueError(f"family {mig.name}: mig_prefix: got {mig.mig_prefix!r}, wants DOMAIN{RESOURCE_FORM}")
    for family in families:
        for name in (*sorted(family.resources), *family.prefixes, family.mig_prefix):
            if RESOURCE_FORM in name and not (family is mig and name.startswith(mig.mig_prefix)):
                raise ValueError(f"family {family.name}: got {name!r}, wants {RESOURCE_FORM} in one mig_prefix alone")
    return mig


STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
"""The resources without a domain that a container may name, beside hugepages (kubernetes
pkg/apis/core/helper/helpers.go IsStandardContainerResourceName)."""
_DOMAIN = r"(?=.{1,253}/)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_QUALIFIED = re.compile(f"({_DOMAIN})/({_NAME})")
"""A qualified name (apimachinery pkg/api/validate/content IsQualifiedName)."""
_NOT_COMPARED = re.compile(r"\.(com|io|ai)\b|[^a-z0-9]")
ALIKE = 0.88
"""The similarity of names, as difflib measures it, from which one is taken for a misspelling of the other: it keeps
nvidia.com/gup (0.89) and leaves out nvidia.com/gpumem (0.86), which is HAMi's. A guess."""
OTHER_WORDS = ("vgpu", "pgpu", "gpumem", "gpucores")
"""Words of resources of other device plugins, which are no misspellings (Project-HAMi/HAMi README.md;
NVIDIA/kubevirt-gpu-device-plugin README.md)."""


@lru_cache(maxsize=4096)
def is_refused(name: str) -> bool:
    """Tell whether the API server refuses a container that names a resource so.

    A name without a domain must be that of a standard resource (kubernetes pkg/apis/core/validation/validation.go
    validateContainerResourceName). Names of Kubernetes' own domain are not looked at.
    """
    if "/" not in name:
        return name not in STANDARD and not name.startswith("hugepages-")
    return not _QUALIFIED.fullmatch(name) or ("kubernetes.io/" not in name and name.startswith("requests."))


def similar_resources(name: str, offered: Iterable[str], families: Families) -> tuple[str, ...]:
    """List the GPU resources that a wrong name may mean, the likeliest first; none for names of other things.

    `offered` are resources of nodes; those that no node has come after them. A name means a resource whose name it
    ends with or nearly is, and a bare `gpu` the whole GPU of every vendor.
    """
    if any(word in name.lower() for word in OTHER_WORDS):
        return ()
    family = families.of(name)
    if family is not None and (RESOURCE_FORM not in name or nominal_size(profile_of(name) or "")):
        return ()
    present = dict.fromkeys(sorted(resource for resource in offered if families.of(resource)))
    known = (*present, *(one for row in families.all for one in (row.whole, *sorted(row.resources))))
    plain = _plain(name)
    same = [one for one in known if plain.endswith(_plain(one)) or ("/" not in name and plain == _plain(_tail(one)))]
    by_vendor = [row.whole for row in families.all if plain == f"{row.name}gpu"]
    plains = {_plain(one): one for one in reversed(known)}
    close = [plains[text] for text in get_close_matches(plain, plains, 2, ALIKE)]
    found = dict.fromkeys((*same, *by_vendor, *close))
    return tuple(sorted(found, key=lambda one: one not in present)) if name not in found else ()


def _tail(name: str) -> str:
    return name.rpartition("/")[2]


@lru_cache(maxsize=1024)
def _plain(name: str) -> str:
    """Write a name without what people get wrong: case, signs, the end of the domain, the plural."""
    return _NOT_COMPARED.sub("", name.lower()).removesuffix("s")
