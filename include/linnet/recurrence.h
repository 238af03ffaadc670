/* linnet's raw operators: one call, forward or backward, on the caller's buffers.
 *
 * A call gives sizes by letter, tensors and options by name. linnet_operator_describe says what an operator has, docs/op-files.md has all of them
 * in a table, and a wrong name is answered with the list of right ones. Letters: T tokens, N sequences, H heads (of queries Hq, keys Hk, values
 * Hv), K key size, V value size; an operator may have others. T and N are the call's own fields.
 *
 * Every sequence lies in one token axis: sequence n is the rows cu_seqlens[n] .. cu_seqlens[n+1]-1 (a [B,T,...] tensor is N = B sequences of T rows
 * each, memory unchanged). All tensors are row major and dense: those that are "wide" of the call's dtype, the others float32 (float64 when dtype is
 * LINNET_F64, which runs the reference). On a "cuda" context all tensors and the workspace are device memory, calls return before the work is done,
 * and the work is on the context's stream; a tensor begins there at a multiple of 16 bytes if its sizes of elements, K and V, are whole 16 bytes
 * each.
 *
 * The backward call takes the forward's inputs again, the outputs that are marked as read back, and cotangents; it writes gradients. The gradient of
 * "k" is "dk", the cotangent of "o" is "do". Outputs and gradients that are not given are not wanted (but for the operator's first output); states
 * and cotangents that are not given are zeros. Outputs may not overlap inputs, except a final state and its initial state.
 *
 * Equations with the papers' numbers are in docs/operators.md. Since 0.1. */
#ifndef LINNET_RECURRENCE_H
#define LINNET_RECURRENCE_H

#include "linnet/linnet.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    LINNET_FORM_AUTO = 0,  /* chunk for long sequences, recurrent for short ones */
    LINNET_FORM_RECURRENT, /* token by token */
    LINNET_FORM_CHUNK,
    LINNET_FORM_PARALLEL, /* one chunk as long as the sequence */
} linnet_form;

typedef struct {
    const char *letter;
    int64_t value;
} linnet_operator_size;

typedef struct {
    const char *name;
    void *data;         /* NULL: as if it were not given; inputs are not written */
} linnet_operator_tensor;

typedef struct {
    const char *key;
    double value;       /* a switch is 0 or 1, a word its place in the list of words */
    const char *text;   /* a word by name; NULL: value counts */
} linnet_operator_option;

typedef struct {
    size_t size;
    const char *op;
    const char *impl;   /* force an implementation by name; NULL: the first of the operator's list that accepts */
    int32_t dtype;      /* linnet_dtype of wide tensors: LINNET_F32, LINNET_BF16, or LINNET_F64 (runs the reference) */
    int32_t form;       /* linnet_form */
    int32_t chunk;      /* chunk length, up to 2^20; 0: the implementation's own */
    int32_t n_sizes, n_tensors, n_options;
    int64_t tokens;     /* T, rows of the token axis, = cu_seqlens[sequences] */
    int64_t sequences;  /* N */
    const int64_t *cu_seqlens;        /* host, [N+1], from 0, non-decreasing */
    const int64_t *cu_seqlens_device; /* cuda: the same offsets on the device; NULL: brought there by the call */
    const linnet_operator_size *sizes;
    const linnet_operator_tensor *tensors;
    const linnet_operator_option *options;
    void *workspace;    /* at least linnet_operator_workspace bytes, aligned to 64 */
    size_t workspace_size;
} linnet_operator_call;
#define LINNET_OPERATOR_CALL_INIT                                                                                                  \
    { sizeof(linnet_operator_call), NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0 }

/* The i-th operator's name; NULL past the end. */
LINNET_API const char *linnet_operator_at(int i);

/* What an operator has, as a JSON object: sizes, tensors (name, shape, role, whether wide, optional; of results the relative rms errors that tests
 * allow), options (kind, range, standard, help), implementations. Like snprintf: at most `size` bytes are written, and the length that the whole text
 * has is returned; 0: there is no such operator. */
LINNET_API size_t linnet_operator_describe(const char *op, char *text, size_t size);

/* Bytes of workspace that a forward (backward = 0) or backward (1) call needs. Tensors need not be given. */
LINNET_API linnet_status linnet_operator_workspace(linnet_context *c, const linnet_operator_call *call, int backward, size_t *bytes);

/* Run. LINNET_EINVAL with the reason when a size, a tensor or an option is wrong; nothing is written then. */
LINNET_API linnet_status linnet_operator_forward(linnet_context *c, const linnet_operator_call *call);
LINNET_API linnet_status linnet_operator_backward(linnet_context *c, const linnet_operator_call *call);

/* Name of the implementation that the last run on this context took, for example "chunk-avx512". */
LINNET_API const char *linnet_operator_ran(const linnet_context *c);

#ifdef __cplusplus
}
#endif
#endif
