// SPDX-License-Identifier: Apache-2.0
/*
 * The mock library's questions about MIG.
 *
 * go-nvlib makes a profile's name, such as 1g.10gb, by itself: it looks for the number of the GPU instance's profile
 * and the number of the compute instance's profile among all that the library knows, and works out the memory from
 * the instance's share of the GPU's. Here the id of a profile is its number.
 */
#include "handles.h"

#include <string.h>

struct nvmlGpuInstance_st {
    char unused;
};

struct nvmlComputeInstance_st {
    char unused;
};

/* A GPU instance is named by the first of its compute instances in the file. */
static struct nvmlGpuInstance_st gpu_instances[MAX_GPUS][MAX_INSTANCES];
static struct nvmlComputeInstance_st compute_instances[MAX_GPUS][MAX_INSTANCES];

static nvmlReturn_t find_slot(long slot, struct target *target)
{
    if (slot < 0 || slot >= MAX_GPUS * MAX_INSTANCES)
        return NVML_ERROR_INVALID_ARGUMENT;
    return find_target(instance_handle((unsigned)slot / MAX_INSTANCES, (unsigned)slot % MAX_INSTANCES), target);
}

static nvmlReturn_t find_mig_device(nvmlDevice_t device, struct target *target)
{
    nvmlReturn_t code = find_target(device, target);
    if (code != NVML_SUCCESS)
        return code;
    return target->instance ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* go-nvlib: whether a GPU can have MIG, and has it. There is never a change that waits for a reset. */
EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code != NVML_SUCCESS)
        return code;
    if (target.gpu->mig == MIG_UNSUPPORTED || target.instance)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = target.gpu->mig == MIG_ENABLED;
    *pending = *current;
    return NVML_SUCCESS;
}

/* go-nvlib, for the walk over a GPU's MIG devices. */
EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code == NVML_SUCCESS)
        *count = target.gpu->mig == MIG_ENABLED ? MAX_INSTANCES : 0;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code != NVML_SUCCESS)
        return code;
    if (target.gpu->mig != MIG_ENABLED)
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= target.gpu->instance_count)
        return NVML_ERROR_NOT_FOUND;
    *mig = instance_handle(target.gpu_index, index);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code == NVML_SUCCESS)
        *is_mig = target.instance != NULL;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    struct target target;
    nvmlReturn_t code = find_mig_device(mig, &target);
    if (code == NVML_SUCCESS)
        *device = gpu_handle(target.gpu_index);
    return code;
}

/* The device plugin: the path of the instance in /proc/driver/nvidia-caps/mig-minors, and whose an XID is. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct target target;
    nvmlReturn_t code = find_mig_device(device, &target);
    if (code == NVML_SUCCESS)
        *id = target.instance->gi;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct target target;
    nvmlReturn_t code = find_mig_device(device, &target);
    if (code == NVML_SUCCESS)
        *id = target.instance->ci;
    return code;
}

/* gpu-feature-discovery: memory, multiprocessors, slices.* and engines.* of a profile; the plugin: one size only. */
EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    struct target target;
    nvmlReturn_t code = find_mig_device(device, &target);
    if (code != NVML_SUCCESS)
        return code;
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = target.instance->multiprocessors,
        .sharedCopyEngineCount = target.instance->copy_engines,
        .sharedDecoderCount = target.instance->decoders,
        .sharedEncoderCount = target.instance->encoders,
        .sharedJpegCount = target.instance->jpegs,
        .sharedOfaCount = target.instance->ofas,
        .gpuInstanceSliceCount = target.instance->gi_slices,
        .computeInstanceSliceCount = target.instance->ci_slices,
        .memorySizeMB = target.instance->memory,
    };
    return NVML_SUCCESS;
}

/* The rest of this file: go-nvlib, for the name of a MIG device's profile. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *found)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code != NVML_SUCCESS)
        return code;
    for (unsigned i = 0; i < target.gpu->instance_count; i++)
        if (target.gpu->instances[i].gi == id) {
            *found = &gpu_instances[target.gpu_index][i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    struct target target;
    nvmlReturn_t code = find_slot(instance - &gpu_instances[0][0], &target);
    if (code != NVML_SUCCESS)
        return code;
    memset(info, 0, sizeof *info);
    info->device = gpu_handle(target.gpu_index);
    info->id = target.instance->gi;
    info->profileId = target.instance->gi_profile;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                          nvmlComputeInstance_t *found)
{
    struct target target;
    nvmlReturn_t code = find_slot(instance - &gpu_instances[0][0], &target);
    if (code != NVML_SUCCESS)
        return code;
    for (unsigned i = 0; i < target.gpu->instance_count; i++)
        if (target.gpu->instances[i].gi == target.instance->gi && target.gpu->instances[i].ci == id) {
            *found = &compute_instances[target.gpu_index][i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info)
{
    struct target target;
    nvmlReturn_t code = find_slot(instance - &compute_instances[0][0], &target);
    if (code != NVML_SUCCESS)
        return code;
    memset(info, 0, sizeof *info);
    info->device = gpu_handle(target.gpu_index);
    info->id = target.instance->ci;
    info->profileId = target.instance->ci_profile;
    return nvmlDeviceGetGpuInstanceById(info->device, target.instance->gi, &info->gpuInstance);
}

/* Only the profiles exist that some instance of the GPU has. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                        nvmlGpuInstanceProfileInfo_t *info)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code != NVML_SUCCESS)
        return code;
    for (unsigned i = 0; i < target.gpu->instance_count; i++) {
        const struct instance *instance = &target.gpu->instances[i];
        if (instance->gi_profile != profile)
            continue;
        memset(info, 0, sizeof *info);
        info->id = profile;
        info->sliceCount = instance->gi_slices;
        info->memorySizeMB = instance->memory;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

/* `engines` says how engines are shared; 0, which is all there is, means by all compute instances. */
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
                                                                 unsigned int engines,
                                                                 nvmlComputeInstanceProfileInfo_t *info)
{
    struct target target;
    nvmlReturn_t code = find_slot(instance - &gpu_instances[0][0], &target);
    if (code != NVML_SUCCESS)
        return code;
    for (unsigned i = 0; i < target.gpu->instance_count && engines == 0; i++) {
        const struct instance *other = &target.gpu->instances[i];
        if (other->gi != target.instance->gi || other->ci_profile != profile)
            continue;
        memset(info, 0, sizeof *info);
        info->id = profile;
        info->sliceCount = other->ci_slices;
        info->multiprocessorCount = other->multiprocessors;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}
