/* Goldens: what lives in the tree (tests/goldens/README.md), and the full set, beside the tree where somebody has it. */
#ifndef GOLDEN_FILES_H
#define GOLDEN_FILES_H

#include <unistd.h>

#define GOLDENS LINNET_SOURCE_DIR "/tests/goldens"
#define FULL_GOLDENS LINNET_SOURCE_DIR "/../shared/goldens"
#define NEEDS_FULL_GOLDENS                                                                                                                           \
    if (access(FULL_GOLDENS, R_OK)) skip()

#endif
