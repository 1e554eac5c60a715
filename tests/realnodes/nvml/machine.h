// SPDX-License-Identifier: Apache-2.0
/*
 * The machine that the mock library shows: a text file that the variable GPU_USHER_NVML names.
 *
 * A line is a key, a space and a value; empty lines and lines that begin with # do not count. Lines before the first
 * `gpu` describe the machine, lines after a `gpu` that GPU, lines after an `instance` that MIG instance of the GPU.
 * tests/realnodes/nvml_config.py writes such files; the tables in machine.c have every key.
 *
 * The file is read again whenever it has changed, so that a test can change the driver or a GPU while a component
 * runs. Whoever changes it replaces it by a rename. A file that is not there is a driver that is not loaded; a file
 * with a mistake changes nothing, and the mistake is on standard error.
 */
#ifndef GPU_USHER_NVML_MACHINE_H
#define GPU_USHER_NVML_MACHINE_H

/* More than any server has; a larger number is a mistake in the file. */
#define MAX_GPUS 16
/* NVIDIA's MIG user guide: a GPU has at most seven instances. */
#define MAX_INSTANCES 7
/* NVML_DEVICE_UUID_V2_BUFFER_SIZE and NVML_DEVICE_NAME_V2_BUFFER_SIZE. */
#define TEXT_SIZE 96

#define MACHINE_VARIABLE "GPU_USHER_NVML"

enum mig_mode { MIG_UNSUPPORTED, MIG_DISABLED, MIG_ENABLED };

/* A compute instance within a GPU instance: what Kubernetes knows as one MIG device. Memory is in MiB. */
struct instance {
    char uuid[TEXT_SIZE];
    unsigned gi;
    unsigned ci;
    unsigned gi_profile; /* an NVML_GPU_INSTANCE_PROFILE_* number */
    unsigned ci_profile; /* an NVML_COMPUTE_INSTANCE_PROFILE_* number */
    unsigned gi_slices;
    unsigned ci_slices;
    unsigned memory;
    unsigned multiprocessors;
    unsigned copy_engines;
    unsigned decoders;
    unsigned encoders;
    unsigned jpegs;
    unsigned ofas;
};

/* Memory is in MiB; `cluster` is a UUID, and empty for a GPU outside of any NVLink fabric. */
struct gpu {
    char name[TEXT_SIZE];
    char uuid[TEXT_SIZE];
    char bus[TEXT_SIZE];
    char cluster[TEXT_SIZE];
    unsigned clique;
    unsigned minor_number;
    unsigned memory;
    unsigned compute[2];
    enum mig_mode mig;
    unsigned instance_count;
    struct instance instances[MAX_INSTANCES];
};

struct machine {
    char driver[TEXT_SIZE];
    unsigned cuda[2];
    unsigned gpu_count;
    struct gpu gpus[MAX_GPUS];
};

/*
 * Give the machine as the file has it now, or NULL if there is no file. A machine that was given is never changed nor
 * freed: at 20 kB for each change of the file, no test is long enough for that to matter.
 */
const struct machine *machine_now(void);

#endif
