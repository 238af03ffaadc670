/* linnet's states: what a model remembers of a text, as an object that is fed, forked, taken back, saved and looked into.
 *
 * A session belongs to a model: it has the plans that run it and a number of slots. A state lives in a slot and holds what one text has left in
 * every layer: matrices and last inputs of recurrent layers, whose size does not depend on the text's length, and key-value caches of attention.
 * linnet_session_run feeds any number of states at once, each with as many ids as there are for it.
 *
 * Exactness. The ids of a call go into a state in pieces that end where its number of tokens is a multiple of the session's chunk, and where the
 * call ends (one by one if it says so). The bits of a state and of the logits it gives depend on the model, the ids and these pieces, and on nothing
 * else: not on the other states of a call, their number or their slots, not on the number of threads. So the same ids in the same calls give the same
 * bits, and so do calls that are cut at multiples of the chunk. Other cuts give the same up to rounding. This holds for one build on one kind of
 * processor or GPU. A state goes from one device to another as a file, and is there what it was, to the bit; what it is fed there rounds as that
 * device does.
 *
 * Memory. A session allocates when it meets a shape for the first time (the first piece, the first step, the first logits, more states at once than
 * before), and never after that. A session, its states and its model belong to the context that the model was made with, and to one thread at a
 * time, as that does. A model is neither trained nor destroyed while it has sessions. Several threads run one model's weights side by side, each with
 * a context, a model of linnet_model_share and sessions of its own; states go from one to another as files.
 *
 * Errors stay on the context of the model, as everywhere. What is refused before a run has changed no state. A run that fails half way (there is no
 * memory, say) leaves the states of the call lost: they can be destroyed, and be the target of linnet_state_copy; all else refuses them.
 *
 * Since 0.1. */
#ifndef LINNET_STATE_H
#define LINNET_STATE_H

#include "linnet/linnet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- sessions -------------------------------------------------------------------------------------------------------------- */

typedef struct linnet_session linnet_session;
typedef struct linnet_state linnet_state;

typedef struct {
    size_t size;
    int64_t slots;      /* states that there can be at once */
    int64_t capacity;   /* tokens of a state in models with key-value caches or windows that are longer; others have no limit. 0: as many as the
                           configuration's max_position_embeddings */
    int64_t rollback;   /* tokens that a state can be taken back by; 0: none. Takes the memory of rollback / chunk + 2 more states for each */
    int64_t chunk;      /* tokens of a piece */
} linnet_session_options;
#define LINNET_SESSION_OPTIONS_INIT { sizeof(linnet_session_options), 1, 0, 0, 256 }

/* `options` may be NULL. The model outlives the session. */
LINNET_API linnet_status linnet_session_create(linnet_context *c, linnet_model *m, const linnet_session_options *options, linnet_session **out);
/* With all of its states. */
LINNET_API void linnet_session_destroy(linnet_session *s);

typedef struct {
    size_t size;
    int64_t slots, used;     /* of them, those that hold states */
    int64_t capacity;        /* the most tokens of a state; 0: there is no limit */
    int64_t rollback, chunk;
    int64_t vocabulary, width, layers;
    int64_t state_bytes;     /* of a slot */
    int64_t rollback_bytes;  /* that a state takes besides, to be taken back */
} linnet_session_info;
LINNET_API linnet_status linnet_session_get_info(const linnet_session *s, linnet_session_info *out);

/* Which logits a call wants. */
enum {
    LINNET_LOGITS_NONE = 0,
    LINNET_LOGITS_LAST = 1, /* of the last id: what comes behind the text so far */
    LINNET_LOGITS_ALL = 2,  /* of every id */
};

/* What of a call lies on the device, where it is read and written in the order of the context's stream. A run of calls whose logits stay there, and
 * that want no `hidden`, returns on a GPU before it is done; so texts can be written without the host between two tokens: run a step, put what
 * chooses tokens from its logits on the stream (a kernel of the caller's), run the next step with the ids that this leaves on the device, and look at
 * the first one's ids while the second runs. States are copied, forked and destroyed in the stream's order too: a text that turns out to have ended
 * is let go, with the token too many that its state has read. */
enum {
    LINNET_ON_DEVICE_LOGITS = 1, /* `logits` arrive there */
    LINNET_ON_DEVICE_IDS = 2,    /* `ids` is one id there. On a GPU the caller answers for its being in the vocabulary. Not in sessions with a
                                    rollback, which remember ids */
};

