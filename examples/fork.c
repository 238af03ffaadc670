/* One prompt, many endings: fork [MODEL [PROMPT [ENDING...]]] says how likely each ending is behind the prompt, in nats.
 *
 *     gcc fork.c $(pkg-config --cflags --libs linnet) -lm -o fork && ./fork model/ "The bird sang" " a song" " a stone"
 *
 * The prompt is read once. Each ending gets a fork of its state, whose size does not depend on the length of the prompt, and all are fed in one call.
 * Then one state goes on by itself, is taken back, and is seen to be what it was: the same ids in the same pieces give the same bits. */
#include <linnet/state.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16 };

static linnet_context *c;

static void check(linnet_status s)
{
    if (s == LINNET_OK) return;
    fprintf(stderr, "fork: %s\n%s\n", c ? linnet_error_message(c) : linnet_status_name(s), c ? linnet_error_hint(c) : "");
    exit(2);
}

static linnet_model *open_model(const char *folder, linnet_tokenizer **t)
{
    linnet_model *m;
    linnet_config *k;
    check(linnet_tokenizer_open(c, folder ? folder : "bytes", t));
    if (folder) return check(linnet_model_load(c, folder, LINNET_F32, &m)), m;
    check(linnet_config_create(c, "gated_deltanet", &k)); /* a fresh one, to which all endings are alike */
    check(linnet_config_preset(c, k, "nano"));
    check(linnet_config_set(c, k, "vocab_size", "256"));
    check(linnet_model_create(c, k, LINNET_F32, 1, &m));
    linnet_config_destroy(k);
    return m;
}

static double nats(const float *logits, int64_t n, int32_t id)
{
    double most = logits[0], sum = 0;
    for (int64_t i = 1; i < n; i++) most = logits[i] > most ? logits[i] : most;
    for (int64_t i = 0; i < n; i++) sum += exp(logits[i] - most);
    return most + log(sum) - logits[id];
}

int main(int argc, char **argv)
{
    static const char *const some[] = {" a song", " a stone", " of the morning"};
    const char *prompt = argc > 2 ? argv[2] : "The bird sang";
    const char *const *ending = argc > 3 ? (const char *const *)(argv + 3) : some;
    const int n = argc > 3 ? (argc - 3 < MOST ? argc - 3 : MOST) : 3;
    linnet_tokenizer *t;
    linnet_session *session;
    linnet_state *read, *state[MOST];
    linnet_session_options o = LINNET_SESSION_OPTIONS_INIT;
    linnet_session_call call[MOST];
    linnet_session_info info = {.size = sizeof info};
    int32_t *ids[MOST], *prompt_ids;
    check(linnet_context_create(NULL, &c));
    linnet_model *m = open_model(argc > 1 ? argv[1] : NULL, &t);
    o.slots = n + 1, o.rollback = 64;
    check(linnet_session_create(c, m, &o, &session));
    check(linnet_session_get_info(session, &info));

    float *first = malloc((size_t)info.vocabulary * sizeof *first), *again = malloc((size_t)info.vocabulary * sizeof *again);
    linnet_session_call whole = LINNET_SESSION_CALL_INIT;
    check(linnet_tokenizer_encode(c, t, prompt, strlen(prompt), &prompt_ids, &whole.n_ids));
    check(linnet_state_create(session, &read));
    whole.state = read, whole.ids = prompt_ids, whole.wants = LINNET_LOGITS_LAST, whole.logits = first;
    if (!first || !again) return 2;
    check(linnet_session_run(session, &whole, 1));

    for (int i = 0; i < n; i++) {
        call[i] = (linnet_session_call)LINNET_SESSION_CALL_INIT;
        check(linnet_tokenizer_encode(c, t, ending[i], strlen(ending[i]), &ids[i], &call[i].n_ids));
        check(linnet_state_fork(read, &state[i]));
        call[i].state = state[i], call[i].ids = ids[i], call[i].wants = LINNET_LOGITS_ALL;
        call[i].logits = malloc((size_t)(call[i].n_ids * info.vocabulary) * sizeof(float) + 1);
        if (!call[i].logits) return 2;
    }
    check(linnet_session_run(session, call, n));
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < call[i].n_ids; j++)
            sum += nats(j ? call[i].logits + (j - 1) * info.vocabulary : first, info.vocabulary, ids[i][j]);
        printf("%8.3f nats, %.3f a token: %s|%s\n", sum, call[i].n_ids ? sum / (double)call[i].n_ids : 0, prompt, ending[i]);
    }

    /* the prompt's last id taken back and read once more, as the first step of a fork */
    check(linnet_state_rollback(read, 1));
    whole.ids = prompt_ids + whole.n_ids - 1, whole.n_ids = 1, whole.logits = again;
    linnet_state *once;
    linnet_state_destroy(state[0]);
    check(linnet_state_fork(read, &once));
    check(linnet_session_run(session, &whole, 1));
    whole.state = once, whole.logits = first;
    check(linnet_session_run(session, &whole, 1));
    const int same = memcmp(first, again, (size_t)info.vocabulary * sizeof *first) == 0;
    printf("taken back and read again, twice: %s\n", same ? "the same bits" : "other bits");

    for (int i = 0; i < n; i++) linnet_free(ids[i]), free(call[i].logits);
    linnet_free(prompt_ids);
    free(first);
    free(again);
    linnet_session_destroy(session); /* and its states */
    linnet_model_destroy(m);
    linnet_tokenizer_destroy(t);
    linnet_context_destroy(c);
    return !same;
}
