/* A stand-in for the NVIDIA driver's library: the calls the CUDA backend makes, checked, with nothing computed.

   Memory is this process's, a launch is looked at and forgotten, a captured graph repeats its copies. What it plays and
   what fails is in the environment:

       STUB_CUDA_DEVICES      number of devices (1)
       STUB_CUDA_NAME         their name
       STUB_CUDA_CAPABILITY   compute capability, "9.0"
       STUB_CUDA_MEMORY       bytes of memory of a device (16 GiB)
       STUB_CUDA_FREE         bytes of it that others left free (all)
       STUB_CUDA_INTEGRATED   1: the device's memory is the machine's (0)
       STUB_CUDA_SMS          multiprocessors (8)
       STUB_CUDA_DRIVER       CUDA version of the driver, 1000 major + 10 minor (13050)
       STUB_CUDA_LOG          file to which every call is appended: name, result, details
       STUB_CUDA_FAIL         NAME:N:CODE: the N-th call of NAME returns CODE; with errors that end a context (700, 719)
                              all later calls do; several, separated by commas

   Left out: everything the backend and numba-cuda do not call. Constants are those of the driver's interface. */

#ifndef STUB_H
#define STUB_H

#include <stddef.h>
#include <stdint.h>

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    HOST_MEMORY_REGISTERED = 712,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
};

typedef int Result;
typedef uint64_t Address;
typedef struct Stream Stream;

/* calls.c: every function of the interface begins with `Result failed = enter(name, needs); if (failed) return
   leave(failed);` and ends with `return leave(code)`: calls are counted, logged and made to fail there. One lock is held
   in between. */
enum { ANYTIME, AFTER_INIT, IN_CONTEXT };
Result enter(const char *name, int needs);
Result leave(Result code);
void note(const char *format, ...); /* details for the log of this call */
#define BEGIN(name, needs)                                                                                             \
    Result failed_ = enter(name, needs);                                                                               \
    if (failed_)                                                                                                       \
    return leave(failed_)

long long setting(const char *name, long long otherwise);
int capability(void); /* 10 major + minor */

/* devices.c */
Result current_device(int *device);
void *current_context(void);
int shared_optin(void); /* bytes of shared memory that a block can have at most */

/* memory.c */
enum { DEVICE_MEMORY = 1, PINNED_MEMORY = 2 };
int inside(Address start, size_t size, int kinds); /* whether the bytes lie in one allocation of such a kind */
enum { TO_DEVICE, TO_HOST, ON_DEVICE };
Result copy_now(int way, Address to, Address from, size_t size);

/* capture.c */
typedef struct {
    int way; /* of a copy; -1: a launch */
    Address to, from;
    size_t size;
} Node;
Result stream_of(void *handle, Stream **stream); /* checks that the stream is known */
Result usable(Stream *stream); /* whether work may be added to it now */
int capturing(Stream *stream);
int capturing_strictly(void); /* whether a capture is under way that forbids what might wait for the device */
Result spoil(Stream *stream, Result code); /* invalidate the stream's capture; returns code */
Result spoil_all(Result code);
Result add_node(Stream *stream, Node node);

#endif
