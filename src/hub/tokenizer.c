/* Opening, saving and asking tokenizers. */
#include "hub/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/border.h"
#include "core/file.h"
#include "hub/json.h"

enum { MAX_TOKENIZER_BYTES = 256 << 20 };

const char *const lnt_separator_names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", NULL};

/* ---- building ---- */

linnet_status lnt_tokenizer_new(lnt_ctx *c, int64_t n, struct linnet_tokenizer **out)
{
    struct linnet_tokenizer *t = lnt_calloc(sizeof *t);
    if (!t) return lnt_fail_memory(c, sizeof *t);
    t->pieces = lnt_calloc(lnt_bytes((size_t)n, sizeof *t->pieces));
    if (!t->pieces) {
        linnet_tokenizer_destroy(t);
        return lnt_fail_memory(c, lnt_bytes((size_t)n, sizeof *t->pieces));
    }
    t->n = (int32_t)n;
    t->separator = t->unk = -1;
    t->bytewise = true;
    for (int b = 0; b < 256; b++) t->byte_id[b] = -1;
    *out = t;
    return LINNET_OK;
}

void linnet_tokenizer_destroy(linnet_tokenizer *t)
{
    if (!t) return;
    lnt_arena_free(&t->arena);
    lnt_free(t->pieces);
    lnt_free(t->merges);
    lnt_free(t->pair_slots);
    lnt_free(t->seams);
    lnt_free(t->score);
    lnt_free(t->added);
    lnt_free(t->source);
    lnt_bytemap_free(&t->whole);
    lnt_trie_free(&t->trie);
    lnt_trie_free(&t->added_raw);
    lnt_trie_free(&t->added_normal);
    lnt_normalizer_free(&t->normalizer);
    lnt_pretokenizer_free(&t->pre);
    for (int i = 0; i < t->n_decode; i++) {
        lnt_pattern_free(t->decode[i].pattern);
        lnt_free(t->decode[i].content);
    }
    lnt_free(t);
}

linnet_status lnt_tokenizer_set(lnt_ctx *c, struct linnet_tokenizer *t, int64_t id, const void *bytes, size_t n)
{
    char *copy = lnt_arena_alloc(&t->arena, n + 1);
    if (!copy) return lnt_fail_memory(c, n + 1);
    memcpy(copy, bytes, n);
    t->pieces[id] = (lnt_piece){.bytes = copy, .n = (uint32_t)n};
    if (n == 1 && t->bytewise && t->byte_id[(uint8_t)*copy] < 0) t->byte_id[(uint8_t)*copy] = (int32_t)id;
    return LINNET_OK;
}

