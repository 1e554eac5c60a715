# SPDX-License-Identifier: Apache-2.0
"""The rows of the feature list, by group. Numbers that are not here (F58, F66, F71, F93, F126 to F128) name nothing."""

from collections.abc import Mapping

ADMISSION = {
    "F1": "The mutating webhook answers AdmissionReview `v1` for pods, and refuses `v1beta1` with the field to change.",
    "F2": "A GPU pod tolerates the taint that belongs to the resource it requests.",
    "F3": "It also tolerates the GPU taints of the nodes that could serve it, and only keys on an allow-list.",
    "F4": "Pods of MIG slices and shared GPUs also tolerate the taint of the whole GPU.",
    "F5": "A GPU pod without a `runtimeClassName` gets the one of the policy.",
    "F6": "The runtime class is set only where it exists; otherwise the decision annotation says that it is missing.",
    "F7": "GPUs in requests alone are copied to limits, and unequal amounts are repaired or refused, with a warning.",
    "F8": "Fractions and negative amounts of a GPU are refused, and the message names the alternative.",
    "F9": "A pod that requests zero GPUs is a CPU pod.",
    "F10": "Needs that node labels can express become required node affinity, which excludes no node that fits.",
    "F11": "The CUDA version that a container needs is read from annotation, environment, policy or image tag.",
    "F12": "A container that requests no GPU cannot take GPUs through `NVIDIA_VISIBLE_DEVICES`.",
    "F13": "A policy names the scheduler of GPU pods, and can refuse pods that bypass it.",
    "F14": "A policy refuses or warns of privileged containers in GPU pods.",
    "F15": "Annotations that gpu-usher writes are replaced or refused where a user wrote them.",
    "F16": "Init containers and pod-level resources are counted as Kubernetes counts them.",
    "F17": "Sidecars, which are init containers that keep running, are counted as Kubernetes counts them.",
    "F18": "Pod templates of Deployments, StatefulSets, DaemonSets, ReplicaSets, Jobs and CronJobs are checked and "
    "repaired.",
    "F19": "What admission did is told in warnings of one line, at most 256 characters each.",
    "F20": "Each rule of a policy is enforced, warned of, audited or off.",
    "F21": "Only a namespace or an exception in a policy exempts a pod from a rule; the pod itself cannot.",
    "F22": "Match conditions send only the pods that concern GPUs to the webhook.",
    "F23": "Admission applied to its own result changes nothing.",
    "F24": "The patch is minimal, and fields that gpu-usher does not know stay as they are.",
    "F25": "What admission did, and why, is recorded in one versioned annotation and in the API server's audit log.",
    "F26": "A policy limits the number of GPUs of a pod.",
    "F129": "Pods of several GPUs get a larger `/dev/shm` where a policy says so.",
    "F130": "A pod that states its memory need gets, or is told of, the smallest MIG profile or product that holds it.",
    "F136": "Preferences, such as the order of products, also become preferred node affinity.",
}
FILTER = {
    "F27": "The `filter` verb judges every node that kube-scheduler names.",
    "F28": "Filter names the best of the nodes that fit a GPU pod, or all of them; other pods get all nodes back.",
    "F29": "No verb reads or writes the Kubernetes API while it answers.",
    "F30": "Policies and annotations name the GPU products that are allowed.",
    "F31": "Product names match by whole tokens, so that A10 is never A100.",
    "F32": "Policies and annotations name GPU products that are denied.",
    "F33": "Products can be preferred in an order, and the next of them serves where the first is not free.",
    "F34": "A node whose driver cannot run the pod's CUDA is refused.",
    "F35": "A GPU that is too old or too new for the pod's CUDA toolkit is refused, by compute capability.",
    "F36": "Minor-version and forward compatibility of CUDA are known, and a policy says how much of them is enough.",
    "F37": "A node whose GPUs have less memory than the pod needs is refused.",
    "F38": "A policy selects or excludes nodes by their labels.",
    "F39": "Every refused node has a reason.",
    "F40": "The scheduler is told whether evicting pods could change a refusal.",
    "F41": "Filter works on node names (`nodeCacheCapable: true`).",
    "F42": "Filter works on whole node objects, and returns them byte for byte.",
    "F43": "The `preempt` verb drops nodes where evictions would not help, and returns victims as given.",
    "F44": "A node whose driver is being upgraded is refused, and one that waits for an upgrade scores lower.",
    "F45": "A node whose MIG layout is being changed, or failed to change, is refused.",
    "F46": "A node whose labels promise GPUs that its allocatable resources lack is refused.",
    "F47": "CPU pods are kept off GPU nodes, by preference or strictly (component `cpu-guard`).",
}
SCORE = {
    "F48": "The `prioritize` verb scores every node that fits.",
    "F49": "Nodes can be packed, or pods spread over them.",
    "F50": "A policy chooses the scorers and their weights.",
    "F51": "A GPU product that other pods cannot do without is spared.",
    "F52": "A pod goes where it leaves the least GPU capacity unusable for the pods that are expected.",
    "F53": "A driver that runs the pod's CUDA natively is preferred to one that runs it by compatibility.",
    "F54": "Form factor, all-to-all NVLink and the NVLink domain are filtered or scored.",
    "F55": "Scores are integers from 0 to 10.",
    "F56": "A total is broken down into the part of each scorer, for people.",
}
MIG = {
    "F57": "MIG slices that nodes offer by name (`nvidia.com/mig-*`) are known.",
    "F59": "A pod can request a MIG profile that is at least as large as the one it names.",
    "F60": "Whether a MIG layout fits is decided by the places on the GPU, not by counts.",
    "F61": "Of the nodes that fit, the one is preferred on which the slice leaves the most room for slices to come.",
    "F62": "A node whose MIG layout is invalid or half made is refused.",
    "F63": "The MIG strategies none, single and mixed are understood.",
    "F64": "`plan mig` proposes layouts for the pods that wait, in the words of mig-parted.",
}
SHARING = {
    "F65": "Pods that declare their memory on shared GPUs are placed only where all declared memory fits.",
    "F67": "Replicas of time-slicing and MPS are understood as parts of a GPU.",
    "F68": "A pod that requests several replicas as if they were several GPUs is warned or refused.",
    "F69": "Exclusive and shared GPUs are kept apart.",
}
HEALTH = {
    "F70": "Devices that the device plugin has withdrawn are seen.",
    "F72": "DCGM metrics, and the conditions that clouds and monitors write on nodes, say which GPUs are healthy.",
    "F73": "Node labels that contradict what the node offers are recognised as stale.",
    "F135": "Where DRA serves the GPUs, a node's facts come from its ResourceSlices and counting is left to "
    "kube-scheduler.",
}
POLICY = {
    "F74": "Policies are Kubernetes-style documents, and several policies merge field by field.",
    "F75": "Policies have a JSON Schema, and `policy lint` names each mistake with file, line and path.",
    "F76": "Edits are taken live; of a set with an error the last good one stays in force, also for a replica that "
    "starts.",
    "F77": "Cases are unit tests of policies as files, with JUnit output.",
    "F78": "`policy diff` names the pods whose admission or placement an edit of policies would change.",
    "F79": "A misspelt name is answered with the one that was meant.",
    "F80": "Exceptions have an owner, a reason and a last day.",
    "F81": "Operators extend the tables of products, images and drivers with files of their own.",
    "F131": "Policies can be kept as ConfigMaps or as `GPUPolicy` objects; each edit is validated at admission.",
    "F137": "With `--shadow` everything is allowed unchanged, and the true verdict is only logged.",
    "F138": "A rule can warn until a date and be enforced from then on.",
}
EXPLANATION = {
    "F82": "Everything is also a command with text or JSON output and documented exit codes.",
    "F83": "`explain` says why a pod is Pending.",
    "F139": "Events on pending pods and their workloads say the cause and the smallest change that helps.",
    "F140": "A pod that was refused is tried again within seconds of the change that lets it run.",
    "F84": "`explain` proposes the smallest changes with which the pod would find a node, each proven.",
    "F85": "`mutate` and `POST /dry-run` show what admission would make of an object.",
    "F86": "Commands work offline on a snapshot of a cluster.",
    "F87": "`doctor` names what is broken in the fleet and around it, with a remedy.",
    "F88": "`scheduler-config` writes and verifies the scheduler's configuration.",
    "F89": "`inventory` sums up GPUs by kind, free and held.",
    "F132": "A web page shows fleet, pending pods, policies and recent decisions.",
}
OBSERVABILITY = {
    "F90": "Metrics are served in Prometheus' format.",
    "F91": "Each verb has a histogram of its latency.",
    "F92": "Refusals are counted by reason.",
    "F94": "The decision log can be recorded and replayed.",
    "F95": "A Grafana dashboard is in the tree.",
    "F96": "Alert rules are in the tree.",
    "F97": "Requests can be traced with OpenTelemetry.",
    "F98": "GPU pods that run without an admission decision, or on a node that refuses them, are counted and named.",
}
SECURITY = {
    "F99": "The API server and the scheduler are answered over TLS 1.2 or newer.",
    "F100": "Client certificates can be required of the scheduler and of the API server.",
    "F101": "Renewed certificates are taken without a restart.",
    "F102": "Certificates are made and renewed by gpu-usher itself, or by cert-manager.",
    "F103": "A body that is too large is answered with 413.",
    "F104": "The serving identity can only read.",
    "F105": "The component `network-policy` restricts who can reach each port.",
    "F106": "The operator chooses per deployment whether calls fail open or closed.",
    "F107": "System namespaces and gpu-usher's own never reach the webhooks.",
    "F133": "Pods meet the Pod Security level `restricted`.",
}
AVAILABILITY = {
    "F108": "All webhook replicas answer; there is no leader.",
    "F109": "All extender replicas answer alike, from what they watch.",
    "F110": "A replica is ready when it can answer correctly.",
    "F111": "A PodDisruptionBudget keeps replicas during a drain.",
    "F112": "A rollout under load loses no request.",
}
DEPLOYMENT = {
    "F113": "A Helm chart renders the same objects as the kustomize overlay.",
    "F114": "`deploy/` has a kustomize base, components and overlays.",
    "F115": "The values of the chart have a schema.",
    "F116": "The webhook works without the extender, because needs are node affinity.",
    "F117": "A second scheduler can be deployed with the extender beside it.",
    "F118": "`deploy/README.md` has recipes for GKE, EKS, AKS, kubeadm and k3s.",
    "F134": "The Dockerfile has several stages and pinned bases, and makes a small image.",
}
SCALE = {
    "F119": "Benchmarks are in the tree.",
    "F120": "Figures are published with the way they were measured.",
    "F121": "A load generator makes fleets and pods on a real control plane.",
    "F122": "`plan driver` says whom another driver would help or harm.",
    "F123": "`policy diff` compares two sets of policies over a snapshot.",
    "F124": "`plan node-template` says what a node must be for a pod, without an autoscaler.",
    "F125": "The wire is tested with generated and damaged input.",
}
STACK = {
    "S1": "NVIDIA's device plugin: its resources, time-slicing, MPS and renamed resources.",
    "S2": "The GPU Operator: its labels, upgrade states, runtime classes and operands.",
    "S3": "GPU Feature Discovery: its labels, also the deprecated ones.",
    "S4": "MIG Manager and mig-parted: states and layouts.",
    "S5": "The NVIDIA Container Toolkit: runtime classes and environment.",
    "S6": "The DCGM exporter: the health of GPUs.",
    "S7": "containerd and CRI-O: both are used through a RuntimeClass.",
    "S8": "Karpenter and Cluster Autoscaler: both read the affinity that admission writes.",
    "S9": "EKS, GKE and AKS: their node labels and taints.",
    "S10": "Images of Triton, PyTorch and TensorFlow, and the workloads that run them.",
    "S11": "Prometheus and Grafana: both read what gpu-usher serves.",
    "S12": "GPUs of AMD, Intel and others are families in a data file.",
    "S13": "DRA claims are judged as kube-scheduler's allocator does, and `explain` says why one gets no device.",
    "S14": "Pods of Kueue, Volcano and KAI are repaired and guarded, and placed by their own schedulers.",
    "S15": "Nodes of eight joined GPUs, an NVL72 rack and an edge fleet are among the sample fleets.",
}

