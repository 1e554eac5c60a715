// SPDX-License-Identifier: Apache-2.0
/*
 * A libnvidia-ml.so.1 without hardware: the library itself, and its questions about the system and about GPUs.
 *
 * Only the functions exist that NVIDIA's k8s-device-plugin and gpu-feature-discovery v0.19.3 call, themselves or
 * through go-nvlib and go-gpuallocator; each says for what. go-nvml takes the newest of a function's versions that it
 * finds in the library, so that one version of each is enough, and components ask for the symbol of a function that
 * older drivers lack before they call it.
 */
#include "handles.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define MIB (1024ULL * 1024ULL)

struct nvmlDevice_st {
    char unused;
};

static struct nvmlDevice_st slots[MAX_GPUS][1 + MAX_INSTANCES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;

nvmlDevice_t gpu_handle(unsigned gpu)
{
    return &slots[gpu][0];
}

nvmlDevice_t instance_handle(unsigned gpu, unsigned instance)
{
    return &slots[gpu][1 + instance];
}

nvmlReturn_t find_machine(const struct machine **machine)
{
    pthread_mutex_lock(&mutex);
    int initialized = users > 0;
    pthread_mutex_unlock(&mutex);
    *machine = machine_now();
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    return *machine ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

nvmlReturn_t find_target(nvmlDevice_t device, struct target *target)
{
    nvmlReturn_t code = find_machine(&target->machine);
    if (code != NVML_SUCCESS)
        return code;
    if (device < &slots[0][0] || device > &slots[MAX_GPUS - 1][MAX_INSTANCES])
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned slot = (unsigned)(device - &slots[0][0]);
    target->gpu_index = slot / (1 + MAX_INSTANCES);
    if (target->gpu_index >= target->machine->gpu_count)
        return NVML_ERROR_GPU_IS_LOST;
    target->gpu = &target->machine->gpus[target->gpu_index];
    target->instance = NULL;
    if (slot % (1 + MAX_INSTANCES) == 0)
        return NVML_SUCCESS;
    target->instance_index = slot % (1 + MAX_INSTANCES) - 1;
    if (target->instance_index >= target->gpu->instance_count)
        return NVML_ERROR_NOT_FOUND;
    target->instance = &target->gpu->instances[target->instance_index];
    return NVML_SUCCESS;
}

nvmlReturn_t copy_text(char *buffer, unsigned size, const char *text)
{
    return (unsigned)snprintf(buffer, size, "%s", text) < size ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* Every component, at its start and at each round of labels. */
EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    if (machine_now() == NULL)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    pthread_mutex_lock(&mutex);
    users++;
    pthread_mutex_unlock(&mutex);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&mutex);
    int initialized = users > 0;
    if (initialized)
        users--;
    pthread_mutex_unlock(&mutex);
    return initialized ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

/* go-nvml, for the text of every error that a component logs. */
EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case NVML_SUCCESS:
        return "success";
    case NVML_ERROR_UNINITIALIZED:
        return "mock NVML: not initialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "mock NVML: invalid argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "mock NVML: not supported";
    case NVML_ERROR_NOT_FOUND:
        return "mock NVML: not found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "mock NVML: buffer too small";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "mock NVML: no driver is loaded, as the file that " MACHINE_VARIABLE " names is absent";
    case NVML_ERROR_TIMEOUT:
        return "mock NVML: timeout";
    case NVML_ERROR_GPU_IS_LOST:
        return "mock NVML: the GPU is lost";
    default:
        return "mock NVML: unknown error";
    }
}

/* gpu-feature-discovery: the labels nvidia.com/cuda.driver-version.*. */
EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
    const struct machine *machine;
    nvmlReturn_t code = find_machine(&machine);
    return code == NVML_SUCCESS ? copy_text(version, size, machine->driver) : code;
}

/* gpu-feature-discovery: the labels nvidia.com/cuda.runtime-version.*; 12.4 is 12040. */
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    const struct machine *machine;
    nvmlReturn_t code = find_machine(&machine);
    if (code == NVML_SUCCESS)
        *version = (int)(machine->cuda[0] * 1000 + machine->cuda[1] * 10);
    return code;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

/* go-nvlib, for every walk over the GPUs. */
EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    const struct machine *machine;
    nvmlReturn_t code = find_machine(&machine);
    if (code == NVML_SUCCESS)
        *count = machine->gpu_count;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    const struct machine *machine;
    nvmlReturn_t code = find_machine(&machine);
    if (code != NVML_SUCCESS)
        return code;
    if (index >= machine->gpu_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = gpu_handle(index);
    return NVML_SUCCESS;
}

/* The device plugin's health check, for a GPU's UUID and for a MIG instance's. */
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    const struct machine *machine;
    nvmlReturn_t code = find_machine(&machine);
    if (code != NVML_SUCCESS)
        return code;
    for (unsigned i = 0; i < machine->gpu_count; i++) {
        const struct gpu *gpu = &machine->gpus[i];
        if (strcmp(gpu->uuid, uuid) == 0) {
            *device = gpu_handle(i);
            return NVML_SUCCESS;
        }
        for (unsigned j = 0; j < gpu->instance_count; j++)
            if (strcmp(gpu->instances[j].uuid, uuid) == 0) {
                *device = instance_handle(i, j);
                return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* The device plugin: the identity of a device; NVIDIA_VISIBLE_DEVICES. */
EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int size)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code != NVML_SUCCESS)
        return code;
    return copy_text(uuid, size, target.instance ? target.instance->uuid : target.gpu->uuid);
}

/* gpu-feature-discovery: nvidia.com/gpu.product; the device plugin: which GPUs a resource has. */
EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int size)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    return code == NVML_SUCCESS ? copy_text(name, size, target.gpu->name) : code;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code == NVML_SUCCESS)
        *index = target.instance ? target.instance_index : target.gpu_index;
    return code;
}

/* The device plugin: the path /dev/nvidiaN. */
EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor_number)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code == NVML_SUCCESS)
        *minor_number = target.gpu->minor_number;
    return code;
}

/* gpu-feature-discovery: nvidia.com/gpu.memory; the device plugin: the memory of an MPS share. All of it is free. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code != NVML_SUCCESS)
        return code;
    memory->total = MIB * (target.instance ? target.instance->memory : target.gpu->memory);
    memory->free = memory->total;
    memory->used = 0;
    return NVML_SUCCESS;
}

/* gpu-feature-discovery: nvidia.com/gpu.compute.* and, from them, nvidia.com/gpu.family. */
EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *upper, int *lower)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code != NVML_SUCCESS)
        return code;
    *upper = (int)target.gpu->compute[0];
    *lower = (int)target.gpu->compute[1];
    return NVML_SUCCESS;
}

/* Both components: the folder of the GPU in /sys/bus/pci/devices, for its class and its NUMA node. */
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code != NVML_SUCCESS)
        return code;
    memset(pci, 0, sizeof *pci);
    if (sscanf(target.gpu->bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3)
        return NVML_ERROR_UNKNOWN;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xFFFF, pci->bus & 0xFF,
             pci->device & 0xFF);
    return NVML_SUCCESS;
}
