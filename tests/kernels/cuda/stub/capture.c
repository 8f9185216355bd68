/* Streams, events, capture and graphs.

   Every stream of a capture knows how many nodes of each stream come before its next one; an event keeps that, and who
   waits for it learns it. A capture may end where its first stream knows of every node of all of them. */

#include "stub.h"

#include <stdlib.h>
#include <string.h>

enum { STREAMS = 64, ACTIVE = 1, SPOILT = 2 };

typedef struct {
    Node *nodes;
    size_t count, room;
} Graph;

typedef struct {
    int state, mode, number;
    Stream *origin;
    Graph *graph;
} Capture;

struct Stream {
    int living, blocking;
    Capture *capture;
    int added;           /* nodes of this stream in the capture */
    int before[STREAMS]; /* nodes of each stream that come before the next one of this */
};

typedef struct {
    int living;
    Capture *capture; /* where it was recorded; NULL: outside of captures */
    int number;       /* of that capture */
    int before[STREAMS];
} Event;

static Stream streams[STREAMS]; /* the first one is the default stream */
static Capture captures[8];
static int begun;

Result stream_of(void *handle, Stream **stream) {
    *stream = handle ? handle : &streams[0];
    if (!handle)
        return OK;
    if (*stream <= streams || *stream >= streams + STREAMS || !(*stream)->living)
        return INVALID_HANDLE;
    return OK;
}

static Capture *of(Stream *stream) {
    return stream->capture && stream->capture->state ? stream->capture : NULL;
}

int capturing(Stream *stream) {
    return of(stream) != NULL;
}

int capturing_strictly(void) {
    for (size_t i = 0; i < sizeof captures / sizeof *captures; i++)
        if (captures[i].state && captures[i].mode != 2)
            return 1;
    return 0;
}

Result spoil(Stream *stream, Result code) {
    if (of(stream))
        of(stream)->state = SPOILT;
    return code;
}

Result spoil_all(Result code) {
    for (size_t i = 0; i < sizeof captures / sizeof *captures; i++)
        if (captures[i].state)
            captures[i].state = SPOILT;
    return code;
}

/* Work in the default stream waits for all blocking streams, which one that is captured cannot be waited for. */
static Result alone(Stream *stream) {
    if (stream == &streams[0])
        for (int i = 1; i < STREAMS; i++)
            if (streams[i].living && streams[i].blocking && capturing(&streams[i]))
                return spoil(&streams[i], CAPTURE_IMPLICIT);
    return OK;
}

Result usable(Stream *stream) {
    Result code = alone(stream);
    if (!code && of(stream) && of(stream)->state == SPOILT)
        code = CAPTURE_INVALIDATED;
    return code;
}

Result add_node(Stream *stream, Node node) {
    Result code = usable(stream);
    if (code || !of(stream))
        return code;
    Graph *graph = of(stream)->graph;
    if (graph->count == graph->room) {
        graph->room = graph->room ? 2 * graph->room : 64;
        graph->nodes = realloc(graph->nodes, graph->room * sizeof *graph->nodes);
        if (!graph->nodes)
            abort();
    }
    graph->nodes[graph->count++] = node;
    stream->before[stream - streams] = ++stream->added;
    return OK;
}

Result cuStreamCreate(Stream **stream, unsigned flags) {
    BEGIN("cuStreamCreate", IN_CONTEXT);
    for (int i = 1; i < STREAMS; i++)
        if (!streams[i].living) {
            memset(&streams[i], 0, sizeof streams[i]);
            streams[i].living = 1;
            streams[i].blocking = !(flags & 1);
            *stream = &streams[i];
            return leave(OK);
        }
    return leave(OUT_OF_MEMORY);
}

Result cuStreamDestroy_v2(Stream *stream) {
    BEGIN("cuStreamDestroy", IN_CONTEXT);
    Result code = stream_of(stream, &stream);
    if (!code)
        stream->living = 0;
    return leave(code);
}