typedef struct {
    size_t size;
    linnet_state *state;
    const int32_t *ids;     /* [n_ids], each in [0, vocabulary) */
    int64_t n_ids;
    int32_t wants;          /* LINNET_LOGITS_... */
    int32_t layer;          /* whose result `hidden` gets: 0 .. layers-1, or layers: behind the final norm */
    float *logits;          /* [vocabulary] of LINNET_LOGITS_LAST, [n_ids, vocabulary] of LINNET_LOGITS_ALL */
    float *hidden;          /* [n_ids, width]; NULL: not wanted */
    int32_t steps;          /* 1: the ids count as calls of one id each, and leave the bits of those; on a CPU some are done at once all the same, so
                               that this is faster than those calls: to look at guesses of what a text goes on with */
    int32_t on_device;      /* what is memory of the context's device: LINNET_ON_DEVICE_..., added */
} linnet_session_call;
#define LINNET_SESSION_CALL_INIT { sizeof(linnet_session_call), NULL, NULL, 0, LINNET_LOGITS_NONE, 0, NULL, NULL, 0, 0 }

/* Feed n states, each at most once. Calls of one id (or whose last piece is one) are done together. A call without ids does nothing, and has no last
 * logits to want. The structures are all of the size that the first one says. */
LINNET_API linnet_status linnet_session_run(linnet_session *s, const linnet_session_call *calls, int64_t n);

/* ---- states ------------------------------------------------------------------------------------------------------------------ */

/* A state of no tokens in a free slot. LINNET_EINVAL when there is none. */
LINNET_API linnet_status linnet_state_create(linnet_session *s, linnet_state **out);
/* A second state that is as `state` is, and as it was (it can be taken back as far). */
LINNET_API linnet_status linnet_state_fork(const linnet_state *state, linnet_state **out);
/* The same onto another state of the session. */
LINNET_API linnet_status linnet_state_copy(const linnet_state *from, linnet_state *to);
/* Frees the slot. */
LINNET_API void linnet_state_destroy(linnet_state *state);

typedef struct {
    size_t size;
    int64_t tokens;    /* fed so far */
    int64_t rollback;  /* by so many it can be taken back now: the session's, or what there was since the state began or was loaded */
    int64_t bytes;     /* of its tensors as they are now: a key-value cache counts the tokens it has seen */
    int64_t slot;
} linnet_state_info;
LINNET_API linnet_status linnet_state_get_info(const linnet_state *state, linnet_state_info *out);

/* Take back the last `tokens` tokens: exactly, to the bits of a state that was fed the same up to there (the piece that the new end falls into ends
 * there). The state goes back to a copy that was kept at a multiple of the chunk, and the ids since are fed again: up to a chunk of work. */
LINNET_API linnet_status linnet_state_rollback(linnet_state *state, int64_t tokens);

/* Write a state to a file, which is replaced atomically: a safetensors file of its tensors with a fingerprint of the model. */
LINNET_API linnet_status linnet_state_save(const linnet_state *state, const char *path);
/* Read one into a free slot. Refused: the state of another model (other weights, another configuration or dtype), one of more tokens than the session
 * has room for, and whatever is no such file. */
LINNET_API linnet_status linnet_state_load(linnet_session *s, const char *path, linnet_state **out);

/* ---- a state's tensors ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t size;
    const char *name;  /* "model.layers.0.attn.delta_rule.s"; belongs to the session */
    int64_t layer;     /* -1: of none */
    int32_t dtype;     /* linnet_dtype */
    int32_t n_dims;
    int64_t dims[4];   /* those of a cache depend on the tokens */
    int64_t bytes;
} linnet_state_tensor;

/* How many there are; the same for all states of a model. 0 without a state. */
LINNET_API int64_t linnet_state_tensor_count(const linnet_state *state);
/* The i-th, in the order of the layers. */
LINNET_API linnet_status linnet_state_tensor_at(const linnet_state *state, int64_t i, linnet_state_tensor *out);
/* Its elements, row major, into memory of the caller's: exactly `bytes` bytes. */
LINNET_API linnet_status linnet_state_tensor_read(const linnet_state *state, int64_t i, void *data, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
