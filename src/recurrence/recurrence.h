/* The recurrence cores behind one call. A core is a folder: <core>.c (descriptor, choice of implementation), <core>_reference.c (float64, token by
 * token: the truth), <core>_cpu.c (chunk and step, compiled for every CPU variant), <core>_cases.c (shapes, ranges, tolerances).
 *
 * linnet_recurrence is the argument structure everywhere; recurrence.c validates it once (shapes, pointers, heads, cu_seqlens, gates free of NaN are
 * the caller's duty except in `linnet op`), resolves `scale` and `form`, and walks the core's list, fastest first, reference last. */
#ifndef LNT_RECURRENCE_H
#define LNT_RECURRENCE_H

#include "core/cpu.h"
#include "core/dtype.h"
#include "core/status.h"
#include "device/device.h"
#include "linnet/recurrence.h"

typedef linnet_recurrence lnt_recur_args;

/* One way to compute a core. Kernels own nothing: all scratch is args->workspace. On the CPU they run `threads` OpenMP threads, and cut the work into
 * pieces that do not depend on `threads`: same bits for any count. On a GPU they put kernels on `stream`; tensors, workspace and cu_seqlens_device
 * (never NULL there) are device memory, cu_seqlens is the host's. */
typedef struct lnt_recur_impl {
    const char *name;      /* "chunk-avx512" */
    linnet_form form;      /* what it is: LINNET_FORM_CHUNK or LINNET_FORM_RECURRENT; the reference serves both */
    lnt_device_kind device;
    int needs;             /* cpu: an lnt_cpu_level; cuda: a compute capability times ten */
    /* NULL when it accepts these arguments; otherwise the reason, static text. Looks at the shape, the dtype and the options, never at the tensors'
     * pointers, so that the workspace query and the run choose alike. declines == NULL: accepts everything (but F64, which is the reference's). */
    const char *(*declines)(const lnt_recur_args *a, bool backward);
    size_t (*workspace)(const lnt_recur_args *a, bool backward, int threads);
    void (*forward)(const lnt_recur_args *a, int threads);
    void (*backward)(const lnt_recur_args *a, int threads); /* NULL: forward only */
    /* cuda, in place of the two above */
    void (*put_forward)(const lnt_recur_args *a, const lnt_device *d);
    void (*put_backward)(const lnt_recur_args *a, const lnt_device *d);
} lnt_recur_impl;

typedef enum { LNT_GATE_NONE, LNT_GATE_HEAD, LNT_GATE_SCALAR } lnt_gate_kind;

/* A named operator: which core runs it and what it takes. recurrence.c holds the table. */
typedef struct lnt_recur_op {
    const char *name;
    const char *core;              /* folder */
    lnt_gate_kind gate;
    bool beta, normalize, state, cache;
    bool solve;                    /* mesa: two states and a linear system a token */
    const lnt_recur_impl *const *impls; /* NULL-terminated, fastest first, reference last */
    /* Useful FLOPs of one token and value head at chunk length C (operators.md 13 counts C = 16 on CPUs), forward and backward. */
    double (*flops)(const lnt_recur_args *a, int C, bool backward);
} lnt_recur_op;

const lnt_recur_op *lnt_recur_find(const char *name); /* NULL: unknown */
const lnt_recur_op *lnt_recur_at(int i);              /* NULL past the end */

/* linnet_recurrence_workspace where there is no context; 0 of a call that would be refused. */
size_t lnt_recur_workspace(const lnt_recur_args *r, bool backward, int threads, lnt_device *device);
/* The longest sequence. */
int64_t lnt_recur_longest(const lnt_recur_args *a);
/* A forced or resolved parallel form reaches an implementation as LINNET_FORM_CHUNK with args->chunk = the longest sequence; args->form is never AUTO
 * or PARALLEL there, args->scale and args->eps are numbers. */

/* The references, float64 inside: the truth, and what runs when nothing else accepts. */
extern const lnt_recur_impl lnt_decay_reference, lnt_delta_reference, lnt_attention_reference, lnt_mesa_reference;

/* Provided by each core: its list. */
extern const lnt_recur_impl *const lnt_decay_impls[];
extern const lnt_recur_impl *const lnt_delta_impls[];
extern const lnt_recur_impl *const lnt_attention_impls[];
extern const lnt_recur_impl *const lnt_mesa_impls[];
double lnt_decay_flops(const lnt_recur_args *a, int C, bool backward);
double lnt_delta_flops(const lnt_recur_args *a, int C, bool backward);
double lnt_attention_flops(const lnt_recur_args *a, int C, bool backward);
double lnt_mesa_flops(const lnt_recur_args *a, int C, bool backward);

#endif
