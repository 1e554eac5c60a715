# SPDX-License-Identifier: Apache-2.0
"""Who reaches us: the matchConditions of the webhooks, generated from the resource families (F22).

See docs/reference/admission.md#reviewed-objects.

The API server evaluates them itself, so a pod or template that concerns nobody costs no call. Every condition is total
(`has()` before each access): one that fails rejects the object under `Fail` and skips us silently under `Ignore`.
`p` stands for the pod, or for the template that a workload makes its pods of.
"""

from collections.abc import Iterable, Iterator

from app.admission.device_guard import CDI, DEVICE_FOLDER
from app.admission.node_devices import ALL_FILES, GPU_FILES
from app.knowledge.families import Families
from app.knowledge.tables import Knowledge
from app.kube.pods import PREFIX

PODS = (
    "(has(object.spec.jobTemplate) ? [object.spec.jobTemplate.spec.template]"
    " : has(object.spec.template) ? [object.spec.template] : [object])"
)
"""What an object makes or is: the template of a CronJob's Job, of another workload, the pod itself."""
CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
AMOUNTS = ("limits", "requests")
NVIDIA = "NVIDIA_"
"""Prefix of all that the container toolkit reads but for a few."""
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a static pod's mirror: the pod runs already, whatever we say (ADM-07)."""


def match_conditions(knowledge: Knowledge, also: Iterable[str] = ()) -> list[dict[str, str]]:
    """Write the matchConditions of the webhooks for pods and workloads.

    `also`: extended resources that this cluster's DeviceClasses serve under names of their own.
    """
    return [
        {"name": "concerns-gpus", "expression": f"{PODS}.exists(p, {' || '.join(_concerns(knowledge, also))})"},
        {"name": "not-a-mirror-pod", "expression": f"!({_annotation('object', f'k == {quoted(MIRROR)}')})"},
    ]


def device_conditions(knowledge: Knowledge) -> list[dict[str, str]]:
    """Write the matchConditions of the webhook for what reaches a node's devices without asking for a GPU.

    What concerns GPUs otherwise may come by both webhooks; the API server says the same warning once.
    """
    privileged = "has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged"
    lists = (f"({_some_container(name, privileged)})" for name in CONTAINER_LISTS)
    paths = f"v.hostPath.path.matches({quoted(GPU_FILES)}) || v.hostPath.path.matches({quoted(ALL_FILES)})"
    volumes = f"(has(p.spec.volumes) && p.spec.volumes.exists(v, has(v.hostPath) && ({paths})))"
    return [
        {"name": "reaches-devices", "expression": f"{PODS}.exists(p, {' || '.join((*lists, volumes))})"},
        match_conditions(knowledge)[1],
    ]


def cpu_guard_conditions(families: Families) -> list[dict[str, str]]:
    """Write the matchConditions of the cpu-guard: pods that ask for no GPU, by resource or by claim."""
    asks = " || ".join(f"({_some_container(name, _asks(families))})" for name in CONTAINER_LISTS)
    claims = "(has(p.spec.resourceClaims) && size(p.spec.resourceClaims) > 0)"
    return [{"name": "asks-for-no-gpu", "expression": f"![object].exists(p, {asks} || {claims})"}]


def _concerns(knowledge: Knowledge, also: Iterable[str]) -> Iterator[str]:
    families = knowledge.families
    named = ", ".join(quoted(name) for name in sorted(knowledge.toolkit_env) if not name.startswith(NVIDIA))
    takes = (
        f"(has(c.env) && c.env.exists(e, e.name.startsWith({quoted(NVIDIA)}) || e.name in [{named}]))",
        f"(has(c.volumeMounts) && c.volumeMounts.exists(m, m.mountPath.contains({quoted(DEVICE_FOLDER)})))",
    )
    for name in CONTAINER_LISTS:
        yield f"({_some_container(name, ' || '.join((_asks(families, also), *takes)))})"
    yield "(has(p.spec.resourceClaims) && size(p.spec.resourceClaims) > 0)"
    yield "(has(p.spec.runtimeClassName) && p.spec.runtimeClassName.startsWith('nvidia'))"
    ours = f"k.startsWith({quoted(PREFIX)}) || k.startsWith({quoted(CDI)})"
    yield f"(has(p.metadata) && {_annotation('p', ours)})"


def _some_container(list_name: str, question: str) -> str:
    return f"has(p.spec.{list_name}) && p.spec.{list_name}.exists(c, {question})"


def _asks(families: Families, also: Iterable[str] = ()) -> str:
    """Ask of a container c whether it names a resource that gives GPUs or may, in limits or requests."""
    more = f" || k in [{', '.join(map(quoted, sorted(also)))}]" if also else ""
    ours = f"{names_ours(families)}{more} || k.startsWith({quoted(families.device_class_prefix)})"
    named = (f"(has(c.resources.{kind}) && c.resources.{kind}.exists(k, {ours}))" for kind in AMOUNTS)
    return f"(has(c.resources) && ({' || '.join(named)}))"


def names_ours(families: Families, handed_on: bool = True) -> str:
    """Ask of a resource name k whether it is known to give GPUs; `handed_on`: also to virtual machines.

    Classes and names of a cluster's own making are not known here (doctor names those).
    """
    implicit = (families.device_class_prefix + name for family in families.all for name in family.device_classes)
    names = sorted(quoted(name) for name in (*implicit, *(name for each in families.all for name in each.resources)))
    prefixes = sorted(quoted(prefix) for family in families.all for prefix in family.prefixes)
    patterns = [quoted(f"^{each.passthrough}$") for each in families.all if each.passthrough and handed_on]
    return " || ".join(
        [
            f"k in [{', '.join(names)}]",
            *(f"k.startsWith({prefix})" for prefix in prefixes),
            *(f"k.matches({pattern})" for pattern in patterns),
        ]
    )


def _annotation(owner: str, question: str) -> str:
    return f"has({owner}.metadata.annotations) && {owner}.metadata.annotations.exists(k, {question})"


def quoted(word: str) -> str:
    """Quote a word for CEL; resource names hold neither quotes nor backslashes."""
    return f"'{word}'"
