# SPDX-License-Identifier: Apache-2.0
"""Who reaches us: the matchConditions of the webhooks, generated from the resource families (F22, INTERFACES §10).

The API server evaluates them itself, so a pod that concerns nobody costs no call. Every condition is total
(`has()` before each access): one that fails rejects the pod under `Fail` and skips us silently under `Ignore`.
"""

from collections.abc import Iterator

from app.knowledge.families import Families
from app.pods import PREFIX

POD_SPEC = "object.spec"
CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
AMOUNTS = ("limits", "requests")
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a static pod's mirror: the pod runs already, whatever we say (ADM-07)."""


def match_conditions(families: Families, spec: str = POD_SPEC) -> list[dict[str, str]]:
    """Write the matchConditions; `spec`: the CEL path of the pod spec in the object."""
    return [
        {"name": "concerns-gpus", "expression": " || ".join(_concerns(families, spec))},
        {"name": "not-a-mirror-pod", "expression": f"!({_annotation(f'k == {_text(MIRROR)}')})"},
    ]


def _concerns(families: Families, spec: str) -> Iterator[str]:
    ours = _names_ours(families)
    for name in CONTAINER_LISTS:
        asks = " || ".join(f"(has(c.resources.{kind}) && c.resources.{kind}.exists(k, {ours}))" for kind in AMOUNTS)
        sets = "has(c.env) && c.env.exists(e, e.name.startsWith('NVIDIA_'))"
        yield f"(has({spec}.{name}) && {spec}.{name}.exists(c, (has(c.resources) && ({asks})) || ({sets})))"
    yield f"(has({spec}.resourceClaims) && size({spec}.resourceClaims) > 0)"
    yield f"(has({spec}.runtimeClassName) && {spec}.runtimeClassName.startsWith('nvidia'))"
    yield f"({_annotation(f'k.startsWith({_text(PREFIX)})')})"


def _names_ours(families: Families) -> str:
    """Ask of a resource name k whether it belongs to a family."""
    names = sorted(_text(name) for family in families.all for name in family.resources)
    prefixes = sorted(_text(prefix) for family in families.all for prefix in family.prefixes)
    return " || ".join([f"k in [{', '.join(names)}]", *(f"k.startsWith({prefix})" for prefix in prefixes)])


def _annotation(question: str) -> str:
    return f"has(object.metadata.annotations) && object.metadata.annotations.exists(k, {question})"


def _text(word: str) -> str:
    """Quote a word for CEL; resource names hold neither quotes nor backslashes."""
    return f"'{word}'"
