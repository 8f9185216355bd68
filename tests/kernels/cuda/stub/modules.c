/* Images of kernels, their attributes, and launches, which are checked and compute nothing.

   An image is what nvJitLink made (ELF: a section ".text.NAME" for every kernel, ".nv.shared.NAME" of the size of its
   static shared memory) or, from the linker below, the PTX itself. */

#define _GNU_SOURCE
#include "stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS = 32, PLAIN_SHARED = 48 << 10 };

typedef struct {
    char *name;
    int fixed;   /* bytes of static shared memory */
    int allowed; /* bytes of dynamic shared memory */
    void *library;
} Kernel;

typedef struct {
    int living, count;
    Kernel kernels[KERNELS];
} Library;

static Library *libraries[4096];
static int loaded;

static uint64_t number(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

static Kernel *kernel_named(Library *library, const char *name, size_t length) {
    for (int i = 0; i < library->count; i++)
        if (strlen(library->kernels[i].name) == length && !strncmp(library->kernels[i].name, name, length))
            return &library->kernels[i];
    return NULL;
}

static Result add_kernel(Library *library, const char *name, size_t length) {
    if (library->count == KERNELS)
        return INVALID_IMAGE;
    Kernel *kernel = &library->kernels[library->count++];
    kernel->name = strndup(name, length);
    kernel->library = library;
    return OK;
}

static Result read_elf(Library *library, const unsigned char *image) {
    const unsigned char *headers = image + number(image + 0x28, 8);
    uint64_t step = number(image + 0x3a, 2), count = number(image + 0x3c, 2);
    const unsigned char *names_header = headers + step * number(image + 0x3e, 2);
    const char *names = (const char *)image + number(names_header + 0x18, 8);
    for (int sizes = 0; sizes < 2; sizes++) /* first all kernels, then their sizes */
        for (uint64_t i = 0; i < count; i++) {
            const unsigned char *header = headers + i * step;
            const char *name = names + number(header, 4);
            if (!sizes && !strncmp(name, ".text.", 6)) {
                Result code = add_kernel(library, name + 6, strlen(name + 6));
                if (code)
                    return code;
            }
            if (sizes && !strncmp(name, ".nv.shared.", 11)) {
                Kernel *kernel = kernel_named(library, name + 11, strlen(name + 11));
                if (kernel)
                    kernel->fixed += (int)number(header + 0x20, 8);
            }
        }
    return OK;
}

/* ".visible .entry NAME(" and ".shared .align 16 .b8 NAME[BYTES];", the latter for all kernels of the text. */
static Result read_ptx(Library *library, const char *text) {
    int fixed = 0;
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += strspn(line, "\n\t ");
        size_t length = strcspn(line, "\n");
        int bytes;
        if (!strncmp(line, ".visible .entry ", 16)) {
            const char *name = line + 16;
            Result code = add_kernel(library, name, strcspn(name, "( \n"));
            if (code)
                return code;
        }
        const char *bracket = memchr(line, '[', length);
        if (!strncmp(line, ".shared ", 8) && bracket && sscanf(bracket, "[%d]", &bytes) == 1)
            fixed += bytes;
    }
    for (int i = 0; i < library->count; i++)
        library->kernels[i].fixed = fixed;
    return OK;
}

Result cuLibraryLoadData(Library **library, const void *image, void **options, void **values, unsigned count,
                         void **more, void **more_values, unsigned more_count) {
    BEGIN("cuLibraryLoadData", IN_CONTEXT);
    (void)options, (void)values, (void)count, (void)more, (void)more_values, (void)more_count;
    if (capturing_strictly())
        return leave(spoil_all(CAPTURE_UNSUPPORTED));
    if (!image || loaded == sizeof libraries / sizeof *libraries)
        return leave(INVALID_VALUE);
    Library *made = calloc(1, sizeof *made);
    Result code = memcmp(image, "\177ELF", 4) ? read_ptx(made, image) : read_elf(made, image);
    if (!code && !made->count)
        code = INVALID_IMAGE;
    for (int i = 0; i < made->count; i++)
        made->kernels[i].allowed = PLAIN_SHARED - made->kernels[i].fixed;
    made->living = 1;
    note("%s", made->count ? made->kernels[0].name : "");
    if (!code)
        *library = libraries[loaded++] = made;
    return leave(code);
}

static int living(Library *library) {
    for (int i = 0; i < loaded; i++)
        if (libraries[i] == library)
            return library->living;
    return 0;
}

static Kernel *known(void *handle) {
    for (int i = 0; i < loaded; i++) {
        Kernel *first = libraries[i]->kernels;
        if ((Kernel *)handle >= first && (Kernel *)handle < first + libraries[i]->count)
            return libraries[i]->living ? handle : NULL;
    }
    return NULL;
}