Result cuStreamSynchronize(void *handle) {
    BEGIN("cuStreamSynchronize", IN_CONTEXT);
    Stream *stream;
    Result code = stream_of(handle, &stream);
    if (!code && capturing(stream))
        code = spoil(stream, CAPTURE_UNSUPPORTED);
    return leave(code ? code : alone(stream));
}

Result cuCtxSynchronize(void) {
    BEGIN("cuCtxSynchronize", IN_CONTEXT);
    for (int i = 0; i < STREAMS; i++)
        if (capturing(&streams[i]))
            return leave(spoil(&streams[i], CAPTURE_UNSUPPORTED));
    return leave(OK);
}

Result cuStreamGetCtx(void *handle, void **context) {
    BEGIN("cuStreamGetCtx", IN_CONTEXT);
    Stream *stream;
    Result code = stream_of(handle, &stream);
    *context = current_context();
    return leave(code);
}

Result cuStreamBeginCapture_v2(void *handle, int mode) {
    BEGIN("cuStreamBeginCapture", IN_CONTEXT);
    Stream *stream;
    Result code = stream_of(handle, &stream);
    if (code)
        return leave(code);
    if (stream == &streams[0])
        return leave(CAPTURE_UNSUPPORTED);
    if (capturing(stream))
        return leave(spoil(stream, INVALID_VALUE));
    for (size_t i = 0; i < sizeof captures / sizeof *captures; i++)
        if (!captures[i].state) {
            captures[i] = (Capture){ACTIVE, mode, ++begun, stream, calloc(1, sizeof(Graph))};
            stream->capture = &captures[i];
            stream->added = 0;
            memset(stream->before, 0, sizeof stream->before);
            return leave(OK);
        }
    return leave(OUT_OF_MEMORY);
}

static void drop(Graph *graph) {
    free(graph->nodes);
    free(graph);
}

Result cuStreamEndCapture(void *handle, Graph **graph) {
    BEGIN("cuStreamEndCapture", IN_CONTEXT);
    Stream *stream;
    Result code = stream_of(handle, &stream);
    *graph = NULL;
    if (code)
        return leave(code);
    Capture *capture = of(stream);
    if (!capture)
        return leave(INVALID_VALUE);
    if (capture->origin != stream)
        return leave(spoil(stream, CAPTURE_UNMATCHED));
    int lanes = 0;
    if (capture->state == SPOILT)
        code = CAPTURE_INVALIDATED;
    for (int i = 1; i < STREAMS; i++) {
        if (streams[i].capture != capture)
            continue;
        lanes++;
        if (!code && stream->before[i] != streams[i].added)
            code = CAPTURE_UNJOINED;
        streams[i].capture = NULL;
    }
    capture->state = 0;
    note("%d streams, %zu nodes", lanes, capture->graph->count);
    if (code)
        drop(capture->graph);
    else
        *graph = capture->graph;
    return leave(code);
}

Result cuStreamIsCapturing(void *handle, int *status) {
    BEGIN("cuStreamIsCapturing", IN_CONTEXT);
    Stream *stream;
    Result code = stream_of(handle, &stream);
    if (!code)
        *status = of(stream) ? of(stream)->state : 0;
    return leave(code);
}

Result cuEventCreate(Event **event, unsigned flags) {
    BEGIN("cuEventCreate", IN_CONTEXT);
    (void)flags;
    *event = calloc(1, sizeof **event);
    (*event)->living = 1;
    return leave(OK);
}

/* Its memory stays, so that a use after this is noticed. */
Result cuEventDestroy_v2(Event *event) {
    BEGIN("cuEventDestroy", IN_CONTEXT);
    if (!event || !event->living)
        return leave(INVALID_HANDLE);
    event->living = 0;
    return leave(OK);
}

