/* Where tensors live. Everything above this room handles device memory only through these calls; a pointer in a plan, a weight arena or a state is
 * the device's, and is dereferenced by kernels of that device alone. On the CPU device it is host memory. */
#ifndef LNT_DEVICE_H
#define LNT_DEVICE_H

#include "core/dtype.h"
#include "core/status.h"

typedef enum { LNT_DEVICE_CPU = 0, LNT_DEVICE_CUDA = 1 } lnt_device_kind;

typedef struct lnt_device {
    lnt_device_kind kind;
    const char *name;
    int number;                  /* of those of a kind */
    void *(*alloc)(struct lnt_device *d, size_t bytes); /* aligned to at least 64; NULL on failure */
    void (*free)(struct lnt_device *d, void *p);
    void (*to_device)(struct lnt_device *d, void *dst, const void *host, size_t bytes);
    void (*to_host)(struct lnt_device *d, void *host, const void *src, size_t bytes);
    void (*copy)(struct lnt_device *d, void *dst, const void *src, size_t bytes);
    void (*zero)(struct lnt_device *d, void *dst, size_t bytes);
    void (*wait)(struct lnt_device *d);
    /* Host memory that kernels may write too; the host reads it when await_flag returns: what was put before that flag (0 or 1) was set is done. */
    void *(*alloc_shared)(struct lnt_device *d, size_t bytes); /* NULL on failure */
    void (*free_shared)(struct lnt_device *d, void *p);
    void (*set_flag)(struct lnt_device *d, int which);
    void (*await_flag)(struct lnt_device *d, int which);
    /* Seconds on the device's own clock: mark 0, work, mark 1, then elapsed, which waits for mark 1. */
    void (*mark)(struct lnt_device *d, int which);
    double (*elapsed)(struct lnt_device *d);
    void (*destroy)(struct lnt_device *d);
    /* What follows is cuda's; NULL and 0 on the cpu.
     * Work is put on one stream, in order; the calls above do not wait for it, but to_host, which returns when the bytes have arrived (what was put
     * before it is done then), and to_device, which returns when the host memory may be changed. */
    int capability;              /* of which code runs, times ten: 80 to 89, or 90 */
    int multiprocessors;
    size_t block_shared;         /* the most shared memory of a block: 99 KB, 163 KB or more */
    size_t peak;                 /* the most memory that was in use after an allocation, the driver's and others' included */
    void *stream;                /* cudaStream_t */
    /* A copy of few bytes whose values are taken at the call, so that it may be recorded in a graph. */
    void (*put)(struct lnt_device *d, void *dst, const void *host, size_t bytes);
    /* Between begin and end, work on the stream is recorded into a graph instead of done. end returns NULL when it could not be recorded. */
    void (*graph_begin)(struct lnt_device *d);
    void *(*graph_end)(struct lnt_device *d);
    void (*graph_launch)(struct lnt_device *d, void *graph);
    void (*graph_free)(struct lnt_device *d, void *graph);
    size_t graph_nodes;          /* kernels, copies and fills of the last graph recorded */
    /* NULL, or what went wrong since the last call; static text of the driver. */
    const char *(*problem)(struct lnt_device *d);
} lnt_device;

/* Open a device by name ("cpu", "cuda", "cuda:N"); `stream`: the caller's, or NULL. */
linnet_status lnt_device_open(lnt_ctx *c, const char *name, void *stream, lnt_device **out);
lnt_device *lnt_device_of(const lnt_ctx *c);
lnt_device *lnt_device_cpu(void);
bool lnt_on_cuda(const lnt_ctx *c);
/* What lies on the device of one context can be read on that of the other. */
bool lnt_device_same(const lnt_ctx *a, const lnt_ctx *b);
/* An error when work put on the device failed. Cheap; failures of running work show after a wait. */
linnet_status lnt_device_check(lnt_ctx *c);

/* Shorthands on the context's device; lnt_device_alloc records LINNET_ENOMEM. */
linnet_status lnt_device_alloc(lnt_ctx *c, size_t bytes, void **out);
void lnt_device_free(lnt_ctx *c, void *p);
void lnt_to_device(lnt_ctx *c, void *dst, const void *host, size_t bytes);
void lnt_to_host(lnt_ctx *c, void *host, const void *src, size_t bytes);
void lnt_device_copy(lnt_ctx *c, void *dst, const void *src, size_t bytes);
void lnt_device_zero(lnt_ctx *c, void *dst, size_t bytes);
void lnt_device_wait(lnt_ctx *c);
void lnt_device_put(lnt_ctx *c, void *dst, const void *host, size_t bytes);
/* n numbers, float32 on the host, float32 or bf16 (t) on the device; rounded to the nearest. LINNET_ENOMEM. */
linnet_status lnt_floats_to_device(lnt_ctx *c, void *dst, lnt_dtype t, const float *host, int64_t n);
linnet_status lnt_floats_to_host(lnt_ctx *c, float *host, const void *src, lnt_dtype t, int64_t n);

#endif