Result cuLibraryUnload(Library *library) {
    BEGIN("cuLibraryUnload", IN_CONTEXT);
    if (!living(library))
        return leave(INVALID_HANDLE);
    library->living = 0;
    return leave(OK);
}

Result cuLibraryGetKernel(Kernel **kernel, Library *library, const char *name) {
    BEGIN("cuLibraryGetKernel", IN_CONTEXT);
    if (!living(library))
        return leave(INVALID_HANDLE);
    *kernel = kernel_named(library, name, strlen(name));
    return leave(*kernel ? OK : NOT_FOUND);
}

Result cuKernelGetLibrary(Library **library, Kernel *kernel) {
    BEGIN("cuKernelGetLibrary", IN_CONTEXT);
    if (!known(kernel))
        return leave(INVALID_HANDLE);
    *library = kernel->library;
    return leave(OK);
}

/* Attributes: 0 threads of a block, 1 static shared memory, 4 registers, 8 dynamic shared memory allowed. */
Result cuKernelGetAttribute(int *value, int which, Kernel *kernel, int device) {
    BEGIN("cuKernelGetAttribute", IN_CONTEXT);
    (void)device;
    if (!known(kernel))
        return leave(INVALID_HANDLE);
    *value = which == 0 ? 1024 : which == 1 ? kernel->fixed : which == 4 ? 64 : which == 8 ? kernel->allowed : 0;
    return leave(OK);
}

Result cuKernelSetAttribute(int which, int value, Kernel *kernel, int device) {
    BEGIN("cuKernelSetAttribute", IN_CONTEXT);
    (void)device;
    if (!known(kernel))
        return leave(INVALID_HANDLE);
    note("%s %d = %d", kernel->name, which, value);
    if (which != 8 || value < 0 || value + kernel->fixed > shared_optin())
        return leave(INVALID_VALUE);
    kernel->allowed = value;
    return leave(OK);
}

static Result launch(Kernel *kernel, const unsigned grid[3], const unsigned block[3], unsigned shared, void *handle,
                     void **arguments) {
    Stream *stream;
    Result code = stream_of(handle, &stream);
    if (!code && !known(kernel))
        code = INVALID_HANDLE;
    if (code)
        return code;
    note("%s grid %u %u %u block %u %u %u shared %u", kernel->name, grid[0], grid[1], grid[2], block[0], block[1],
         block[2], shared);
    if ((code = usable(stream)))
        return code;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (!grid[0] || grid[0] > 0x7fffffff || !grid[1] || grid[1] > 65535 || !grid[2] || grid[2] > 65535)
        return INVALID_VALUE;
    if (!threads || block[0] > 1024 || block[1] > 1024 || block[2] > 64 || threads > 1024)
        return INVALID_VALUE;
    if (!arguments || shared > (unsigned)kernel->allowed)
        return INVALID_VALUE;
    return add_node(stream, (Node){-1, 0, 0, 0});
}

Result cuLaunchKernel(Kernel *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments,
                      void **extra) {
    BEGIN("cuLaunchKernel", IN_CONTEXT);
    (void)extra;
    unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
    return leave(launch(kernel, grid, block, shared, stream, arguments));
}

typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    const void *attributes;
    unsigned count;
} Configuration;

Result cuLaunchKernelEx(const Configuration *how, Kernel *kernel, void **arguments, void **extra) {
    BEGIN("cuLaunchKernel", IN_CONTEXT);
    (void)extra;
    return leave(launch(kernel, how->grid, how->block, how->shared, how->stream, arguments));
}

/* The driver's own linker, which cuda.core asks where there is no nvJitLink: its result is the PTX it was given. */

typedef struct {
    char *text;
} Linker;

Result cuLinkCreate_v2(unsigned count, void *options, void *values, Linker **linker) {
    BEGIN("cuLinkCreate", IN_CONTEXT);
    (void)count, (void)options, (void)values;
    *linker = calloc(1, sizeof **linker);
    return leave(OK);
}

Result cuLinkAddData_v2(Linker *linker, int kind, const void *data, size_t size, const char *name, unsigned count,
                        void *options, void *values) {
    BEGIN("cuLinkAddData", IN_CONTEXT);
    (void)name, (void)count, (void)options, (void)values;
    if (kind != 1 || linker->text) /* one text of PTX */
        return leave(INVALID_VALUE);
    linker->text = calloc(size + 1, 1);
    memcpy(linker->text, data, size);
    return leave(OK);
}

Result cuLinkComplete(Linker *linker, void **image, size_t *size) {
    BEGIN("cuLinkComplete", IN_CONTEXT);
    if (!linker->text)
        return leave(INVALID_VALUE);
    *image = linker->text;
    *size = strlen(linker->text) + 1;
    return leave(OK);
}

Result cuLinkDestroy(Linker *linker) {
    BEGIN("cuLinkDestroy", IN_CONTEXT);
    free(linker->text);
    free(linker);
    return leave(OK);
}