Result cuEventRecord(Event *event, void *handle) {
    BEGIN("cuEventRecord", IN_CONTEXT);
    Stream *stream;
    Result code = stream_of(handle, &stream);
    if (!code && (!event || !event->living))
        code = INVALID_HANDLE;
    if (!code)
        code = usable(stream);
    if (code)
        return leave(code);
    event->capture = of(stream);
    event->number = event->capture ? event->capture->number : 0;
    memcpy(event->before, stream->before, sizeof event->before);
    return leave(OK);
}

Result cuEventSynchronize(Event *event) {
    BEGIN("cuEventSynchronize", IN_CONTEXT);
    if (!event || !event->living)
        return leave(INVALID_HANDLE);
    return leave(event->capture ? CAPTURED_EVENT : OK);
}

Result cuEventQuery(Event *event) {
    BEGIN("cuEventQuery", IN_CONTEXT);
    if (!event || !event->living)
        return leave(INVALID_HANDLE);
    return leave(event->capture ? CAPTURED_EVENT : OK);
}

Result cuStreamWaitEvent(void *handle, Event *event, unsigned flags) {
    BEGIN("cuStreamWaitEvent", IN_CONTEXT);
    Stream *stream;
    Result code = stream_of(handle, &stream);
    (void)flags;
    if (!code && (!event || !event->living))
        code = INVALID_HANDLE;
    if (!code)
        code = usable(stream);
    if (code)
        return leave(code);
    Capture *capture = event->capture;
    if (capture && (!capture->state || capture->number != event->number))
        return leave(CAPTURED_EVENT);
    if (!capture)
        return leave(capturing(stream) ? spoil(stream, CAPTURE_ISOLATION) : OK);
    if (capturing(stream) && of(stream) != capture)
        return leave(spoil(stream, CAPTURE_MERGE));
    if (!capturing(stream)) {
        stream->capture = capture;
        stream->added = 0;
        memset(stream->before, 0, sizeof stream->before);
    }
    for (int i = 0; i < STREAMS; i++)
        if (stream->before[i] < event->before[i])
            stream->before[i] = event->before[i];
    return leave(OK);
}

Result cuGraphGetNodes(Graph *graph, void **nodes, size_t *count) {
    BEGIN("cuGraphGetNodes", IN_CONTEXT);
    if (!graph || nodes)
        return leave(INVALID_VALUE);
    *count = graph->count;
    return leave(OK);
}

Result cuGraphInstantiateWithFlags(Graph **ready, Graph *graph, unsigned long long flags) {
    BEGIN("cuGraphInstantiate", IN_CONTEXT);
    if (!graph || flags)
        return leave(INVALID_VALUE);
    Graph *made = calloc(1, sizeof *made);
    made->nodes = malloc((graph->count + 1) * sizeof *made->nodes);
    made->count = graph->count;
    if (graph->count)
        memcpy(made->nodes, graph->nodes, graph->count * sizeof *made->nodes);
    *ready = made;
    return leave(OK);
}

Result cuGraphDestroy(Graph *graph) {
    BEGIN("cuGraphDestroy", IN_CONTEXT);
    if (!graph)
        return leave(INVALID_VALUE);
    drop(graph);
    return leave(OK);
}

Result cuGraphExecDestroy(Graph *ready) {
    BEGIN("cuGraphExecDestroy", IN_CONTEXT);
    if (!ready)
        return leave(INVALID_VALUE);
    drop(ready);
    return leave(OK);
}

Result cuGraphLaunch(Graph *ready, void *handle) {
    BEGIN("cuGraphLaunch", IN_CONTEXT);
    Stream *stream;
    Result code = stream_of(handle, &stream);
    if (!code && !ready)
        code = INVALID_VALUE;
    if (!code)
        code = usable(stream);
    for (size_t i = 0; !code && i < ready->count; i++) {
        Node *node = &ready->nodes[i];
        if (node->way >= 0)
            code = copy_now(node->way, node->to, node->from, node->size);
    }
    return leave(code);
}
