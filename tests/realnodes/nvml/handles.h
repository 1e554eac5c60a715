// SPDX-License-Identifier: Apache-2.0
/*
 * Handles: the address of a slot that says which GPU, or which MIG instance of it, is meant.
 *
 * A handle stays valid when the file changes; what it stands for may then be gone.
 */
#ifndef GPU_USHER_NVML_HANDLES_H
#define GPU_USHER_NVML_HANDLES_H

#include "machine.h"
#include "types.h"

/* What a handle stands for now; `instance` is NULL for a whole GPU. */
struct target {
    const struct machine *machine;
    const struct gpu *gpu;
    const struct instance *instance;
    unsigned gpu_index;
    unsigned instance_index;
};

nvmlDevice_t gpu_handle(unsigned gpu);
nvmlDevice_t instance_handle(unsigned gpu, unsigned instance);

/* Give the machine, if nvmlInit was called and a driver is loaded. */
nvmlReturn_t find_machine(const struct machine **machine);
/* Look up a handle of a GPU or of a MIG instance. */
nvmlReturn_t find_target(nvmlDevice_t device, struct target *target);
/* Part of the interface, and used within the library too. */
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);
/* Copy a text into a buffer of the caller. */
nvmlReturn_t copy_text(char *buffer, unsigned size, const char *text);

#endif
