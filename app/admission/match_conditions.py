# SPDX-License-Identifier: Apache-2.0
"""The matchConditions of the webhooks, generated from the resource families.

See docs/reference/admission.md#reviewed-objects.
The API server evaluates them itself, so that a pod or template that does not concern GPUs costs no call. Every
condition is total (`has()` before each access): one that fails to evaluate rejects the object under failurePolicy
`Fail`, and skips the webhook silently under `Ignore`. In the expressions `p` is the pod, or the pod template of a
workload, and `c` a container.
"""

from collections.abc import Iterable, Iterator

from app.admission.device_guard import ALL_FILES, CDI, DEVICE_FOLDER, GPU_FILES
from app.knowledge.gpu_resources import Families
from app.knowledge.tables import Knowledge
from app.knowledge.workload_templates import APP
from app.kube.pods import PREFIX
from app.kube.resource_claims import EXTENDED

POD_OR_TEMPLATE = (
    "(has(object.spec.jobTemplate) ? [object.spec.jobTemplate.spec.template]"
    " : has(object.spec.template) ? [object.spec.template] : [object])"
)
"""CEL: a list with the pod template of a CronJob or another workload, or with the pod itself."""
CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
AMOUNTS = ("limits", "requests")
LOOKS_LIKE_GPU = "(?i)gpu|^nvidia[.]com/mig"
"""RE2: a resource name with GPU in it, such as `gpu` or `nvidia.com/gpus`, or one that is meant as a MIG slice."""
NVIDIA = "NVIDIA_"
"""Prefix of most variables that NVIDIA's container toolkit reads."""
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a static pod's mirror pod; the static pod runs already, whatever admission answers."""
KUBELET = "(has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups)"
"""CEL: true where a kubelet asks. Anybody may write the annotation, and a kubelet creates no other pods (kubernetes
plugin/pkg/admission/noderestriction/admission.go)."""


def match_conditions(knowledge: Knowledge, also: Iterable[str] = ()) -> list[dict[str, str]]:
    """Write the matchConditions of the webhooks for pods and workloads.

    `also` are extended resources that this cluster's own DeviceClasses serve.
    """
    return [
        {
            "name": "concerns-gpus",
            "expression": f"{POD_OR_TEMPLATE}.exists(p, {' || '.join(_gpu_questions(knowledge, also))})",
        },
        {
            "name": "not-a-mirror-pod",
            "expression": f"!({_annotation('object', f'k == {quoted(MIRROR)}')} && {KUBELET})",
        },
        {"name": "not-an-operators-pod", "expression": f"!({_operators_pod(knowledge)})"},
    ]


def device_conditions(knowledge: Knowledge) -> list[dict[str, str]]:
    """Write the matchConditions of the webhook for pods that reach a node's devices without requesting a GPU.

    A pod that concerns GPUs otherwise may match both webhooks; the API server shows an identical warning once.
    """
    privileged = "has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged"
    lists = (f"({_some_container(name, privileged)})" for name in CONTAINER_LISTS)
    paths = f"v.hostPath.path.matches({quoted(GPU_FILES)}) || v.hostPath.path.matches({quoted(ALL_FILES)})"
    volumes = f"(has(p.spec.volumes) && p.spec.volumes.exists(v, has(v.hostPath) && ({paths})))"
    return [
        {"name": "reaches-devices", "expression": f"{POD_OR_TEMPLATE}.exists(p, {' || '.join((*lists, volumes))})"},
        *match_conditions(knowledge)[1:],
    ]


def claim_conditions(families: Families) -> list[dict[str, str]]:
    """Write the matchConditions of the webhooks for claims: some request may be for GPUs.

    Of the updates of the status only that counts by which kube-scheduler's own claims get devices, those for extended
    resources.
    """
    others = ", ".join(map(quoted, families.classes_without_gpus))
    requests = "(has(r.firstAvailable) ? r.firstAvailable : has(r.exactly) ? [r.exactly] : [r])"
    other = f"has(c.deviceClassName) && c.deviceClassName in [{others}]"
    asked = (
        f"has(s.devices) && has(s.devices.requests) && s.devices.requests.exists(r, {requests}.exists(c, !({other})))"
    )
    spec = "(has(object.spec.spec) ? [object.spec.spec] : [object.spec])"
    allocated = "has({0}.status) && has({0}.status.allocation)"
    extended = _annotation("object", f"k == {quoted(EXTENDED)}")
    gets = f"{extended} && {allocated.format('object')} && !({allocated.format('oldObject')})"
    return [
        {"name": "may-claim-gpus", "expression": f"{spec}.exists(s, {asked})"},
        {"name": "created-or-extended", "expression": f"request.operation == 'CREATE' || ({gets})"},
    ]


