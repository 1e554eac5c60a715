# SPDX-License-Identifier: Apache-2.0
"""Names of resources in containers: which of them the API server refuses, and which GPU resource a wrong one means."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache

from app.knowledge.families import Families
from app.knowledge.mig_profiles import nominal_size, profile_of

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
    profile = profile_of(name)
    if family is not None and (profile is None or nominal_size(profile)):
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
