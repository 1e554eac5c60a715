# SPDX-License-Identifier: Apache-2.0
"""Label keys of nodes that GPU Feature Discovery (GFD), MIG Manager and the GPU Operator write.

Of two keys for one fact the one named OLD is deprecated, but v0.20.0 still writes it (NVIDIA/k8s-device-plugin
internal/lm/nvml.go, CHANGELOG.md). A pair holds the start of several keys, and the parts that end them.
"""

DOMAIN = "nvidia.com/"
"""The domain of NVIDIA's labels and resources."""
ARCHITECTURE = "kubernetes.io/arch"
"""The label of the CPU architecture, such as amd64, which every kubelet writes."""
PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"
COUNT = "nvidia.com/gpu.count"
PRESENT = "nvidia.com/gpu.present"
REPLICAS = "nvidia.com/gpu.replicas"
SHARING = "nvidia.com/gpu.sharing-strategy"
CLIQUE = "nvidia.com/gpu.clique"
MIG_STRATEGY = "nvidia.com/mig.strategy"
MIG_CONFIG = "nvidia.com/mig.config"
MIG_STATE = "nvidia.com/mig.config.state"
MIG_CAPABLE = "nvidia.com/mig.capable"
MIG_MANAGER = "nvidia.com/gpu.deploy.mig-manager"
SLICES = "nvidia.com/mig-"
"""The start of the keys about MIG slices: GFD puts a suffix such as `.count` or `.memory` to the slice's resource."""
UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state"
PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
DRIVER = ("nvidia.com/cuda.driver-version", ("major", "minor", "revision"))
OLD_DRIVER = ("nvidia.com/cuda.driver", ("major", "minor", "rev"))
RUNTIME = ("nvidia.com/cuda.runtime-version", ("major", "minor"))
OLD_RUNTIME = ("nvidia.com/cuda.runtime", ("major", "minor"))
COMPUTE = ("nvidia.com/gpu.compute", ("major", "minor"))
MIG_KEYS = (MIG_STRATEGY, MIG_CONFIG, MIG_STATE, MIG_CAPABLE, MIG_MANAGER)
SINGLE_KEYS = (ARCHITECTURE, PRODUCT, MEMORY, COUNT, REPLICAS, SHARING, *MIG_KEYS, UPGRADE_STATE, PLUGIN)
"""The keys, without those of versions and of slices, on which a node's class depends."""
VERSIONS = (DRIVER, OLD_DRIVER, RUNTIME, OLD_RUNTIME, COMPUTE)
PAUSED_FOR_MIG, PAUSED_FOR_DRIVER = "paused-for-mig-change", "paused-for-driver-upgrade"
"""Values that MIG Manager and the driver manager write to PLUGIN while they work (NVIDIA/gpu-operator
controllers/state_manager.go)."""
