/* Resuming: whether what was asked for is what the run was started with. LINNET_EINVAL, naming both, where it is not. */
#ifndef LNT_TRAIN_SAME_RUN_H
#define LNT_TRAIN_SAME_RUN_H

#include "core/status.h"

/* o->tokenizer, where o->given names it, against the one in the folder. */
linnet_status lnt_same_tokenizer(lnt_ctx *c, const linnet_train_options *o, const linnet_tokenizer *kept);
/* Key by key; what follows from the tokenizer is left out. */
linnet_status lnt_same_config(lnt_ctx *c, const linnet_train_options *o, const linnet_config *asked, linnet_config *kept);

#endif
