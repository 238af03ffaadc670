/* A fuzz target without libFuzzer: every seed of a folder, then changed copies of each, the same ones every time. A short share of ./run fuzz for
 * every compiler: seed_runner FOLDER COPIES */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 16 };

static uint64_t drawn = 1;

static size_t draw(size_t n) /* 0 to n - 1: a linear congruence's upper half (Knuth's MMIX) */
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return n ? (size_t)(drawn >> 33) % n : 0;
}

static size_t change(uint8_t *data, size_t size)
{
    static const char *const words[] = {"-1", "0", "1e999", "NaN", "9223372036854775807", "4294967296", "null", "[]", "\"", "}", "\xff\xff\xff\xff"};
    for (size_t k = draw(4) + 1; k-- && size;) {
        const size_t at = draw(size), n = draw(size - at < 16 ? size - at : 16);
        const char *word = words[draw(sizeof words / sizeof *words)];
        switch (draw(5)) {
        case 0: data[at] ^= (uint8_t)(1u << draw(8)); break;
        case 1: size = at; break;
        case 2:
            memmove(data + at, data + at + n, size - at - n);
            size -= n;
            break;
        case 3: memmove(data + draw(size - n), data + at, n); break;
        default:
            if (at + strlen(word) <= size) memcpy(data + at, word, strlen(word));
        }
    }
    return size;
}

/* Exactly as many bytes as there are, so that a read behind them is seen. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) abort();
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

int main(int argc, char **argv)
{
    static uint8_t seed[MOST], data[MOST];
    int seeds = 0;
    struct dirent **names;
    const int count = argc == 3 ? scandir(argv[1], &names, NULL, alphasort) : -1; /* in order: copies go on drawing where the last seed's ended */
    if (count < 0) return fprintf(stderr, "usage: seed_runner FOLDER COPIES\n"), 2;
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], names[i]->d_name);
        FILE *f = *names[i]->d_name == '.' ? NULL : fopen(path, "rb");
        free(names[i]);
        if (!f) continue;
        const size_t size = fread(seed, 1, MOST, f);
        fclose(f);
        run(seed, size);
        for (long copies = atol(argv[2]); copies > 0; copies--) {
            memcpy(data, seed, size);
            run(data, change(data, size));
        }
        seeds++;
    }
    free(names);
    if (!seeds) return fprintf(stderr, "%s has no seeds\n", argv[1]), 1;
    printf("%d seeds, %s changed copies of each\n[  PASSED  ] 1 test(s).\n", seeds, argv[2]); /* as cmocka reports */
    return 0;
}
