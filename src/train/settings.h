/* What a run is started with and a checkpoint remembers: one table of names, types and ranges, from which come the check of a caller's options, the
 * metadata of train_state.safetensors, and the comparison of what was asked for with what a run was started with. */
#ifndef LNT_TRAIN_SETTINGS_H
#define LNT_TRAIN_SETTINGS_H

#include "core/memory.h"

typedef struct {
    int64_t step, steps, tokens, samples; /* steps 0: not fixed yet; samples: sequences drawn so far */
    double seconds;                       /* of training, earlier sessions included */
    uint64_t fingerprint;                 /* of the training ids */
    uint64_t held_fingerprint;            /* of the text that evaluations read: the same where that is the end of the others; 0: not known */
    uint64_t init_fingerprint;            /* of the folder that the run began with, LNT_FRESH of one that began with none; 0: not known */
} lnt_run_position;

typedef struct {
    linnet_train_options o;
    linnet_dtype dtype;
    lnt_run_position at;
    int64_t lengthened; /* the run had ended with so many steps, and is to go on; 0: not so */
} lnt_run_settings;

enum { LNT_FRESH = 1 }; /* an init_fingerprint */
enum { LNT_SETTINGS = 38 }; /* more than there are */

/* Whether o.given has the name. */
bool lnt_settings_given(const linnet_train_options *o, const char *name);
/* LINNET_EINVAL, naming the option, its value and its range. */
linnet_status lnt_settings_check(lnt_ctx *c, const lnt_run_settings *r);
/* Key and value by turns, for the metadata of a file; returns how many pairs, 0: out of memory. */
int lnt_settings_list(const lnt_run_settings *r, lnt_arena *scratch, const char *pairs[2 * LNT_SETTINGS]);
/* Replace r's settings by those that `get(from, key)` has (NULL: not there); LINNET_EFORMAT where one is missing, no number, out of range, or at odds
 * with the others. What o.given names must have been the same, but that a run at its end may be given more steps. */
linnet_status lnt_settings_read(lnt_ctx *c, const char *path, const char *(*get)(const void *from, const char *key), const void *from,
                                lnt_run_settings *r);

#endif
