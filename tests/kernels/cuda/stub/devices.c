/* Devices and their primary contexts; a stack of contexts for every thread. */

#include "stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8, DEEPEST = 64 };

typedef struct {
    int device, retained;
} Context;

static Context contexts[MOST]; /* the primary context of every device */
static __thread Context *stack[DEEPEST];
static __thread int depth;

static int devices(void) {
    return (int)setting("STUB_CUDA_DEVICES", 1);
}

Result current_device(int *device) {
    if (!depth || !stack[depth - 1])
        return INVALID_CONTEXT;
    *device = stack[depth - 1]->device;
    return OK;
}

static Result known(Context *context) {
    return context >= contexts && context < contexts + devices() && context->retained ? OK : INVALID_CONTEXT;
}

Result cuDeviceGetCount(int *count) {
    BEGIN("cuDeviceGetCount", AFTER_INIT);
    *count = devices();
    return leave(OK);
}

Result cuDeviceGet(int *device, int number) {
    BEGIN("cuDeviceGet", AFTER_INIT);
    *device = number;
    return leave(number >= 0 && number < devices() ? OK : INVALID_DEVICE);
}

Result cuDeviceGetName(char *name, int room, int device) {
    BEGIN("cuDeviceGetName", AFTER_INIT);
    const char *text = getenv("STUB_CUDA_NAME");
    (void)device;
    snprintf(name, (size_t)room, "%s", text ? text : "Stub of a GPU");
    return leave(OK);
}

Result cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    BEGIN("cuDeviceGetUuid", AFTER_INIT);
    memset(uuid, 0, 16);
    uuid[15] = (unsigned char)device;
    return leave(OK);
}

Result cuDeviceTotalMem_v2(size_t *bytes, int device) {
    BEGIN("cuDeviceTotalMem", AFTER_INIT);
    (void)device;
    *bytes = (size_t)setting("STUB_CUDA_MEMORY", 16LL << 30);
    return leave(OK);
}

int shared_optin(void) {
    switch (capability()) {
    case 75: return 64 << 10;
    case 80: case 87: return 163 << 10;
    case 86: case 89: case 120: case 121: return 99 << 10;
    default: return 227 << 10;
    }
}

/* Attributes by number; what is not listed is 0: a feature that is not there. */
static int attribute(int which) {
    switch (which) {
    case 1: case 2: case 3: return 1024;             /* threads of a block; along x, y */
    case 4: return 64;                               /* along z */
    case 5: return 0x7fffffff;                       /* blocks along x */
    case 6: case 7: return 65535;                    /* along y, z */
    case 8: return 48 << 10;                         /* shared memory of a block that has not asked */
    case 10: return 32;                              /* threads of a warp */
    case 12: case 82: return 65536;                  /* registers */
    case 16: return (int)setting("STUB_CUDA_SMS", 8);
    case 18: return (int)setting("STUB_CUDA_INTEGRATED", 0);
    case 19: case 41: case 91: return 1;             /* maps host memory; one space of addresses, for all of it */
    case 39: return 2048;                            /* threads of a multiprocessor */
    case 75: return capability() / 10;
    case 76: return capability() % 10;
    case 81: return shared_optin() + 1024;
    case 97: return shared_optin();
    default: return 0;
    }
}

Result cuDeviceGetAttribute(int *value, int which, int device) {
    BEGIN("cuDeviceGetAttribute", AFTER_INIT);
    note("%d", which);
    *value = attribute(which);
    return leave(device >= 0 && device < devices() ? OK : INVALID_DEVICE);
}

Result cuDevicePrimaryCtxRetain(Context **context, int device) {
    BEGIN("cuDevicePrimaryCtxRetain", AFTER_INIT);
    if (device < 0 || device >= devices() || device >= MOST)
        return leave(INVALID_DEVICE);
    contexts[device].device = device;
    contexts[device].retained++;
    *context = &contexts[device];
    return leave(OK);
}

Result cuDevicePrimaryCtxRelease_v2(int device) {
    BEGIN("cuDevicePrimaryCtxRelease", AFTER_INIT);
    if (device < 0 || device >= devices() || !contexts[device].retained)
        return leave(INVALID_CONTEXT);
    contexts[device].retained--;
    return leave(OK);
}

Result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    BEGIN("cuDevicePrimaryCtxGetState", AFTER_INIT);
    *flags = 0;
    *active = contexts[device].retained > 0;
    return leave(OK);
}

void *current_context(void) {
    return depth ? stack[depth - 1] : NULL;
}

Result cuCtxGetCurrent(Context **context) {
    BEGIN("cuCtxGetCurrent", AFTER_INIT);
    *context = current_context();
    return leave(OK);
}

Result cuCtxSetCurrent(Context *context) {
    BEGIN("cuCtxSetCurrent", AFTER_INIT);
    if (context && known(context))
        return leave(INVALID_CONTEXT);
    if (!context) {
        depth -= depth > 0;
        return leave(OK);
    }
    if (!depth)
        depth = 1;
    stack[depth - 1] = context;
    return leave(OK);
}

Result cuCtxPushCurrent_v2(Context *context) {
    BEGIN("cuCtxPushCurrent", AFTER_INIT);
    if (known(context) || depth == DEEPEST)
        return leave(INVALID_CONTEXT);
    stack[depth++] = context;
    return leave(OK);
}

Result cuCtxPopCurrent_v2(Context **context) {
    BEGIN("cuCtxPopCurrent", AFTER_INIT);
    if (!depth)
        return leave(INVALID_CONTEXT);
    depth--;
    if (context)
        *context = stack[depth];
    return leave(OK);
}

Result cuCtxGetDevice(int *device) {
    BEGIN("cuCtxGetDevice", AFTER_INIT);
    return leave(current_device(device));
}

Result cuCtxGetId(Context *context, unsigned long long *id) {
    BEGIN("cuCtxGetId", AFTER_INIT);
    if (!context && depth)
        context = stack[depth - 1];
    if (known(context))
        return leave(INVALID_CONTEXT);
    *id = (unsigned long long)(context - contexts) + 1;
    return leave(OK);
}
