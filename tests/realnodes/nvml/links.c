// SPDX-License-Identifier: Apache-2.0
/* The mock library's questions about how GPUs are connected. */
#include "handles.h"

#include <stdio.h>
#include <string.h>

/* gpu-feature-discovery: nvidia.com/gpu.clique. A cluster's UUID is 32 hexadecimal digits, with or without dashes. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *fabric)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code != NVML_SUCCESS)
        return code;
    const char *digits = target.gpu->cluster;
    if (digits[0] == '\0')
        return NVML_ERROR_NOT_SUPPORTED;
    memset(fabric, 0, sizeof *fabric);
    for (unsigned i = 0; i < sizeof fabric->clusterUuid; i++) {
        digits += strspn(digits, "-");
        if (sscanf(digits, "%2hhx", &fabric->clusterUuid[i]) != 1)
            return NVML_ERROR_UNKNOWN;
        digits += 2;
    }
    fabric->cliqueId = target.gpu->clique;
    fabric->status = NVML_SUCCESS;
    fabric->state = FABRIC_STATE_COMPLETED;
    return NVML_SUCCESS;
}

/* go-gpuallocator, for GetPreferredAllocation: all GPUs are on one CPU, as NVML_TOPOLOGY_NODE says. */
EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, int *level)
{
    enum { TOPOLOGY_NODE = 40 };
    struct target target;
    nvmlReturn_t code = find_target(one, &target);
    if (code == NVML_SUCCESS)
        code = find_target(other, &target);
    if (code == NVML_SUCCESS)
        *level = TOPOLOGY_NODE;
    return code;
}

/* go-gpuallocator, for GetPreferredAllocation: there are no NVLinks, so that it has no reason to prefer pairs. */
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, int *active)
{
    struct target target;
    (void)link;
    (void)active;
    nvmlReturn_t code = find_target(device, &target);
    return code == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : code;
}
