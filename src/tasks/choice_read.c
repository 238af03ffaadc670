/* Prompts of multiple choice: templates filled with the fields of a benchmark's file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hub/json.h"
#include "tasks/choice.h"

enum { PLAIN, PIQA, HELLASWAG, WINOGRANDE, ARC_EASY, ARC_CHALLENGE, OPENBOOKQA, SOCIAL_IQA, BOOLQ, RACE, STORYCLOZE, MMLU };

static const char *text_of(const json_t *line, const char *key) { return json_string_value(json_object_get(line, key)); }

static char *kept(lnt_arena *arena, const char *text) { return text ? lnt_arena_strdup(arena, text) : NULL; }

/* "1", 1, "B", true as a number from 0, `first` being what stands for the first; -1: none of these. */
static int place(const json_t *v, int first)
{
    const char *text = json_string_value(v);
    if (json_is_integer(v)) return (int)json_integer_value(v) - first;
    if (json_is_boolean(v)) return json_is_true(v);
    if (!text || !*text) return -1;
    if (*text >= 'A' && *text <= 'Z' && !text[1]) return *text - 'A';
    return *text >= '0' && *text <= '9' && !text[1] ? *text - '0' - first : -1;
}

/* Choices with their labels: an array of {text, label}, or arrays text and label side by side; the answer is the label `key`. */
static void labelled(const json_t *choices, const char *key, lnt_arena *arena, lnt_question *q)
{
    const json_t *text = json_object_get(choices, "text"), *label = json_object_get(choices, "label");
    const size_t n = json_array_size(json_is_array(choices) ? choices : text);
    q->answer = -1;
    for (size_t i = 0; i < n && i < LNT_CANDIDATES; i++) {
        const json_t *one = json_array_get(choices, i);
        q->choice[i] = kept(arena, json_is_array(choices) ? text_of(one, "text") : json_string_value(json_array_get(text, i)));
        const char *name = json_is_array(choices) ? text_of(one, "label") : json_string_value(json_array_get(label, i));
        if (key && name && !strcmp(name, key)) q->answer = (int)i;
    }
    q->n = (int)(n < LNT_CANDIDATES ? n : LNT_CANDIDATES);
}

static void list_of(const json_t *array, lnt_arena *arena, lnt_question *q)
{
    for (q->n = 0; q->n < LNT_CANDIDATES && q->n < (int)json_array_size(array); q->n++)
        q->choice[q->n] = kept(arena, json_string_value(json_array_get(array, (size_t)q->n)));
}

static void same_context(lnt_question *q, const char *context)
{
    for (int i = 0; i < q->n; i++) q->context[i] = context;
}

/* HellaSwag's texts are steps of articles: white space at both ends goes; " [title]" is a full stop; other marks in brackets go; two blanks are
 * one. */
static char *tidy(lnt_arena *arena, const char *text)
{
    lnt_text a = {.arena = arena}, b = {.arena = arena}, c = {.arena = arena};
    size_t n;
    if (!text) return NULL;
    while ((n = lnt_space_at(text)) > 0) text += n;
    const char *end = text + strlen(text);
    while (end > text && lnt_space_at(end - 1) == 1) end--;
    lnt_text_put(&a, "");
    lnt_text_put(&b, "");
    lnt_text_put(&c, "");
    while (text < end) {
        const bool title = end - text >= 8 && !memcmp(text, " [title]", 8);
        lnt_text_add(&a, title ? ". " : text, title ? 2 : 1);
        text += title ? 8 : 1;
    }
    for (const char *p = a.text; p && *p;) {
        const char *close = *p == '[' ? strpbrk(p, "]\n") : NULL;
        if (close && *close == ']') p = close + 1;
        else lnt_text_add(&b, p++, 1);
    }
    for (const char *p = b.text; p && *p;) {
        lnt_text_add(&c, p, 1);
        p += p[0] == ' ' && p[1] == ' ' ? 2 : 1;
    }
    return a.text && b.text ? c.text : NULL;
}

/* The first letter large, the rest small; ASCII. */
static char *capital(lnt_arena *arena, const char *text)
{
    char *out = kept(arena, text);
    for (char *p = out; p && *p; p++) {
        if (p == out && *p >= 'a' && *p <= 'z') *p = (char)(*p - 'a' + 'A');
        else if (p > out && *p >= 'A' && *p <= 'Z') *p = (char)(*p - 'A' + 'a');
    }
    return out;
}

