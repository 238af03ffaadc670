/* Weights in files: parameters by name, from any float dtype to the float32 master and back. */
#ifndef LNT_HUB_CHECKPOINT_H
#define LNT_HUB_CHECKPOINT_H

#include "hub/archs.h"
#include "hub/safetensors.h"
#include "model/model.h"

/* How files call tensors: prefix + the name as the architecture has it for this configuration, which may lay several of ours in one; a NULL: as we
 * have it. strict: a file with any other is refused. */
typedef struct {
    const lnt_arch *a;
    const lnt_config *k;
    const char *prefix;
    bool strict;
} lnt_naming;

/* Whether the file has a tensor of the right shape for every parameter. */
/* Where the file's tensors hold the rows of the parameters' cut another way (lnt_arch.one_of), they become the parameters'. Before what follows. */
linnet_status lnt_checkpoint_recut(lnt_ctx *c, lnt_safetensors *s, const lnt_naming *n, const lnt_program *p);
linnet_status lnt_checkpoint_check(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p);
/* Fill every parameter, after that check. */
linnet_status lnt_checkpoint_read(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, lnt_weights *w);
/* The same into an arena of the device, [lnt_param_elements(p)]. */
linnet_status lnt_checkpoint_read_arena(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p, void *arena,
                                        lnt_dtype t);

/* Parameter q alone, values[q->count] on the host; of a file that lnt_checkpoint_check has seen. */
linnet_status lnt_checkpoint_read_param(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p, const lnt_param *q,
                                        float *values);

/* Call f for every tensor that parameter q is made of, t NULL where the file has none; of a tensor with rows of several parameters, at each of them.
 * x NULL: the tensor is q, in the form that lnt_arch_tensor_form says. */
typedef linnet_status lnt_checkpoint_visit(lnt_ctx *c, const lnt_safetensors *s, const char *name, const lnt_st_tensor *t, const lnt_param *q,
                                           const lnt_arch_place *x, int64_t piece, void *user);
linnet_status lnt_checkpoint_each(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p, const lnt_param *q,
                                  lnt_checkpoint_visit *f, void *user);
/* Dimensions in a file of ours; returns how many. */
int lnt_checkpoint_shape(lnt_arch_form form, int ndim, const int64_t *dim, int64_t want[LNT_ST_MAX_DIMS]);
/* out[cols,rows] = in[rows,cols]^T. */
void lnt_turn(float *out, const float *in, int64_t rows, int64_t cols);

/* ---- writing: checkpoint_write.c ---- */

/* Tensors of all parameters under prefix and our names, float32, whose data is in the host's arena `values`; names and the list live in `scratch`. */
linnet_status lnt_checkpoint_list(lnt_ctx *c, const lnt_program *p, const char *prefix, const float *values, lnt_arena *scratch,
                                  lnt_st_tensor **tensors);

/* Where weights that are written come from. */
typedef struct {
    linnet_status (*read)(lnt_ctx *c, void *user, const lnt_param *q, float *values); /* all of it */
    lnt_dtype (*dtype)(void *user, const lnt_param *q); /* to write it in; NULL: float32 */
    void *user;
} lnt_weight_source;

/* The files of a folder's weights, planned: what lies in which, one tensor in memory at a time. Released with lnt_weight_files_close. */
typedef struct {
    lnt_ctx *c;
    const lnt_program *p;
    const lnt_naming *n;
    lnt_weight_source from;
    lnt_arena scratch;
    int count;              /* tensors, in the order of the parameters */
    lnt_st_tensor *tensors; /* without data */
    struct lnt_weight_part *part;
    int files, *first;      /* [files+1]: the first tensor of each */
    int64_t bytes;          /* of all tensors */
    const lnt_param *held;
    float *values, *made;
    void *rounded;
    size_t values_size, made_size, rounded_size;
    int now;                /* the first tensor of the file that is being written */
} lnt_weight_files;

/* most: bytes of a file's tensors, but that each holds one at least; 0: all in one. */
linnet_status lnt_weight_files_open(lnt_ctx *c, const lnt_program *p, const lnt_naming *n, lnt_weight_source from, int64_t most,
                                    lnt_weight_files *out);
void lnt_weight_files_close(lnt_weight_files *f);
/* The name of file i: "model.safetensors", or "model-00001-of-00003.safetensors". */
const char *lnt_weight_file_name(const lnt_weight_files *f, int i, char name[64]);
linnet_status lnt_weight_file_stage(lnt_weight_files *f, int i, const char *path, lnt_file_writer *w);
/* model.safetensors.index.json; lnt_free. NULL: out of memory. */
char *lnt_weight_files_index(const lnt_weight_files *f);

/* Write config.json, w[0], and model.safetensors, w[1], aside, on the disk: left to commit in this order, or to abandon. The folder is there. */
linnet_status lnt_model_stage(lnt_ctx *c, const linnet_model *m, const char *folder, lnt_file_writer w[2]);
linnet_status lnt_stage_text(lnt_ctx *c, const char *path, const char *text, lnt_file_writer *w);
/* Of a folder where the model's model.safetensors lies: where that has more than `most` bytes of tensors, the same in several files with an index,
 * and then without it. Whoever loads the folder finds the whole model at every moment: where both are, model.safetensors is read. */
linnet_status lnt_model_cut(lnt_ctx *c, const linnet_model *m, const char *folder, int64_t most);

#endif
