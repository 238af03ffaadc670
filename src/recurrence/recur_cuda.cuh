/* What the cores' CUDA files end with: the records of a form over chunks, or rows, of tokens and of one token by token. */
#ifndef LNT_RECUR_CUDA_CUH
#define LNT_RECUR_CUDA_CUH

/* const lnt_recur_impl NAME_<WAY>_cuda "WAY-cuda" and NAME_recurrent_cuda, which serves forward alone. */
#define LNT_CUDA_FORMS(NAME, WAY, DECLINES, WORKSPACE, FORWARD, BACKWARD, STEP_WORKSPACE, STEP)                                    \
    extern "C" {                                                                                                                   \
    extern const lnt_recur_impl NAME##_##WAY##_cuda, NAME##_recurrent_cuda;                                                        \
    const lnt_recur_impl NAME##_##WAY##_cuda = {                                                                                   \
        .name = #WAY "-cuda", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 80, .declines = DECLINES,             \
        .workspace = WORKSPACE, .forward = NULL, .backward = NULL, .put_forward = FORWARD, .put_backward = BACKWARD,               \
    };                                                                                                                             \
    const lnt_recur_impl NAME##_recurrent_cuda = {                                                                                 \
        .name = "recurrent-cuda", .form = LINNET_FORM_RECURRENT, .device = LNT_DEVICE_CUDA, .needs = 80, .declines = DECLINES,     \
        .workspace = STEP_WORKSPACE, .forward = NULL, .backward = NULL, .put_forward = STEP, .put_backward = NULL,                 \
    };                                                                                                                             \
    }

#endif
