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
    t->separator = -1;
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
    lnt_free(t->added);
    lnt_free(t->source);
    lnt_bytemap_free(&t->whole);
    lnt_pretokenizer_free(&t->pre);
    lnt_free(t);
}

linnet_status lnt_tokenizer_set(lnt_ctx *c, struct linnet_tokenizer *t, int64_t id, const void *bytes, size_t n)
{
    char *copy = lnt_arena_alloc(&t->arena, n + 1);
    if (!copy) return lnt_fail_memory(c, n + 1);
    memcpy(copy, bytes, n);
    t->pieces[id] = (lnt_piece){.bytes = copy, .n = (uint32_t)n};
    if (n == 1 && t->byte_id[(uint8_t)*copy] < 0) t->byte_id[(uint8_t)*copy] = (int32_t)id;
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

linnet_status lnt_tokenizer_finish(lnt_ctx *c, struct linnet_tokenizer *t, const char *path)
{
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] < 0) {
            lnt_malformed(c, path, "the vocabulary has no token for byte 0x%02x", b);
            lnt_hint(c, "Only byte-level tokenizers, whose vocabulary has all 256 bytes, are offered.");
            return LINNET_EFORMAT;
        }
    if (t->n_merges) {
        t->pair_capacity = 4;
        while (t->pair_capacity < 2 * (size_t)t->n_merges) t->pair_capacity *= 2;
        t->pair_slots = lnt_alloc(lnt_bytes(t->pair_capacity, sizeof *t->pair_slots));
        if (!t->pair_slots) return lnt_fail_memory(c, lnt_bytes(t->pair_capacity, sizeof *t->pair_slots));
        memset(t->pair_slots, 0xff, t->pair_capacity * sizeof *t->pair_slots);
        for (int32_t m = 0; m < t->n_merges; m++)
            if (!t->pieces[t->merges[m].result].apart)
                t->pair_slots[pair_slot(t, t->merges[m].left, t->merges[m].right)] = m; /* of two equal pairs the last */
    }
    for (int32_t id = 0; id < t->n && t->ignore_merges; id++) {
        bool fresh;
        const lnt_piece *p = &t->pieces[id];
        if (!p->bytes || p->apart) continue;
        int64_t *value = lnt_bytemap_put(&t->whole, p->bytes, p->n, &fresh);
        if (!value) return lnt_fail_memory(c, p->n);
        if (fresh) *value = id;
    }
    return LINNET_OK;
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

static linnet_status open_json(lnt_ctx *c, const char *path, linnet_tokenizer **out)
{
    char *text;
    size_t n;
    linnet_tokenizer *t = NULL;
    LNT_TRY(lnt_file_read(c, path, MAX_TOKENIZER_BYTES, &text, &n));
    linnet_status s = lnt_tokenizer_from_json(c, path, text, n, &t);
    if (s != LINNET_OK) {
        lnt_free(text);
        return s;
    }
    t->source = text;
    t->source_bytes = n;
    *out = t;
    return LINNET_OK;
}

static linnet_status open_folder(lnt_ctx *c, lnt_arena *a, const char *folder, linnet_tokenizer **out)
{
    static const char *const pairs[][2] = {{"encoder.json", "vocab.bpe"}, {"vocab.json", "merges.txt"}}; /* OpenAI's names, Hugging Face's */
    const char *json = lnt_arena_printf(a, "%s/tokenizer.json", folder);
    if (!json) return lnt_fail_memory(c, strlen(folder));
    if (lnt_file_exists(json)) return open_json(c, json, out);
    for (int i = 0; i < 2; i++) {
        const char *vocabulary = lnt_arena_printf(a, "%s/%s", folder, pairs[i][0]), *merges = lnt_arena_printf(a, "%s/%s", folder, pairs[i][1]);
        if (!vocabulary || !merges) return lnt_fail_memory(c, strlen(folder));
        if (lnt_file_exists(vocabulary) && lnt_file_exists(merges)) return lnt_tokenizer_from_gpt2(c, vocabulary, merges, out);
    }
    lnt_fail(c, LINNET_EIO, "\"%.300s\" has no tokenizer", folder);
    lnt_hint(c, "A folder needs tokenizer.json, or encoder.json and vocab.bpe; \"bytes\" needs no file.");
    return LINNET_EIO;
}

linnet_status linnet_tokenizer_open(linnet_context *c, const char *path, linnet_tokenizer **out)
{
    LNT_NEED(c, path);
    LNT_NEED(c, out);
    if (strcmp(path, "bytes") == 0) return open_bytes(c, out);
    if (!lnt_is_folder(path)) return open_json(c, path, out);
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
    size_t n = strlen(folder) + sizeof "/tokenizer.json", bytes = t->source_bytes;
    char *path = lnt_alloc(n), *made = NULL;
    if (!path) return lnt_fail_memory(c, n);
    snprintf(path, n, "%s/tokenizer.json", folder);
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
