/* What the files of the delta core share. */
#ifndef LNT_DELTA_H
#define LNT_DELTA_H

#include "recurrence/cases.h"
#include "recurrence/recur_args.h"

/* The core's operators by their gate: none or of a token; of each row of S (gk). */
enum { LNT_DELTA_SCALAR, LNT_DELTA_ROWS };

extern const lnt_recur_impl lnt_delta_reference, lnt_dplr_reference;
extern const lnt_recur_case lnt_delta_cases[];

#endif
