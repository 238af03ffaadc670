/* What a server shows of states on a GPU: test_state_view.c there. Without a GPU all is skipped. */
#define VIEW_ON_GPU
#include "test_state_view.c"