static void read_hellaswag(const json_t *line, lnt_arena *arena, lnt_question *q)
{
    const char *label = text_of(line, "activity_label"), *a = text_of(line, "ctx_a"), *b = text_of(line, "ctx_b");
    if (!label || !a || !b) return;
    list_of(json_object_get(line, "endings"), arena, q);
    char *large = capital(arena, b), *all = large ? lnt_arena_printf(arena, "%s: %s %s", label, a, large) : NULL;
    for (int i = 0; i < q->n; i++) q->choice[i] = tidy(arena, q->choice[i]);
    same_context(q, tidy(arena, all));
    q->answer = place(json_object_get(line, "label"), 0);
}

/* Two contexts, each with its option, and one end. */
static void read_winogrande(const json_t *line, lnt_arena *arena, lnt_question *q)
{
    const char *sentence = text_of(line, "sentence"), *option[2] = {text_of(line, "option1"), text_of(line, "option2")};
    const char *gap = sentence ? strchr(sentence, '_') : NULL;
    size_t n;
    if (!gap || !option[0] || !option[1]) return;
    const char *rest = gap + 1;
    while ((n = lnt_space_at(rest)) > 0) rest += n;
    q->n = 2;
    for (int i = 0; i < 2; i++) {
        q->context[i] = lnt_arena_printf(arena, "%.*s%s", (int)(gap - sentence), sentence, option[i]);
        char *end = kept(arena, rest);
        for (size_t k = end ? strlen(end) : 0; k && lnt_space_at(end + k - 1) == 1;) end[--k] = 0;
        q->choice[i] = end;
    }
    q->answer = place(json_object_get(line, "answer"), 1);
}

/* question as a text, or {stem, choices}. */
static void read_exam(const json_t *line, bool arc, lnt_arena *arena, lnt_question *q)
{
    const json_t *question = json_object_get(line, "question"), *choices = json_object_get(line, "choices");
    const char *stem = json_is_string(question) ? json_string_value(question) : text_of(question, "stem"), *key = text_of(line, "answerKey");
    if (!stem) stem = text_of(line, "question_stem");
    if (!choices) choices = json_object_get(question, "choices");
    if (!stem) return;
    labelled(choices, key, arena, q);
    same_context(q, arc ? lnt_arena_printf(arena, "Question: %s\nAnswer:", stem) : kept(arena, stem));
}

/* RACE, one of an article's questions: as one line of fields, as the benchmark's own lists (questions, options, answers), or as a list of objects. */
typedef struct {
    const char *question;
    const json_t *options;
    int answer;
} problem;

static problem problem_at(const json_t *line, size_t i)
{
    const json_t *list = json_object_get(line, "problems"), *questions = json_object_get(line, "questions");
    if (questions)
        return (problem){json_string_value(json_array_get(questions, i)), json_array_get(json_object_get(line, "options"), i),
                         place(json_array_get(json_object_get(line, "answers"), i), 0)};
    const json_t *one = list ? json_array_get(list, i) : line;
    return (problem){text_of(one, "question"), json_object_get(one, "options"), place(json_object_get(one, "answer"), 0)};
}

/* The article and its other questions with their answers stand before the last one; a gap at another one's end is as the harness leaves it. */
static void read_race(const json_t *line, lnt_arena *arena, lnt_question *q)
{
    static const char gap[] = "  _  .";
    const json_t *list = json_object_get(line, "problems"), *questions = json_object_get(line, "questions");
    const size_t n = list ? json_array_size(list) : questions ? json_array_size(questions) : 1;
    const char *article = text_of(line, "article");
    char *context = article ? lnt_arena_printf(arena, "Article: %s\n\n", article) : NULL;
    for (size_t i = 0; i + 1 < n && context; i++) {
        const problem p = problem_at(line, i);
        const char *answer = json_string_value(json_array_get(p.options, (size_t)p.answer));
        const size_t length = p.question ? strlen(p.question) : 0;
        if (!length || p.answer < 0 || !answer) return;
        const bool end = length >= sizeof gap - 1 && !strcmp(p.question + length - (sizeof gap - 1), gap);
        context = end ? lnt_arena_printf(arena, "%s%s%s\n", context, gap + 1, answer)
                      : lnt_arena_printf(arena, "%sQuestion: %s\nAnswer: %s\n", context, p.question, answer);
    }
    if (!n || !context) return;
    const problem last = problem_at(line, n - 1);
    list_of(last.options, arena, q);
    same_context(q, last.question ? lnt_arena_printf(arena, "%s%s", context, last.question) : NULL);
    q->answer = last.answer;
}

