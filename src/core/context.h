/* The inside of linnet_context. Only core/ and device/ look in. */
#ifndef LNT_CORE_CONTEXT_H
#define LNT_CORE_CONTEXT_H

#include "core/status.h"
#include "core/team.h"

struct lnt_device;

struct linnet_context {
    linnet_status status;
    char message[1024], detail[1024], hint[1536], option[80];
    int threads;
    lnt_pool pool; /* the caller's threads */
    bool alone; /* the work at hand is for one of them (core/threads.h) */
    bool rows_alone; /* products give every row the bits that it has by itself (core/threads.h) */
    struct lnt_device *device; /* owned; see device/device.h */
    void (*log)(void *user, const char *line);
    void *log_user;
    bool verbose_dispatch;
    char machine[160];
    const char *recurrence_ran; /* static text: the implementation of the last recurrence; NULL: none yet */
};

#endif
