/* A stand-in for libnvidia-ml.so.1 whose whole state is a file mapped by the test, the code under test and its children.
 *
 * Energy is exact: each GPU draws `power_mw` since `since_ns`, on top of `base_uj`, and its counter shows the value of
 * the last multiple of `tick_ns`. Time is the state's `now_ns` where a test sets it, else the machine's monotonic clock.
 * `rc[CALL]` makes a call fail with that code, once `after[CALL]` calls of it have succeeded; `calls[CALL]` counts.
 * The layout is repeated by nvmlstub.py.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x6e766d6c, MAX_GPUS = 16, MAX_MIG = 7, REASONS_COUNTED = 5 };
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9,
       UNKNOWN = 999 };
enum { INIT, HANDLE, ENERGY, POWER, FIELDS, LIMITS, SET_LIMIT, CLOCKS, SLOW_MS, TEMPERATURE, UTILIZATION, REASONS,
       CALLS = 16 };

typedef struct {
    char uuid[64], mig_uuid[64], name[64], bus[32];
    uint32_t architecture, average_mw, module_mw, c2c;
    uint32_t low_mw, high_mw, default_mw, requested_mw, enforced_cap_mw, clock_low, clock_high, clock_max;
    uint64_t base_uj, power_mw, since_ns, tick_ns;
    uint32_t memory_mw, clock_sm, clock_memory, temperature, memory_temperature, busy, memory_busy, mig_count, module_id;
    uint64_t reasons, throttled_ns[REASONS_COUNTED]; /* of fields 74, 76, 269, 270, 271 */
    int32_t rc[CALLS];
    uint32_t after[CALLS], calls[CALLS];
    uint32_t persistence, plant, load_ppm, locks; /* plant: power follows clock, cap and load; locks: times set */
} gpu;

typedef struct {
    uint32_t magic, count;
    uint64_t now_ns;
    int32_t init_rc;
    uint32_t init_calls;
    uint32_t epoch; /* raised by a test: every call of a process that opened the library before fails with 999 */
    uint32_t field_offset_mj; /* by which the energy field differs from the counter, on a board where it does */
    gpu gpus[MAX_GPUS];
} state;

static state *S;
static int users;
static uint32_t epoch;