static void read_story(const json_t *line, lnt_arena *arena, lnt_question *q)
{
    char name[32], *context = lnt_arena_printf(arena, "%s", "");
    for (int i = 1; i <= 4 && context; i++) {
        snprintf(name, sizeof name, "input_sentence_%d", i);
        const char *sentence = text_of(line, name);
        context = sentence ? lnt_arena_printf(arena, "%s%s%s", context, i > 1 ? " " : "", sentence) : NULL;
    }
    q->n = 2;
    q->choice[0] = kept(arena, text_of(line, "sentence_quiz1"));
    q->choice[1] = kept(arena, text_of(line, "sentence_quiz2"));
    same_context(q, context);
    q->answer = place(json_object_get(line, "answer_right_ending"), 1);
}

/* The choices stand in the prompt, and their letters are what is asked; a subject names itself before. */
static void read_mmlu(const json_t *line, lnt_arena *arena, lnt_question *q)
{
    static const char *const letters[] = {"A", "B", "C", "D"};
    const char *subject = text_of(line, "subject"), *question = text_of(line, "question");
    const json_t *choices = json_object_get(line, "choices");
    size_t n;
    while (question && (n = lnt_space_at(question)) > 0) question += n;
    char *stem = kept(arena, question), *about = kept(arena, subject), *context = NULL;
    for (size_t k = stem ? strlen(stem) : 0; k && lnt_space_at(stem + k - 1) == 1;) stem[--k] = 0;
    for (char *p = about; p && *p; p++)
        if (*p == '_') *p = ' ';
    if (stem) context = about ? lnt_arena_printf(arena, "The following are multiple choice questions (with answers) about %s.\n\n%s\n", about, stem)
                              : lnt_arena_printf(arena, "%s\n", stem);
    for (q->n = 0; q->n < 4; q->n++) {
        const char *text = json_string_value(json_array_get(choices, (size_t)q->n));
        context = context && text ? lnt_arena_printf(arena, "%s%s. %s\n", context, letters[q->n], text) : NULL;
        q->choice[q->n] = letters[q->n];
    }
    same_context(q, context ? lnt_arena_printf(arena, "%sAnswer:", context) : NULL);
    q->answer = place(json_object_get(line, "answer"), 0);
}

static void read_fields(const json_t *line, int format, lnt_arena *arena, lnt_question *q)
{
    const char *a, *b;
    switch (format) {
    case PLAIN:
        list_of(json_object_get(line, "choices"), arena, q);
        same_context(q, kept(arena, text_of(line, "prompt")));
        q->answer = place(json_object_get(line, "answer"), 0);
        break;
    case PIQA:
        a = text_of(line, "goal");
        q->n = 2;
        q->choice[0] = kept(arena, text_of(line, "sol1"));
        q->choice[1] = kept(arena, text_of(line, "sol2"));
        same_context(q, a ? lnt_arena_printf(arena, "Question: %s\nAnswer:", a) : NULL);
        q->answer = place(json_object_get(line, "label"), 0);
        break;
    case HELLASWAG: read_hellaswag(line, arena, q); break;
    case WINOGRANDE: read_winogrande(line, arena, q); break;
    case ARC_EASY:
    case ARC_CHALLENGE: read_exam(line, true, arena, q); break;
    case OPENBOOKQA: read_exam(line, false, arena, q); break;
    case SOCIAL_IQA:
        a = text_of(line, "context");
        b = text_of(line, "question");
        q->n = 3;
        q->choice[0] = kept(arena, text_of(line, "answerA"));
        q->choice[1] = kept(arena, text_of(line, "answerB"));
        q->choice[2] = kept(arena, text_of(line, "answerC"));
        same_context(q, a && b ? lnt_arena_printf(arena, "Q: %s %s\nA:", a, b) : NULL);
        q->answer = place(json_object_get(line, "label"), 1);
        break;
    case RACE: read_race(line, arena, q); break;
    case STORYCLOZE: read_story(line, arena, q); break;
    case MMLU: read_mmlu(line, arena, q); break;
    default:
        a = text_of(line, "passage");
        b = text_of(line, "question");
        q->n = 2;
        q->choice[0] = "no";
        q->choice[1] = "yes";
        same_context(q, a && b ? lnt_arena_printf(arena, "%s\nQuestion: %s?\nAnswer:", a, b) : NULL);
        q->answer = place(json_object_get(line, json_object_get(line, "label") ? "label" : "answer"), 0);
    }
}

