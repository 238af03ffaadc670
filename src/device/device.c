#include "device/device.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/context.h"
#include "core/memory.h"
#include "simd/convert.h"

/* ---- the CPU: device memory is host memory ---- */

static void *cpu_alloc(lnt_device *d, size_t bytes)
{
    (void)d;
    /* Through lnt_alloc, so that tests can make it fail; 64 bytes of alignment is what CPU kernels ask for. */
    return lnt_alloc(bytes);
}
static void cpu_free(lnt_device *d, void *p) { (void)d, lnt_free(p); }
static void cpu_move_in(lnt_device *d, void *dst, const void *src, size_t n) { (void)d, memcpy(dst, src, n); }
static void cpu_zero(lnt_device *d, void *dst, size_t n) { (void)d, memset(dst, 0, n); }
static void cpu_nothing(lnt_device *d) { (void)d; }
static void cpu_no_flag(lnt_device *d, int which) { (void)d, (void)which; }
static _Thread_local double marks[2];
static void cpu_mark(lnt_device *d, int which) { (void)d, marks[which] = lnt_now(); }
static double cpu_elapsed(lnt_device *d) { return (void)d, marks[1] - marks[0]; }

static lnt_device cpu = {
    .kind = LNT_DEVICE_CPU,
    .name = "cpu",
    .alloc = cpu_alloc,
    .free = cpu_free,
    .to_device = cpu_move_in,
    .to_host = cpu_move_in,
    .copy = cpu_move_in,
    .zero = cpu_zero,
    .wait = cpu_nothing,
    .alloc_shared = cpu_alloc,
    .free_shared = cpu_free,
    .set_flag = cpu_no_flag,
    .await_flag = cpu_no_flag,
    .mark = cpu_mark,
    .elapsed = cpu_elapsed,
    .put = cpu_move_in,
    .destroy = cpu_nothing,
};

#ifdef LINNET_CUDA
linnet_status lnt_cuda_open(lnt_ctx *c, int index, void *stream, lnt_device **out);

static linnet_status open_cuda(lnt_ctx *c, const char *name, void *stream, lnt_device **out)
{
    long index = 0;
    char *end = NULL;
    if (name[4] == ':') index = strtol(name + 5, &end, 10);
    if (end && (*end || end == name + 5 || index < 0 || index > 1023))
        return lnt_fail(c, LINNET_EINVAL, "unknown device \"%s\", expected cuda or cuda:N", name);
    return lnt_cuda_open(c, (int)index, stream, out);
}
#else
static linnet_status open_cuda(lnt_ctx *c, const char *name, void *stream, lnt_device **out)
{
    (void)name, (void)stream, (void)out;
    lnt_fail(c, LINNET_EUNSUPPORTED, "this build of linnet has no CUDA device");
    return lnt_hint(c, "Use --device cpu, or build with -DLINNET_CUDA=ON where there is an NVIDIA GPU.");
}
#endif

lnt_device *lnt_device_cpu(void) { return &cpu; }

linnet_status lnt_device_open(lnt_ctx *c, const char *name, void *stream, lnt_device **out)
{
    if (!strcmp(name, "cpu")) {
        *out = &cpu;
        return LINNET_OK;
    }
    if (!strcmp(name, "cuda") || !strncmp(name, "cuda:", 5)) return open_cuda(c, name, stream, out);
    return lnt_fail(c, LINNET_EINVAL, "unknown device \"%s\", expected cpu or cuda", name);
}

lnt_device *lnt_device_of(const lnt_ctx *c) { return c->device; }
bool lnt_on_cuda(const lnt_ctx *c) { return c->device->kind == LNT_DEVICE_CUDA; }
bool lnt_device_same(const lnt_ctx *a, const lnt_ctx *b) { return a->device->kind == b->device->kind && a->device->number == b->device->number; }

linnet_status lnt_device_check(lnt_ctx *c)
{
    const char *problem = c->device->problem ? c->device->problem(c->device) : NULL;
    return problem ? lnt_fail(c, LINNET_EINTERNAL, "%s: %s", c->device->name, problem) : LINNET_OK;
}

linnet_status lnt_device_alloc(lnt_ctx *c, size_t bytes, void **out)
{
    *out = c->device->alloc(c->device, bytes);
    return *out ? LINNET_OK : lnt_fail_memory(c, bytes);
}
void lnt_device_free(lnt_ctx *c, void *p) { if (p) c->device->free(c->device, p); }
void lnt_to_device(lnt_ctx *c, void *dst, const void *host, size_t n) { if (n) c->device->to_device(c->device, dst, host, n); }
void lnt_to_host(lnt_ctx *c, void *host, const void *src, size_t n) { if (n) c->device->to_host(c->device, host, src, n); }
void lnt_device_copy(lnt_ctx *c, void *dst, const void *src, size_t n) { if (n) c->device->copy(c->device, dst, src, n); }
void lnt_device_zero(lnt_ctx *c, void *dst, size_t n) { if (n) c->device->zero(c->device, dst, n); }
void lnt_device_wait(lnt_ctx *c) { c->device->wait(c->device); }
void lnt_device_put(lnt_ctx *c, void *dst, const void *host, size_t n) { if (n) c->device->put(c->device, dst, host, n); }

enum { BLOCK = 1 << 20 }; /* numbers converted at a time */

linnet_status lnt_floats_to_device(lnt_ctx *c, void *dst, lnt_dtype t, const float *host, int64_t n)
{
    if (t == LINNET_F32) return lnt_to_device(c, dst, host, (size_t)n * sizeof *host), LINNET_OK;
    lnt_bf16 *part = lnt_alloc(BLOCK * sizeof *part);
    if (!part) return lnt_fail_memory(c, BLOCK * sizeof *part);
    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t m = n - at < BLOCK ? n - at : BLOCK;
        lnt_f32_to_bf16_many(c, part, host + at, m);
        lnt_to_device(c, (lnt_bf16 *)dst + at, part, (size_t)m * sizeof *part);
    }
    lnt_free(part);
    return LINNET_OK;
}

linnet_status lnt_floats_to_host(lnt_ctx *c, float *host, const void *src, lnt_dtype t, int64_t n)
{
    if (t == LINNET_F32) return lnt_to_host(c, host, src, (size_t)n * sizeof *host), LINNET_OK;
    lnt_bf16 *part = lnt_alloc(BLOCK * sizeof *part);
    if (!part) return lnt_fail_memory(c, BLOCK * sizeof *part);
    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t m = n - at < BLOCK ? n - at : BLOCK;
        lnt_to_host(c, part, (const lnt_bf16 *)src + at, (size_t)m * sizeof *part);
        for (int64_t i = 0; i < m; i++) host[at + i] = lnt_bf16_to_f32(part[i]);
    }
    lnt_free(part);
    return LINNET_OK;
}
