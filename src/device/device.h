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
    void *(*alloc)(struct lnt_device *d, size_t bytes); /* aligned to at least 64; NULL on failure */
    void (*free)(struct lnt_device *d, void *p);
    void (*to_device)(struct lnt_device *d, void *dst, const void *host, size_t bytes);
    void (*to_host)(struct lnt_device *d, void *host, const void *src, size_t bytes);
    void (*copy)(struct lnt_device *d, void *dst, const void *src, size_t bytes);
    void (*zero)(struct lnt_device *d, void *dst, size_t bytes);
    void (*wait)(struct lnt_device *d);
    void (*destroy)(struct lnt_device *d);
} lnt_device;

/* Open a device by name ("cpu", "cuda"). */
linnet_status lnt_device_open(lnt_ctx *c, const char *name, lnt_device **out);
lnt_device *lnt_device_of(lnt_ctx *c);

/* Shorthands on the context's device; lnt_device_alloc records LINNET_ENOMEM. */
linnet_status lnt_device_alloc(lnt_ctx *c, size_t bytes, void **out);
void lnt_device_free(lnt_ctx *c, void *p);
void lnt_to_device(lnt_ctx *c, void *dst, const void *host, size_t bytes);
void lnt_to_host(lnt_ctx *c, void *host, const void *src, size_t bytes);
void lnt_device_copy(lnt_ctx *c, void *dst, const void *src, size_t bytes);
void lnt_device_zero(lnt_ctx *c, void *dst, size_t bytes);
void lnt_device_wait(lnt_ctx *c);

#endif