USE = {
    "F141": "`usage` shows how the GPUs that pods hold were used over time, and what is unknown stays unknown.",
    "F142": "With the operator's prices, `usage` and `plan right-size` show money.",
    "F143": "`plan right-size` proposes the smallest slice, share or product that would have carried a workload's "
    "peak, proven on the engine.",
    "F144": "Who holds an idle GPU is told where a pod waits for it: by `explain` and `doctor`.",
    "F145": "A policy can warn of, or refuse, pods of a namespace that holds idle GPUs; unknown use never denies.",
    "F146": "`plan repack` finds the fewest restarts that free a node, an NVLink domain or places, and lose least.",
    "F147": "The service reads the last day of use every five minutes, once for all who ask.",
    "F148": "The web page shows who uses what he holds: a page Use, and a map coloured by holder or by activity.",
    "F149": "Held and idle GPUs of each namespace are metrics, with an alert where they idle while pods wait.",
    "F150": "Without a Prometheus, a policy on idle GPUs is not judged; log, `/statusz` and page say so.",
}
GROUPS: Mapping[str, Mapping[str, str]] = {
    "Admission": ADMISSION,
    "Filter": FILTER,
    "Score": SCORE,
    "MIG": MIG,
    "Sharing": SHARING,
    "Health and facts": HEALTH,
    "Policy": POLICY,
    "Command line and explanation": EXPLANATION,
    "Observability": OBSERVABILITY,
    "Security": SECURITY,
    "High availability": AVAILABILITY,
    "Deployment": DEPLOYMENT,
    "Scale and simulation": SCALE,
    "The stack around it": STACK,
    "Use over time": USE,
}

MISSING: Mapping[str, str] = {
    "F119": "no test: `make bench` and its siblings are run by hand, on a quiet machine",
    "F120": "no test holds the figures of [benchmarks](benchmarks.md): each says the command that made it",
    "F121": "no test of its own: scenarios of `tests/e2e` make their fleets with `tests/bench/load.py`",
}
"""Row → the part of it that no test proves, and why."""