static size_t pair_slot(const struct linnet_tokenizer *t, int32_t left, int32_t right)
{
    size_t i = lnt_mix64((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & (t->pair_capacity - 1);
    for (;; i = (i + 1) & (t->pair_capacity - 1)) {
        int32_t m = t->pair_slots[i];
        if (m < 0 || (t->merges[m].left == left && t->merges[m].right == right)) return i;
    }
}

int32_t lnt_tokenizer_merge(const struct linnet_tokenizer *t, int32_t left, int32_t right)
{
    return t->n_merges ? t->pair_slots[pair_slot(t, left, right)] : -1;
}

/* ---- the tables of encoding ---- */

linnet_status lnt_tokenizer_add(lnt_ctx *c, struct linnet_tokenizer *t, const lnt_added *a)
{
    const size_t n = (size_t)t->n_added;
    if ((n & (n - 1)) == 0) { /* 0, or a power of two: full */
        const size_t room = n ? 2 * n : 1;
        lnt_added *added = lnt_realloc(t->added, lnt_bytes(n, sizeof *added), lnt_bytes(room, sizeof *added));
        if (!added) return lnt_fail_memory(c, lnt_bytes(room, sizeof *added));
        t->added = added;
    }
    t->added[t->n_added++] = *a;
    t->pieces[a->id].special = a->special;
    return LINNET_OK;
}

static linnet_status hash_pairs(lnt_ctx *c, struct linnet_tokenizer *t)
{
    if (!t->n_merges) return LINNET_OK;
    t->pair_capacity = 4;
    while (t->pair_capacity < 2 * (size_t)t->n_merges) t->pair_capacity *= 2;
    t->pair_slots = lnt_alloc(lnt_bytes(t->pair_capacity, sizeof *t->pair_slots));
    if (!t->pair_slots) return lnt_fail_memory(c, lnt_bytes(t->pair_capacity, sizeof *t->pair_slots));
    memset(t->pair_slots, 0xff, t->pair_capacity * sizeof *t->pair_slots);
    for (int32_t m = 0; m < t->n_merges; m++)
        t->pair_slots[pair_slot(t, t->merges[m].left, t->merges[m].right)] = m; /* of two equal pairs the last */
    return lnt_bpe_seams(c, t);
}

/* Pieces by their spelling, as the model sees it. */
static linnet_status hash_pieces(lnt_ctx *c, struct linnet_tokenizer *t)
{
    for (int32_t id = 0; id < t->n; id++) {
        bool fresh;
        const lnt_piece *p = &t->pieces[id];
        const char *text = t->bytewise ? p->bytes : p->spelled;
        if (!text || p->verbatim) continue;
        int64_t *value = lnt_bytemap_put(&t->whole, text, t->bytewise ? p->n : p->n_spelled, &fresh);
        if (!value) return lnt_fail_memory(c, p->n);
        if (fresh || t->model == LNT_MODEL_UNIGRAM) *value = id; /* whose list may say a piece twice: the last counts */
    }
    for (int b = 0; b < 256 && !t->bytewise; b++) {
        char name[8];
        const int64_t *id = lnt_bytemap_find(&t->whole, name, (size_t)snprintf(name, sizeof name, "<0x%02X>", b));
        t->byte_id[b] = id ? (int32_t)*id : -1;
    }
    return LINNET_OK;
}

/* Special ones first: of equal contents the first counts. */
static linnet_status plant_added(lnt_ctx *c, struct linnet_tokenizer *t, lnt_matcher *m, lnt_buffer work[2])
{
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < t->n_added; i++) {
            const lnt_added *a = &t->added[i];
            const uint8_t *text = (const uint8_t *)a->content;
            size_t n = a->n;
            bool moved;
            if (a->special == (turn == 1)) continue;
            if (a->normalized) LNT_TRY(lnt_normalize(m, &t->normalizer, text, n, work, &text, &n, &moved));
            if (n == 0) continue; /* nothing is left of it */
            int32_t *which = lnt_trie_put(a->normalized ? &t->added_normal : &t->added_raw, text, n);
            if (!which) return lnt_fail_memory(c, n);
            if (*which < 0) *which = i;
        }
    return LINNET_OK;
}

linnet_status lnt_tokenizer_finish(lnt_ctx *c, struct linnet_tokenizer *t, const char *path)
{
    for (int b = 0; b < 256 && t->bytewise && t->model != LNT_MODEL_UNIGRAM; b++)
        if (t->byte_id[b] < 0) {
            lnt_malformed(c, path, "the vocabulary has no token for byte 0x%02x", b);
            lnt_hint(c, "A vocabulary over bytes needs all 256, or some texts would lose some.");
            return LINNET_EFORMAT;
        }
    LNT_TRY(hash_pairs(c, t));
    if (!t->bytewise || t->ignore_merges || t->model == LNT_MODEL_UNIGRAM) LNT_TRY(hash_pieces(c, t));
    lnt_matcher m;
    lnt_buffer work[2] = {{0}, {0}};
    LNT_TRY(lnt_matcher_begin(c, &m));
    linnet_status s = plant_added(c, t, &m, work);
    lnt_matcher_end(&m);
    lnt_buffer_free(&work[0]);
    lnt_buffer_free(&work[1]);
    return s == LINNET_OK ? lnt_decoder_spell_out(c, t) : s;
}

static linnet_status open_bytes(lnt_ctx *c, linnet_tokenizer **out)
{
    linnet_tokenizer *t = NULL;
    LNT_TRY(lnt_tokenizer_new(c, 256, &t));
    linnet_status s = LINNET_OK;
    for (int b = 0; b < 256 && s == LINNET_OK; b++) s = lnt_tokenizer_set(c, t, b, &(uint8_t){(uint8_t)b}, 1);
    if (s == LINNET_OK) s = lnt_tokenizer_finish(c, t, "bytes");
    if (s == LINNET_OK)
        *out = t;
    else
        linnet_tokenizer_destroy(t);
    return s;
}

/* ---- opening ---- */

/* A file by its beginning: an object is tokenizer.json, lines that begin with a number are RWKV's list. */
static linnet_status open_file(lnt_ctx *c, const char *path, linnet_tokenizer **out)
{
    char *text;
    size_t n;
    linnet_tokenizer *t = NULL;
    LNT_TRY(lnt_file_read(c, path, MAX_TOKENIZER_BYTES, &text, &n));
    const bool world = n > 0 && *text >= '0' && *text <= '9';
    linnet_status s = (world ? lnt_tokenizer_from_world : lnt_tokenizer_from_json)(c, path, text, n, &t);
    if (s != LINNET_OK) {
        lnt_free(text);
        return s;
    }
    t->source = text;
    t->source_bytes = n;
    t->source_name = world ? lnt_world_name : "tokenizer.json";
    *out = t;
    return LINNET_OK;
}

static linnet_status open_folder(lnt_ctx *c, lnt_arena *a, const char *folder, linnet_tokenizer **out)
{
    static const char *const pairs[][2] = {{"encoder.json", "vocab.bpe"}, {"vocab.json", "merges.txt"}}; /* OpenAI's names, Hugging Face's */
    static const char *const alone[] = {"tokenizer.json", lnt_world_name};
    for (int i = 0; i < 2; i++) {
        const char *path = lnt_arena_printf(a, "%s/%s", folder, alone[i]);
        if (!path) return lnt_fail_memory(c, strlen(folder));
        if (lnt_file_exists(path)) return open_file(c, path, out);
    }
    for (int i = 0; i < 2; i++) {
        const char *vocabulary = lnt_arena_printf(a, "%s/%s", folder, pairs[i][0]), *merges = lnt_arena_printf(a, "%s/%s", folder, pairs[i][1]);
        if (!vocabulary || !merges) return lnt_fail_memory(c, strlen(folder));
        if (lnt_file_exists(vocabulary) && lnt_file_exists(merges)) return lnt_tokenizer_from_gpt2(c, vocabulary, merges, out);
    }
    lnt_fail(c, LINNET_EIO, "\"%.300s\" has no tokenizer", folder);
    lnt_hint(c, "A folder needs tokenizer.json, encoder.json and vocab.bpe, or %s; \"bytes\" needs no file.", lnt_world_name);
    return LINNET_EIO;
}

linnet_status linnet_tokenizer_open(linnet_context *c, const char *path, linnet_tokenizer **out)
{
    LNT_NEED(c, path);
    LNT_NEED(c, out);
    if (strcmp(path, "bytes") == 0) return open_bytes(c, out);
    if (!lnt_is_folder(path)) return open_file(c, path, out);
    lnt_arena a = {0};
    linnet_status s = open_folder(c, &a, path, out);
    lnt_arena_free(&a);
    return s;
}

/* ---- saving ---- */

static linnet_status write_file(lnt_ctx *c, const char *path, const char *text, size_t n)
{
    lnt_file_writer w;
    LNT_TRY(lnt_file_begin(c, path, &w));
    linnet_status s = lnt_file_write(c, &w, text, n);
    if (s == LINNET_OK) s = lnt_file_commit(c, &w);
    lnt_file_abandon(&w);
    return s;
}

linnet_status linnet_tokenizer_save(linnet_context *c, const linnet_tokenizer *t, const char *folder)
{
    LNT_TRY(lnt_need(c, t, "the tokenizer"));
    LNT_NEED(c, folder);
    const char *name = t->source_name ? t->source_name : "tokenizer.json";
    size_t n = lnt_bytes_plus(strlen(folder) + 2, strlen(name)), bytes = t->source_bytes;
    char *path = lnt_alloc(n), *made = NULL;
    if (!path) return lnt_fail_memory(c, n);
    snprintf(path, n, "%s/%s", folder, name);
    linnet_status s = lnt_make_folder(c, folder);
    if (s == LINNET_OK && !t->source) s = lnt_tokenizer_text(c, t, &made, &bytes);
    if (s == LINNET_OK) s = write_file(c, path, made ? made : t->source, bytes);
    lnt_free(made);
    lnt_free(path);
    return s;
}

/* ---- asking ---- */

int64_t linnet_tokenizer_vocabulary(const linnet_tokenizer *t) { return t ? t->n : 0; }

int64_t linnet_tokenizer_separator(const linnet_tokenizer *t) { return t ? t->separator : -1; }

const char *linnet_tokenizer_piece(const linnet_tokenizer *t, int64_t id, size_t *bytes)
{
    if (!t || !bytes || id < 0 || id >= t->n) return NULL;
    *bytes = t->pieces[id].n;
    return t->pieces[id].bytes ? t->pieces[id].bytes : "";
}

int64_t linnet_tokenizer_id(const linnet_tokenizer *t, const char *spelling)
{
    if (!t || !spelling) return -1;
    const size_t n = strlen(spelling);
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].n == n && memcmp(t->added[i].content, spelling, n) == 0) return t->added[i].id;
    for (int32_t id = 0; id < t->n; id++) {
        const lnt_piece *p = &t->pieces[id];
        const char *text = p->spelled ? p->spelled : p->bytes;
        if (text && (p->spelled ? p->n_spelled : p->n) == n && memcmp(text, spelling, n) == 0) return id;
    }
    return -1;
}