static uint64_t now_ns(void)
{
    struct timespec t;
    if (S->now_ns)
        return S->now_ns;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int map_state(void)
{
    const char *path = getenv("NVMLSTUB_STATE");
    int fd = path ? open(path, O_RDWR) : -1;
    if (fd < 0)
        return DRIVER_NOT_LOADED;
    void *at = mmap(NULL, sizeof(state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED || ((state *)at)->magic != MAGIC)
        return DRIVER_NOT_LOADED;
    S = at;
    return SUCCESS;
}

/* The code a call returns: scripted, or success. */
static int scripted(gpu *g, int call)
{
    if (!S || !users)
        return UNINITIALIZED;
    if (S->epoch != epoch)
        return UNKNOWN;
    if (!g)
        return INVALID_ARGUMENT;
    for (int32_t spent = 0; spent < g->rc[SLOW_MS]; spent++) /* a test may end it */
        usleep(1000u);
    g->calls[call]++;
    return g->rc[call] && g->calls[call] > g->after[call] ? g->rc[call] : SUCCESS;
}

static uint64_t energy_mj(const gpu *g)
{
    uint64_t elapsed = now_ns() - g->since_ns;
    if (g->tick_ns)
        elapsed -= elapsed % g->tick_ns;
    return (g->base_uj + (uint64_t)((__uint128_t)elapsed * g->power_mw / 1000000000u) * 1000u) / 1000u;
}

static uint32_t enforced(const gpu *g)
{
    return g->enforced_cap_mw && g->enforced_cap_mw < g->requested_mw ? g->enforced_cap_mw : g->requested_mw;
}

/* The plant of telemetry/control/plant.py, in the same units and steps; called after every change of a limit. */
static double plant_mw(const gpu *g, double mhz)
{
    double share = mhz / g->clock_max, rise = share > 0.6 ? (share - 0.6) / 0.4 : 0.0, volt = 0.7 + 0.3 * rise;
    return 120e3 + g->load_ppm / 1e6 * (180e3 + 400e3 * share * volt * volt);
}
static void follow(gpu *g)
{
    if (!g->plant)
        return;
    uint64_t now = now_ns();
    g->base_uj += (uint64_t)((__uint128_t)(now - g->since_ns) * g->power_mw / 1000000u);
    g->since_ns = now;
    double mhz = g->clock_high && g->clock_high < g->clock_max ? g->clock_high : g->clock_max;
    while (mhz > 210 && plant_mw(g, mhz) > enforced(g))
        mhz -= 15;
    g->clock_sm = mhz < 210 ? 210 : (uint32_t)mhz;
    g->power_mw = (uint64_t)(plant_mw(g, g->clock_sm) + 0.5);
    g->average_mw = (uint32_t)g->power_mw;
}

#define CALL(which) do { int code = scripted(g, which); if (code) return code; } while (0)

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    int code = S ? SUCCESS : map_state();
    if (code)
        return code;
    S->init_calls++;
    if (S->init_rc)
        return S->init_rc;
    if (!users++)
        epoch = S->epoch;
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { if (!users) return UNINITIALIZED; users--; return SUCCESS; }
const char *nvmlErrorString(int code) { return code == 4 ? "Insufficient Permissions" : "stub error"; }

int nvmlDeviceGetCount_v2(unsigned *n)
{
    if (!S || !users)
        return UNINITIALIZED;
    *n = S->count;
    return S->epoch == epoch ? SUCCESS : UNKNOWN;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, gpu **out)
{
    if (!S || !users)
        return UNINITIALIZED;
    if (i >= S->count)
        return INVALID_ARGUMENT;
    gpu *g = &S->gpus[i];
    CALL(HANDLE);
    *out = g;
    return SUCCESS;
}
/* A MIG handle is told from a GPU's by pointing a few bytes into it; slices after the first have "-N" appended. */
int nvmlDeviceGetHandleByUUID(const char *uuid, gpu **out)
{
    if (!S || !users)
        return UNINITIALIZED;
    for (unsigned i = 0; i < S->count; i++) {
        gpu *g = &S->gpus[i];
        if (!strcmp(uuid, g->uuid)) {
            CALL(HANDLE);
            *out = g;
            return SUCCESS;
        }
        size_t length = strlen(g->mig_uuid);
        if (length && !strncmp(uuid, g->mig_uuid, length)) {
            *out = (gpu *)((char *)g + 1 + (uuid[length] ? atoi(uuid + length + 1) : 0));
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *mig, gpu **out)
{
    *out = (gpu *)((uintptr_t)mig & ~(uintptr_t)7);
    return SUCCESS;
}
int nvmlDeviceGetMigMode(gpu *g, unsigned *now, unsigned *pending)
{
    CALL(HANDLE);
    *now = *pending = g->mig_count > 0;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(gpu *g, unsigned *n) { CALL(HANDLE); *n = MAX_MIG; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(gpu *g, unsigned i, void **out)
{
    CALL(HANDLE);
    if (i >= g->mig_count)
        return NOT_FOUND;
    *out = (char *)g + 1 + i;
    return SUCCESS;
}

static int text(char *to, unsigned room, const char *from)
{
    if (strlen(from) + 1 > room)
        return 7;
    strcpy(to, from);
    return SUCCESS;
}
int nvmlDeviceGetUUID(gpu *g, char *to, unsigned room)
{
    unsigned slice = (unsigned)((uintptr_t)g & 7);
    g = (gpu *)((uintptr_t)g & ~(uintptr_t)7);
    CALL(HANDLE);
    if (slice < 2)
        return text(to, room, slice ? g->mig_uuid : g->uuid);
    snprintf(to, room, "%s-%u", g->mig_uuid, slice - 1);
    return SUCCESS;
}
int nvmlSystemGetDriverVersion(char *to, unsigned room) { return text(to, room, "580.00.01"); }
int nvmlDeviceGetIndex(gpu *g, unsigned *to) { CALL(HANDLE); *to = (unsigned)(g - S->gpus); return SUCCESS; }
int nvmlDeviceGetModuleId(gpu *g, unsigned *to) { CALL(HANDLE); *to = g->module_id; return SUCCESS; }
int nvmlDeviceGetClockInfo(gpu *g, unsigned type, unsigned *to)
{
    CALL(CLOCKS);
    *to = type == 2 ? g->clock_memory : g->clock_sm;
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(gpu *g, unsigned *to) { CALL(UTILIZATION); to[0] = g->busy; to[1] = g->memory_busy; return SUCCESS; }
int nvmlDeviceGetCurrentClocksEventReasons(gpu *g, unsigned long long *to) { CALL(REASONS); *to = g->reasons; return SUCCESS; }
int nvmlDeviceGetTemperature(gpu *g, unsigned sensor, unsigned *to) { (void)sensor; CALL(TEMPERATURE); *to = g->temperature; return SUCCESS; }
#ifndef OLD_DRIVER
int nvmlDeviceGetTemperatureV(gpu *g, unsigned *v) { CALL(TEMPERATURE); v[2] = g->temperature; return SUCCESS; }
#endif
int nvmlDeviceGetName(gpu *g, char *to, unsigned room) { CALL(HANDLE); return text(to, room, g->name); }
int nvmlDeviceGetArchitecture(gpu *g, unsigned *to) { CALL(HANDLE); *to = g->architecture; return SUCCESS; }

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_info;
int nvmlDeviceGetPciInfo_v3(gpu *g, pci_info *to)
{
    CALL(HANDLE);
    memset(to, 0, sizeof *to);
    return text(to->bus_id, sizeof to->bus_id, g->bus);
}
int nvmlDeviceGetC2cModeInfoV(gpu *g, unsigned *enabled)
{
    CALL(HANDLE);
    if (!g->c2c)
        return NOT_SUPPORTED;
    *enabled = 1;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(gpu *g, unsigned long long *to) { CALL(ENERGY); *to = energy_mj(g); return SUCCESS; }
int nvmlDeviceGetPowerUsage(gpu *g, unsigned *to) { CALL(POWER); *to = g->average_mw; return SUCCESS; }

typedef struct {
    uint32_t field, scope;
    int64_t stamp, latency;
    uint32_t type;
    int32_t rc;
    union { double d; unsigned u; unsigned long long ull; } value;
} field_value;
/* One field into *f; returns its code. Unknown scopes and fields are not supported, as in the driver. */
static int one_field(gpu *g, field_value *f)
{
    if (f->field == 83 && f->scope == 0) { /* the counter of nvmlDeviceGetTotalEnergyConsumption, and its faults */
        int code = scripted(g, ENERGY);
        f->type = 3;
        f->value.ull = code ? 0 : energy_mj(g) + S->field_offset_mj;
        return code;
    }
    static const unsigned counted[REASONS_COUNTED] = {74, 76, 269, 270, 271};
    unsigned module = g->c2c ? g->module_mw : 0;
    for (unsigned i = 0; i < REASONS_COUNTED; i++)
        if (f->field == counted[i]) {
            f->type = 3;
            f->value.ull = g->throttled_ns[i];
            return SUCCESS;
        }
    if (f->field == 82 && g->memory_temperature)
        f->value.u = g->memory_temperature;
    else if (f->field == 186 && f->scope == 0)
        f->value.u = (unsigned)g->power_mw;
    else if (f->field == 185 && f->scope == 0)
        f->value.u = g->average_mw;
    else if ((f->field == 185 || f->field == 186) && f->scope == 1 && g->c2c)
        f->value.u = module;
    else if (f->field == 185 && f->scope == 2)
        f->value.u = g->memory_mw;
    else
        return NOT_SUPPORTED;
    return SUCCESS;
}
int nvmlDeviceGetFieldValues(gpu *g, int n, field_value *f)
{
    CALL(HANDLE);
    for (int i = 0; i < n; i++) {
        int code = scripted(g, FIELDS);
        f[i].stamp = (int64_t)(now_ns() / 1000u);
        f[i].type = 1;
        f[i].value.ull = 0;
        f[i].rc = code ? code : one_field(g, &f[i]);
    }
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementLimitConstraints(gpu *g, unsigned *low, unsigned *high)
{
    CALL(LIMITS);
    *low = g->low_mw;
    *high = g->high_mw;
    return SUCCESS;
}
int nvmlDeviceGetPowerManagementLimit(gpu *g, unsigned *to) { CALL(LIMITS); *to = g->requested_mw; return SUCCESS; }
int nvmlDeviceGetPowerManagementDefaultLimit(gpu *g, unsigned *to) { CALL(LIMITS); *to = g->default_mw; return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(gpu *g, unsigned *to) { CALL(LIMITS); *to = enforced(g); return SUCCESS; }
int nvmlDeviceSetPowerManagementLimit(gpu *g, unsigned limit)
{
    CALL(SET_LIMIT);
    if (limit < g->low_mw || limit > g->high_mw)
        return INVALID_ARGUMENT;
    g->requested_mw = limit;
    follow(g);
    return SUCCESS;
}
int nvmlDeviceGetMaxClockInfo(gpu *g, unsigned type, unsigned *to) { (void)type; CALL(CLOCKS); *to = g->clock_max; return SUCCESS; }
int nvmlDeviceSetGpuLockedClocks(gpu *g, unsigned low, unsigned high)
{
    CALL(CLOCKS);
    g->clock_low = low;
    g->clock_high = high;
    g->locks++;
    follow(g);
    return SUCCESS;
}
int nvmlDeviceResetGpuLockedClocks(gpu *g) { CALL(CLOCKS); g->clock_low = g->clock_high = 0; follow(g); return SUCCESS; }
int nvmlDeviceGetPersistenceMode(gpu *g, unsigned *to) { CALL(LIMITS); *to = g->persistence; return SUCCESS; }
