// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum kind { TEXT, NUMBER, VERSION, MODE };

/* A key of the file, and the member that its value goes to. */
struct field {
    const char *key;
    enum kind kind;
    size_t offset;
};

static const struct field machine_fields[] = {
    {"driver", TEXT, offsetof(struct machine, driver)},
    {"cuda", VERSION, offsetof(struct machine, cuda)},
    {NULL, TEXT, 0},
};

static const struct field gpu_fields[] = {
    {"name", TEXT, offsetof(struct gpu, name)},
    {"uuid", TEXT, offsetof(struct gpu, uuid)},
    {"bus", TEXT, offsetof(struct gpu, bus)},
    {"cluster", TEXT, offsetof(struct gpu, cluster)},
    {"clique", NUMBER, offsetof(struct gpu, clique)},
    {"minor", NUMBER, offsetof(struct gpu, minor_number)},
    {"memory", NUMBER, offsetof(struct gpu, memory)},
    {"compute", VERSION, offsetof(struct gpu, compute)},
    {"mig", MODE, offsetof(struct gpu, mig)},
    {NULL, TEXT, 0},
};

static const struct field instance_fields[] = {
    {"uuid", TEXT, offsetof(struct instance, uuid)},
    {"gi", NUMBER, offsetof(struct instance, gi)},
    {"ci", NUMBER, offsetof(struct instance, ci)},
    {"gi-profile", NUMBER, offsetof(struct instance, gi_profile)},
    {"ci-profile", NUMBER, offsetof(struct instance, ci_profile)},
    {"gi-slices", NUMBER, offsetof(struct instance, gi_slices)},
    {"ci-slices", NUMBER, offsetof(struct instance, ci_slices)},
    {"memory", NUMBER, offsetof(struct instance, memory)},
    {"multiprocessors", NUMBER, offsetof(struct instance, multiprocessors)},
    {"copy-engines", NUMBER, offsetof(struct instance, copy_engines)},
    {"decoders", NUMBER, offsetof(struct instance, decoders)},
    {"encoders", NUMBER, offsetof(struct instance, encoders)},
    {"jpegs", NUMBER, offsetof(struct instance, jpegs)},
    {"ofas", NUMBER, offsetof(struct instance, ofas)},
    {NULL, TEXT, 0},
};

/* Where the lines of the current section go. */
struct section {
    const struct field *fields;
    char *base;
};

static int read_value(enum kind kind, void *member, const char *value)
{
    char rest;
    unsigned *numbers = member;
    switch (kind) {
    case TEXT:
        return snprintf(member, TEXT_SIZE, "%s", value) < TEXT_SIZE;
    case NUMBER:
        return sscanf(value, "%u%c", numbers, &rest) == 1;
    case VERSION:
        return sscanf(value, "%u.%u%c", numbers, numbers + 1, &rest) == 2;
    case MODE: {
        static const char *const modes[] = {"unsupported", "disabled", "enabled"};
        for (int mode = MIG_UNSUPPORTED; mode <= MIG_ENABLED; mode++)
            if (strcmp(value, modes[mode]) == 0) {
                *(enum mig_mode *)member = (enum mig_mode)mode;
                return 1;
            }
    }
    }
    return 0;
}

/* Take in one line; 0 if it has a mistake. */
static int read_line(struct machine *machine, struct section *section, char *line)
{
    struct gpu *gpu = machine->gpu_count ? &machine->gpus[machine->gpu_count - 1] : NULL;
    line[strcspn(line, "\n")] = '\0';
    if (line[0] == '\0' || line[0] == '#')
        return 1;
    if (strcmp(line, "gpu") == 0) {
        if (machine->gpu_count == MAX_GPUS)
            return 0;
        *section = (struct section){gpu_fields, (char *)&machine->gpus[machine->gpu_count++]};
        return 1;
    }
    if (strcmp(line, "instance") == 0) {
        if (gpu == NULL || gpu->instance_count == MAX_INSTANCES)
            return 0;
        *section = (struct section){instance_fields, (char *)&gpu->instances[gpu->instance_count++]};
        return 1;
    }
    char *space = strchr(line, ' ');
    if (space == NULL)
        return 0;
    *space = '\0';
    for (const struct field *field = section->fields; field->key; field++)
        if (strcmp(field->key, line) == 0)
            return read_value(field->kind, section->base + field->offset, space + 1);
    return 0;
}

static struct machine *read_machine(const char *path)
{
    char line[4 * TEXT_SIZE];
    FILE *file = fopen(path, "r");
    struct machine *machine = calloc(1, sizeof *machine);
    if (file == NULL || machine == NULL) {
        if (file)
            fclose(file);
        free(machine);
        return NULL;
    }
    struct section section = {machine_fields, (char *)machine};
    for (int number = 1; fgets(line, sizeof line, file); number++)
        if (!read_line(machine, &section, line)) {
            fprintf(stderr, "mock libnvidia-ml: %s:%d: cannot read `%s`\n", path, number, line);
            free(machine);
            machine = NULL;
            break;
        }
    fclose(file);
    return machine;
}

static int same_file(const struct stat *one, const struct stat *other)
{
    return one->st_ino == other->st_ino && one->st_size == other->st_size &&
           one->st_mtim.tv_sec == other->st_mtim.tv_sec && one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

const struct machine *machine_now(void)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct stat seen;
    static const struct machine *machine;
    struct stat stat_now;
    const char *path = getenv(MACHINE_VARIABLE);
    pthread_mutex_lock(&mutex);
    if (path == NULL || stat(path, &stat_now) != 0) {
        memset(&seen, 0, sizeof seen);
        machine = NULL;
    } else if (!same_file(&seen, &stat_now)) {
        const struct machine *fresh = read_machine(path);
        seen = stat_now;
        if (fresh)
            machine = fresh;
    }
    const struct machine *now = machine;
    pthread_mutex_unlock(&mutex);
    return now;
}
