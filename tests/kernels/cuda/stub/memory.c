/* Memory of the device and page-locked memory: this process's, zero at first. Copies are checked against allocations. */

#include "stub.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    Address start;
    size_t size;
    int kind;
    void *raw;
} Allocation;

static Allocation *allocations;
static size_t held, room;
static size_t taken; /* bytes of the device */

static Allocation *around(Address start, size_t size, int kinds) {
    for (size_t i = held; i-- > 0;) {
        Allocation *each = &allocations[i];
        if (each->kind & kinds && start >= each->start && start - each->start + size <= each->size)
            return each;
    }
    return NULL;
}

int inside(Address start, size_t size, int kinds) {
    return around(start, size, kinds) != NULL;
}

static void keep(Allocation one) {
    if (held == room) {
        room = room ? 2 * room : 64;
        allocations = realloc(allocations, room * sizeof *allocations);
        if (!allocations)
            abort();
    }
    allocations[held++] = one;
}

static Address allocate(size_t size, int kind) {
    void *raw = calloc(size + 256, 1);
    if (!raw)
        abort();
    Address start = ((Address)raw + 255) & ~(Address)255;
    keep((Allocation){start, size, kind, raw});
    return start;
}

static Result release(Address start, int kind) {
    for (size_t i = 0; i < held; i++) {
        Allocation *each = &allocations[i];
        if (each->start == start && each->kind == kind) {
            if (kind == DEVICE_MEMORY)
                taken -= each->size;
            free(each->raw);
            *each = allocations[--held];
            return OK;
        }
    }
    return INVALID_VALUE;
}

static size_t free_bytes(void) {
    size_t total = (size_t)setting("STUB_CUDA_MEMORY", 16LL << 30);
    size_t left = (size_t)setting("STUB_CUDA_FREE", (long long)total);
    return left > taken ? left - taken : 0;
}

Result cuMemGetInfo_v2(size_t *left, size_t *total) {
    BEGIN("cuMemGetInfo", IN_CONTEXT);
    *left = free_bytes();
    *total = (size_t)setting("STUB_CUDA_MEMORY", 16LL << 30);
    return leave(OK);
}

Result cuMemAlloc_v2(Address *start, size_t size) {
    BEGIN("cuMemAlloc", IN_CONTEXT);
    note("%zu", size);
    if (capturing_strictly())
        return leave(spoil_all(CAPTURE_UNSUPPORTED));
    if (!size)
        return leave(INVALID_VALUE);
    if (size > free_bytes())
        return leave(OUT_OF_MEMORY);
    *start = allocate(size, DEVICE_MEMORY);
    taken += size;
    return leave(OK);
}

Result cuMemFree_v2(Address start) {
    BEGIN("cuMemFree", IN_CONTEXT);
    if (capturing_strictly())
        return leave(spoil_all(CAPTURE_UNSUPPORTED));
    return leave(start ? release(start, DEVICE_MEMORY) : OK);
}

Result cuMemHostAlloc(void **start, size_t size, unsigned flags) {
    BEGIN("cuMemHostAlloc", IN_CONTEXT);
    (void)flags;
    if (capturing_strictly())
        return leave(spoil_all(CAPTURE_UNSUPPORTED));
    if (!size)
        return leave(INVALID_VALUE);
    *start = (void *)allocate(size, PINNED_MEMORY);
    return leave(OK);
}

Result cuMemFreeHost(void *start) {
    BEGIN("cuMemFreeHost", IN_CONTEXT);
    return leave(release((Address)start, PINNED_MEMORY));
}

/* Pages of the process that kernels can read: whole ones, none twice. */
Result cuMemHostRegister_v2(void *from, size_t size, unsigned flags) {
    BEGIN("cuMemHostRegister", IN_CONTEXT);
    Address start = (Address)from;
    note("%zu %u", size, flags);
    if (capturing_strictly())
        return leave(spoil_all(CAPTURE_UNSUPPORTED));
    if (!size || start % 4096 || size % 4096 || flags & 8)
        return leave(INVALID_VALUE); /* 8: attribute 113 says that there is no such thing */
    for (size_t i = 0; i < held; i++)
        if (allocations[i].kind == PINNED_MEMORY && allocations[i].start < start + size &&
            start < allocations[i].start + allocations[i].size)
            return leave(HOST_MEMORY_REGISTERED);
    keep((Allocation){start, size, PINNED_MEMORY, NULL});
    return leave(OK);
}

Result cuMemHostUnregister(void *start) {
    BEGIN("cuMemHostUnregister", IN_CONTEXT);
    return leave(release((Address)start, PINNED_MEMORY));
}

/* CU_POINTER_ATTRIBUTE_DEVICE_POINTER, for which Numba asks with every array it is given. */
Result cuPointerGetAttribute(void *value, int which, Address pointer) {
    BEGIN("cuPointerGetAttribute", IN_CONTEXT);
    if (which != 3 || !inside(pointer, 1, DEVICE_MEMORY | PINNED_MEMORY))
        return leave(INVALID_VALUE);
    *(Address *)value = pointer;
    return leave(OK);
}

Result copy_now(int way, Address to, Address from, size_t size) {
    if (way != TO_HOST && !inside(to, size, DEVICE_MEMORY))
        return INVALID_VALUE;
    if (way != TO_DEVICE && !inside(from, size, DEVICE_MEMORY))
        return INVALID_VALUE;
    memmove((void *)to, (const void *)from, size);
    return OK;
}

static Result copy(int way, Address to, Address from, size_t size, void *handle) {
    Stream *stream;
    Result code = stream_of(handle, &stream);
    note("%zu", size);
    if (code)
        return code;
    if (!capturing(stream))
        return copy_now(way, to, from, size);
    /* A node keeps the host's address: memory that is not page-locked has none to keep. */
    if ((way == TO_DEVICE && !inside(from, size, PINNED_MEMORY)) || (way == TO_HOST && !inside(to, size, PINNED_MEMORY)))
        return spoil(stream, CAPTURE_UNSUPPORTED);
    return add_node(stream, (Node){way, to, from, size});
}

Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t size, void *stream) {
    BEGIN("cuMemcpyHtoDAsync", IN_CONTEXT);
    return leave(copy(TO_DEVICE, to, (Address)from, size, stream));
}

Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t size, void *stream) {
    BEGIN("cuMemcpyDtoHAsync", IN_CONTEXT);
    return leave(copy(TO_HOST, (Address)to, from, size, stream));
}

Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t size, void *stream) {
    BEGIN("cuMemcpyDtoDAsync", IN_CONTEXT);
    return leave(copy(ON_DEVICE, to, from, size, stream));
}