def cpu_guard_conditions(families: Families) -> list[dict[str, str]]:
    """Write the matchConditions of the cpu-guard webhook: pods that request no GPU, by resource or by claim."""
    requested = " || ".join(f"({_some_container(name, _names_gpu_resource(families))})" for name in CONTAINER_LISTS)
    claims = "(has(p.spec.resourceClaims) && size(p.spec.resourceClaims) > 0)"
    return [{"name": "asks-for-no-gpu", "expression": f"![object].exists(p, {requested} || {claims})"}]


def _gpu_questions(knowledge: Knowledge, also: Iterable[str]) -> Iterator[str]:
    families = knowledge.families
    other_variables = ", ".join(quoted(name) for name in sorted(knowledge.toolkit_env) if not name.startswith(NVIDIA))
    taken_devices = (
        f"(has(c.env) && c.env.exists(e, e.name.startsWith({quoted(NVIDIA)}) || e.name in [{other_variables}]))",
        f"(has(c.volumeMounts) && c.volumeMounts.exists(m, m.mountPath.contains({quoted(DEVICE_FOLDER)})))",
    )
    questions = " || ".join((_names_gpu_resource(families, also, misnamed=True), *taken_devices))
    for name in CONTAINER_LISTS:
        yield f"({_some_container(name, questions)})"
    yield f"[p.spec].exists(c, {_names_gpu_resource(families, also, misnamed=True)})"
    yield "(has(p.spec.resourceClaims) && size(p.spec.resourceClaims) > 0)"
    yield "(has(p.spec.runtimeClassName) && p.spec.runtimeClassName.startsWith('nvidia'))"
    our_annotation = f"k.startsWith({quoted(PREFIX)}) || k.startsWith({quoted(CDI)})"
    yield f"(has(p.metadata) && {_annotation('p', our_annotation)})"


def _operators_pod(knowledge: Knowledge) -> str:
    """Write CEL that is true of a pod that an operator of the table placed itself.

    Its label alone tells nothing: who creates it must have a right that no tenant has.
    """
    label = f"object.metadata.labels[{quoted(APP)}]"
    rows = [
        f"{label} in [{', '.join(map(quoted, row.pods))}] && authorizer.group({quoted(row.right.group)})"
        f".resource({quoted(row.right.resource)}).subresource({quoted(row.right.subresource)})"
        f".check({quoted(row.right.verb)}).allowed()"
        for row in knowledge.operators
        if row.right
    ]
    return (
        f"has(object.spec.nodeName) && has(object.metadata.labels) && {quoted(APP)} in object.metadata.labels"
        f" && ({' || '.join(f'({row})' for row in rows)})"
    )


def _some_container(list_name: str, question: str) -> str:
    return f"has(p.spec.{list_name}) && p.spec.{list_name}.exists(c, {question})"


def _names_gpu_resource(families: Families, also: Iterable[str] = (), misnamed: bool = False) -> str:
    """Write CEL that is true where container c names a resource that gives or may give GPUs, in limits or requests.

    `misnamed` includes names that only look like one, as nothing else tells their authors.
    """
    more = f" || k.matches({quoted(LOOKS_LIKE_GPU)})" if misnamed else ""
    more += f" || k in [{', '.join(map(quoted, sorted(also)))}]" if also else ""
    gpu = f"{is_gpu_resource(families)}{more} || k.startsWith({quoted(families.device_class_prefix)})"
    named_in = (f"(has(c.resources.{kind}) && c.resources.{kind}.exists(k, {gpu}))" for kind in AMOUNTS)
    return f"(has(c.resources) && ({' || '.join(named_in)}))"


def is_gpu_resource(families: Families, passthrough: bool = True) -> str:
    """Write CEL that is true for a resource name k that is known to give GPUs.

    `passthrough` includes GPUs passed through to virtual machines. DeviceClasses and resources that a cluster defines
    itself are not known here; `gpu-usher doctor` reports them.
    """
    implicit = (families.device_class_prefix + name for family in families.all for name in family.device_classes)
    names = sorted(
        quoted(name) for name in (*implicit, *(name for family in families.all for name in family.resources))
    )
    prefixes = sorted(quoted(prefix) for family in families.all for prefix in family.prefixes)
    patterns = [quoted(f"^({family.passthrough})$") for family in families.all if family.passthrough and passthrough]
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
    """Quote a string for CEL; resource names contain neither quotes nor backslashes."""
    return f"'{word}'"
