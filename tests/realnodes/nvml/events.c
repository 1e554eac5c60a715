// SPDX-License-Identifier: Apache-2.0
/*
 * The mock library's events: lines that a test appends to the file beside the machine's, named like it with `.events`.
 *
 *     xid GPU-5f1c… 79          an XID of a whole GPU
 *     xid GPU-5f1c… 94 3 0      an XID of the MIG device in GPU instance 3, compute instance 0
 *
 * As with a real driver, a set has only the events that come after it was made. The device plugin's health check is
 * the one user: it makes a set for each resource, registers the GPUs of the resource and waits, five seconds at a time.
 */
#include "handles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* How often a wait looks at the file: soon enough for a test, and rare enough to cost nothing. */
#define POLL_MILLISECONDS 50

struct nvmlEventSet_st {
    unsigned long long masks[MAX_GPUS]; /* GPU → the types of its events that the user wants */
    long offset;                        /* bytes of the file that were read */
};

static FILE *open_events(void)
{
    char path[4096];
    const char *machine = getenv(MACHINE_VARIABLE);
    if (machine == NULL || snprintf(path, sizeof path, "%s.events", machine) >= (int)sizeof path)
        return NULL;
    return fopen(path, "r");
}

static void sleep_milliseconds(unsigned milliseconds)
{
    struct timespec time = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    nanosleep(&time, NULL);
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    const struct machine *machine;
    nvmlReturn_t code = find_machine(&machine);
    if (code != NVML_SUCCESS)
        return code;
    *set = calloc(1, sizeof **set);
    if (*set == NULL)
        return NVML_ERROR_MEMORY;
    FILE *file = open_events();
    if (file) {
        fseek(file, 0, SEEK_END);
        (*set)->offset = ftell(file);
        fclose(file);
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    free(set);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code == NVML_SUCCESS)
        *types = EVENT_XID | EVENT_DOUBLE_BIT_ECC | EVENT_SINGLE_BIT_ECC;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    struct target target;
    nvmlReturn_t code = find_target(device, &target);
    if (code == NVML_SUCCESS)
        set->masks[target.gpu_index] |= types;
    return code;
}

/* Turn a line of the file into an event; 0 if it is of no GPU that is registered in the set. */
static int read_event(const char *line, const struct nvmlEventSet_st *set, nvmlEventData_t *event)
{
    char uuid[TEXT_SIZE];
    const struct machine *machine;
    memset(event, 0, sizeof *event);
    event->eventType = EVENT_XID;
    event->gpuInstanceId = NO_INSTANCE;
    event->computeInstanceId = NO_INSTANCE;
    int words =
        sscanf(line, "xid %95s %llu %u %u", uuid, &event->eventData, &event->gpuInstanceId, &event->computeInstanceId);
    if (words != 2 && words != 4) {
        fprintf(stderr, "mock libnvidia-ml: cannot read the event `%s`\n", line);
        return 0;
    }
    if (find_machine(&machine) != NVML_SUCCESS || nvmlDeviceGetHandleByUUID(uuid, &event->device) != NVML_SUCCESS)
        return 0;
    struct target target;
    return find_target(event->device, &target) == NVML_SUCCESS && (set->masks[target.gpu_index] & EVENT_XID);
}

/* Take the next event out of the file; 0 if there is none. A line that does not end yet is left for later. */
static int next_event(struct nvmlEventSet_st *set, nvmlEventData_t *event)
{
    char line[4 * TEXT_SIZE];
    int found = 0;
    FILE *file = open_events();
    if (file == NULL)
        return 0;
    struct stat stat_now;
    if (fstat(fileno(file), &stat_now) == 0 && stat_now.st_size < set->offset)
        set->offset = 0;
    fseek(file, set->offset, SEEK_SET);
    while (!found && fgets(line, sizeof line, file) && strchr(line, '\n')) {
        set->offset = ftell(file);
        line[strcspn(line, "\n")] = '\0';
        found = line[0] != '\0' && read_event(line, set, event);
    }
    fclose(file);
    return found;
}

/* A driver that is unloaded ends the wait with an error, at which the device plugin gives up all its devices. */
EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *event, unsigned int milliseconds)
{
    for (unsigned waited = 0;; waited += POLL_MILLISECONDS) {
        const struct machine *machine;
        nvmlReturn_t code = find_machine(&machine);
        if (code != NVML_SUCCESS) {
            sleep_milliseconds(1000);
            return code;
        }
        if (next_event(set, event))
            return NVML_SUCCESS;
        if (waited >= milliseconds)
            return NVML_ERROR_TIMEOUT;
        sleep_milliseconds(POLL_MILLISECONDS);
    }
}
