/* Text as it comes, and two ways to go on from one place: stream [MODEL [PROMPT]]. Without a folder of a model a fresh one babbles.
 *
 *     gcc stream.c $(pkg-config --cflags --libs linnet) -o stream && ./stream model/ "Once upon a time"
 *
 * The prompt is read once. Then each of two states, the one that read it and its fork, writes a line of its own: at every token both are fed in one
 * call, which costs hardly more than one of them. */
#include <linnet/state.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAYS = 2, TOKENS = 60 };

/* What everything below stands on. */
typedef struct {
    linnet_context *c;
    linnet_model *model;
    linnet_tokenizer *tokenizer;
    linnet_session *session;
    int64_t vocabulary;
    float *logits; /* [WAYS][vocabulary] */
} place;

static linnet_status open_model(place *p, const char *folder)
{
    linnet_config *config = NULL;
    linnet_status s = linnet_context_create(NULL, &p->c);
    if (folder) {
        if (s == LINNET_OK) s = linnet_model_load(p->c, folder, LINNET_F32, &p->model);
        if (s == LINNET_OK) s = linnet_tokenizer_open(p->c, folder, &p->tokenizer);
        return s;
    }
    if (s == LINNET_OK) s = linnet_config_create(p->c, "gated_deltanet", &config);
    if (s == LINNET_OK) s = linnet_config_preset(p->c, config, "nano");
    if (s == LINNET_OK) s = linnet_config_set(p->c, config, "vocab_size", "256");
    if (s == LINNET_OK) s = linnet_model_create(p->c, config, LINNET_F32, 1, &p->model);
    if (s == LINNET_OK) s = linnet_tokenizer_open(p->c, "bytes", &p->tokenizer);
    linnet_config_destroy(config);
    return s;
}

static linnet_status open_session(place *p)
{
    linnet_session_options o = LINNET_SESSION_OPTIONS_INIT;
    linnet_session_info info;
    info.size = sizeof info;
    o.slots = WAYS;
    linnet_status s = linnet_session_create(p->c, p->model, &o, &p->session);
    if (s == LINNET_OK) s = linnet_session_get_info(p->session, &info);
    if (s == LINNET_OK) {
        p->vocabulary = info.vocabulary;
        p->logits = calloc(WAYS * (size_t)info.vocabulary, sizeof *p->logits);
        if (!p->logits) s = LINNET_ENOMEM;
    }
    return s;
}

/* The most likely id, but for one that is not to be. */
static int32_t likely(const float *logits, int64_t n, int32_t but)
{
    int32_t best = but == 0;
    for (int64_t i = 0; i < n; i++)
        if (logits[i] > logits[best] && i != but) best = (int32_t)i;
    return best;
}

/* Both states write; they part at the first token. Each way has a line of its own, so the first streams and the second is shown behind it. */
static linnet_status write_both(place *p, linnet_state *const *state)
{
    char kept[TOKENS * 64 + 1];
    size_t used = 0;
    int32_t id[WAYS];
    linnet_session_call call[WAYS] = {LINNET_SESSION_CALL_INIT, LINNET_SESSION_CALL_INIT};
    for (int way = 0; way < WAYS; way++) {
        call[way].state = state[way];
        call[way].ids = &id[way];
        call[way].n_ids = 1;
        call[way].wants = LINNET_LOGITS_LAST;
        call[way].logits = p->logits + way * p->vocabulary;
    }
    for (int t = 0; t < TOKENS; t++) {
        for (int way = 0; way < WAYS; way++) {
            size_t n = 0;
            id[way] = likely(call[t ? way : 0].logits, p->vocabulary, t == 0 && way == 1 ? id[0] : -1);
            const char *piece = linnet_tokenizer_piece(p->tokenizer, id[way], &n);
            if (piece && way == 0) fwrite(piece, 1, n, stdout);
            if (piece && way == 1 && used + n < sizeof kept) memcpy(kept + used, piece, n), used += n;
        }
        fflush(stdout);
        const linnet_status s = linnet_session_run(p->session, call, WAYS);
        if (s != LINNET_OK) return s;
    }
    printf("\n-- or --\n");
    fwrite(kept, 1, used, stdout);
    printf("\n");
    return LINNET_OK;
}

static linnet_status stream(place *p, const char *prompt)
{
    linnet_state *state[WAYS] = {NULL, NULL};
    linnet_session_call call = LINNET_SESSION_CALL_INIT;
    int32_t *ids = NULL;
    linnet_status s = linnet_tokenizer_encode(p->c, p->tokenizer, prompt, strlen(prompt), &ids, &call.n_ids);
    if (s == LINNET_OK) s = linnet_state_create(p->session, &state[0]);
    call.state = state[0], call.ids = ids, call.wants = LINNET_LOGITS_LAST, call.logits = p->logits;
    if (s == LINNET_OK) s = linnet_session_run(p->session, &call, 1);
    if (s == LINNET_OK) s = linnet_state_fork(state[0], &state[1]);
    if (s == LINNET_OK) {
        printf("%s", prompt);
        s = write_both(p, state);
    }
    linnet_free(ids);
    return s;
}

int main(int argc, char **argv)
{
    place p = {NULL, NULL, NULL, NULL, 0, NULL};
    linnet_status s = open_model(&p, argc > 1 ? argv[1] : NULL);
    if (s == LINNET_OK) s = open_session(&p);
    if (s == LINNET_OK) s = stream(&p, argc > 2 ? argv[2] : "Once upon a time");
    if (s != LINNET_OK) fprintf(stderr, "%s\n%s\n", linnet_error_message(p.c), linnet_error_hint(p.c));
    free(p.logits);
    linnet_session_destroy(p.session); /* and its states */
    linnet_tokenizer_destroy(p.tokenizer);
    linnet_model_destroy(p.model);
    linnet_context_destroy(p.c);
    return s != LINNET_OK;
}
