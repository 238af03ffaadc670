/* A byte for a layer, the rest as the file of a state, with the model's own fingerprint where it has one: refused, or a state that can be fed and
 * looked at. Numbers that a state counts with (tokens, rows that wait) are in the file too. */
#include "fuzz_file.h"
#include "linnet/state.h"

enum { KEY = 9, PRINT = KEY + 16 }; /* "model":" and what is behind it */

static linnet_session *session_of(int kind)
{
    static const char *const mixers[] = {"gated_deltanet", "transformer", "ttt_linear", "ttt_mlp", "titans", "mesa_net", "mamba", "slstm"};
    enum { KINDS = sizeof mixers / sizeof *mixers };
    static const char *const keys[][2] = {{"hidden_size", "16"}, {"num_hidden_layers", "1"}, {"vocab_size", "31"}};
    static const char *const some[][2] = {{"num_heads", "2"}, {"head_dim", "8"}, {"intermediate_size", "16"}};
    static linnet_session *sessions[KINDS];
    linnet_context *c = fuzz_context();
    linnet_config *k;
    linnet_model *m;
    linnet_session_options o = LINNET_SESSION_OPTIONS_INIT;
    linnet_session **s = &sessions[kind % KINDS];
    if (*s) return *s;
    if (linnet_config_create(c, mixers[kind % KINDS], &k) != LINNET_OK) abort();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (linnet_config_set(c, k, keys[i][0], keys[i][1]) != LINNET_OK) abort();
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) linnet_config_set(c, k, some[i][0], some[i][1]); /* whoever has them */
    o.slots = 2, o.capacity = 64, o.chunk = 8;
    if (linnet_model_create(c, k, LINNET_F32, 1, &m) != LINNET_OK || linnet_session_create(c, m, &o, s) != LINNET_OK) abort();
    linnet_config_destroy(k);
    return *s;
}

static void feed(linnet_session *s, linnet_state *a, int64_t n)
{
    static float logits[31];
    static const int32_t ids[] = {3, 14, 15, 9, 2, 6, 5, 30, 5, 8, 9};
    linnet_session_call k = LINNET_SESSION_CALL_INIT;
    k.state = a, k.ids = ids, k.n_ids = n, k.wants = LINNET_LOGITS_LAST, k.logits = logits;
    if (linnet_session_run(s, &k, 1) != LINNET_OK) abort();
}

/* What stands behind "model": in a state of the session's own. */
static const char *fingerprint(linnet_session *s)
{
    static const char key[] = "\"model\":\"";
    static struct {
        const linnet_session *s;
        char text[PRINT];
    } known[16];
    int i = 0;
    while (known[i].s && known[i].s != s) i++;
    if (known[i].s) return known[i].text;
    linnet_state *a;
    const char *path = fuzz_path("own");
    char head[4096];
    if (linnet_state_create(s, &a) != LINNET_OK || linnet_state_save(a, path) != LINNET_OK) abort();
    linnet_state_destroy(a);
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(head, 1, sizeof head, f) : 0;
    const char *at = memmem(head, n, key, sizeof key - 1);
    if (!at || fclose(f)) abort();
    known[i].s = s;
    return memcpy(known[i].text, at, PRINT);
}

static void look(const linnet_state *a)
{
    for (int64_t i = 0; i < linnet_state_tensor_count(a); i++) {
        linnet_state_tensor t = {.size = sizeof t};
        if (linnet_state_tensor_at(a, i, &t) != LINNET_OK) abort();
        char *data = malloc((size_t)t.bytes + 1);
        if (!data || linnet_state_tensor_read(a, i, data, (size_t)t.bytes) != LINNET_OK) abort();
        free(data);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    linnet_session *s = session_of(data[0]);
    char *file = malloc(size);
    if (!file) return 0;
    memcpy(file, data + 1, size - 1);
    const char *print = fingerprint(s);
    char *at = memmem(file, size - 1, print, KEY);
    if (at && file + size - 1 - at >= PRINT) memcpy(at, print, PRINT);
    const char *path = fuzz_write("state", file, size - 1);
    free(file);
    linnet_state *a;
    if (fuzz_said(fuzz_context(), linnet_state_load(s, path, &a)) != LINNET_OK) return 0;
    linnet_state_info is = {.size = sizeof is};
    if (linnet_state_get_info(a, &is) != LINNET_OK || is.tokens < 0) abort();
    look(a);
    if (is.tokens <= 50) { /* there is room for 64 */
        feed(s, a, 1);
        feed(s, a, 11);
        look(a);
    }
    linnet_state_destroy(a);
    return 0;
}
