/* Text files as people keep them: plain ones are mapped, gzip, xz and Zstandard ones are unpacked, through the distribution's libraries. */
#ifndef LNT_HUB_UNPACK_H
#define LNT_HUB_UNPACK_H

#include "core/file.h"

/* A file's text, which is what lnt_text_check takes for text. Closed by lnt_file_unmap. Packed text streams into a file without a name (on the disk,
 * in /var/tmp or /tmp; in memory where neither takes it), which is gone with the view, and with the process: memory is that of the decoder, at
 * most 130 MiB, whatever the text's size. Damaged, truncated and unknown data are refused. */
linnet_status lnt_text_open(lnt_ctx *c, const char *path, lnt_file_view *out);
/* The first bytes of the same, at most `room` of them; what they are is not looked at. */
linnet_status lnt_text_head(lnt_ctx *c, const char *path, uint8_t *head, size_t room, size_t *n);

#endif