/* What a format reads, "a|b" where one of them will do, its answer last. */
static const char *const fields[] = {
    [PLAIN] = "prompt choices answer",
    [PIQA] = "goal sol1 sol2 label",
    [HELLASWAG] = "activity_label ctx_a ctx_b endings label",
    [WINOGRANDE] = "sentence option1 option2 answer",
    [ARC_EASY] = "question|question_stem choices|question answerKey",
    [ARC_CHALLENGE] = "question|question_stem choices|question answerKey",
    [OPENBOOKQA] = "question|question_stem choices|question answerKey",
    [SOCIAL_IQA] = "context question answerA answerB answerC label",
    [BOOLQ] = "passage question label|answer",
    [RACE] = "article question|questions|problems options|problems answer|answers|problems",
    [STORYCLOZE] = "input_sentence_1 input_sentence_2 input_sentence_3 input_sentence_4 sentence_quiz1 sentence_quiz2 answer_right_ending",
    [MMLU] = "question choices answer",
};

/* The value of one of "a|b"; NULL: none is there. */
static const json_t *one_of(const json_t *line, const char *names)
{
    char name[48];
    for (size_t n; *names; names += n + (names[n] == '|')) {
        n = strcspn(names, "|");
        snprintf(name, sizeof name, "%.*s", (int)n, names);
        if (json_object_get(line, name)) return json_object_get(line, name);
    }
    return NULL;
}

/* The question has no two choices or no answer among them: why. */
static linnet_status what_is_wrong(const lnt_lines *l, const json_t *line, int format, const lnt_labels *labels, const lnt_question *q)
{
    char name[96], value[64];
    bool whole = q->n > 1;
    int i = 0;
    for (; lnt_word_at(fields[format], i, name, sizeof name)[0]; i++) /* the answer may stand in the labels */
        if (!one_of(line, name) && (!labels || lnt_word_at(fields[format], i + 1, value, sizeof value)[0]))
            return lnt_lines_bad(l, "\"%s\" is missing, expected %s", name, fields[format]);
    for (int k = 0; k < q->n; k++) whole = whole && q->context[k] && q->choice[k] && *q->choice[k];
    if (q->n == 1) return lnt_lines_bad(l, "1 choice, expected at least 2");
    if (!whole) return lnt_lines_bad(l, "a field is empty or of another type or form, of %s", fields[format]);
    if (labels)
        return lnt_malformed(l->c, labels->path, "the label of line %lld is answer %d, expected 0 to %d", (long long)l->line, q->answer, q->n - 1);
    lnt_word_at(fields[format], i - 1, name, sizeof name);
    return lnt_lines_bad(l, "its answer, \"%s\", is %s, none of the %d choices", name, lnt_json_show(one_of(line, name), value, sizeof value), q->n);
}

linnet_status lnt_choice_read(const lnt_lines *l, const json_t *line, int format, lnt_labels *labels, lnt_arena *arena, lnt_question *q)
{
    *q = (lnt_question){.answer = -1};
    read_fields(line, format, arena, q);
    if (labels) {
        char *end;
        const long x = strtol(labels->at, &end, 10);
        if (end == labels->at) return lnt_malformed(l->c, labels->path, "there is no label for line %lld, expected a number", (long long)l->line);
        q->answer = (int)x;
        labels->at = end;
    }
    bool right = q->n > 1 && q->answer >= 0 && q->answer < q->n;
    for (int i = 0; i < q->n; i++) right = right && q->context[i] && q->choice[i] && *q->choice[i];
    return right ? LINNET_OK : what_is_wrong(l, line, format, labels, q);
}
