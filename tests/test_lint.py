"""The rules of cmake/lint.py, each on a line that breaks it and on one that does not: test_lint.py SOURCE_DIR

A small tree of its own is linted, without a library (names of symbols) and without a compiler (headers alone)."""
import sys
import tempfile
from pathlib import Path

SOURCE = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(SOURCE / "cmake"))
import lint  # noqa: E402

LONG = "".join(f"    x += {i};\n" for i in range(101))
CUDA = '#include "device/cuda.cuh"\n'

# What a tree has in any case.
TREE = {
    "src/mixers/mixers.def": "X(soft)\n",
    "src/recurrence/operators.def": "X(decaying)\nX(scanning)\n",
    "src/recurrence/fade/fade.c": '/* Its own. */\nconst lnt_recur_op lnt_recur_decaying = { .name = "decaying" };\n',
    "src/recurrence/fade/fade.h": "/* Of the core. */\n",
    "src/mixers/soft.c": '/* Its own. */\nstatic const char *name = "soft", *rule = "decaying";\n',
    "src/hub/archs/arch_soft.c": 'static const char *names[] = { "soft", "decaying" };\n',
    "docs/operators.md": "# Operators\n\n## Fading away\n\n### In chunks, backwards\n",
}
# What objects define and take from others, as lint.calls reads it.
CALLS = {
    "src/core/up.c": ({"lnt_low"}, {"lnt_high", "memcpy"}),
    "src/model/down.c": ({"lnt_high"}, {"lnt_low", "lnt_beside"}),
    "src/model/beside.c": ({"lnt_beside"}, set()),
}
# path, its text, what is said of it (None: nothing)
CASES = [
    ("src/core/tab.c", "int\tx;\n", "tab"),
    ("src/core/blank.c", "int x; \n", "blanks at the end"),
    ("src/core/wide.c", "/* " + "x" * 150 + " */\n", "at most 150"),
    ("src/core/order.c", '#include "model/model.h"\n', "does not stand below core/"),
    ("src/model/order_ok.c", '#include "core/status.h"\n', None),
    ("src/core/up.c", "", "calls lnt_high of src/model/down.c"),
    ("src/model/down.c", "", None),
    ("cli/inner.c", '#include "core/status.h"\n', "only linnet/*.h"),
    ("src/core/prints.c", 'void f(void) { printf("x"); }\n', "calls printf()"),
    ("src/core/prints_ok.c", 'void f(FILE *f) { fprintf(f, "x"); } /* printf( */\n', None),
    ("src/core/sizes.c", "void f(int n) {\n    p = lnt_alloc(n * 4);\n}\n", "that nothing checks"),
    ("src/core/sizes_ok.c", "void f(int n) {\n    p = lnt_alloc(lnt_bytes(n, 4));\n}\n", None),
    ("src/hub/wrapped.c", "void f(int n) {\n    p = lnt_program_alloc(q, (size_t)n * sizeof *p);\n}\n", "that nothing checks"),
    ("src/serve/named.c", "void f(int n)\n{\n    const size_t bytes = n * sizeof(int);\n    p = lnt_calloc(bytes);\n}\n", "that nothing checks"),
    ("src/generate/letter.c", "void f(int V) {\n    p = lnt_alloc((size_t)V * sizeof *p);\n}\n", "that nothing checks"),
    ("src/tasks/system.c", "void f(size_t n) { p = malloc(n); }\n", "calls malloc()"),
    ("src/tasks/system_ok.c", "void f(struct s *o) { p = o->malloc(7); } /* malloc(n) */\n", None),
    ("cli/sizes_too.c", "void f(size_t n) {\n    p = malloc(n * sizeof *p);\n}\n", "that nothing checks"),
    ("cli/doubled.c", "void f(size_t n) {\n    p = realloc(p, 2 * n + 64);\n}\n", None),
    ("src/core/locale.c", 'double f(const char *s) { return strtod(s, 0); }\n', "follows the locale"),
    ("src/core/real.c", 'void f(char *s) { snprintf(s, 9, "%g", 1.0); }\n', "a number of floating type"),
    ("src/device/first.cu", '#include <math.h>\n' + CUDA, "cuda.cuh"),
    ("src/device/exports.cu", CUDA + 'extern "C" void shout(int x)\n{\n}\n', "must begin with lnt_"),
    ("src/device/exports_ok.cu", CUDA + 'extern "C" void lnt_shout(int x)\n{\n}\n', None),
    ("src/ops/variant.c", "void *f(void) { return &lnt_product_avx2; } /* lnt_product_amx */\n", "lnt_product_avx2 is no symbol of every architecture"),
    ("src/ops/variant_ok.c", 'void *f(void) { return LNT_PICK(lnt_product); } /* lnt_product_neon */\n', None),
    ("src/ops/region.c", "#pragma omp parallel num_threads(n)\n#pragma omp for\n", "ends with nowait"),
    ("src/ops/regions.c", "#pragma omp parallel\n#pragma omp for nowait\n#pragma omp for nowait\n", "its only one"),
    ("src/ops/barrier.c", "#pragma omp parallel\n#pragma omp barrier\n", "omp barrier: a parallel region is one loop"),
    ("src/ops/guided.c", "#pragma omp parallel for schedule(guided)\n", "static or dynamic"),
    ("src/ops/critical.h", "#define X PRAGMA(omp critical)\n", "omp critical"),
    ("src/ops/region_ok.c", "#pragma omp parallel num_threads(f(n)) reduction(max : m)\n#pragma omp for schedule(dynamic, 1) nowait\n#pragma omp simd\n"
                            "#pragma omp parallel for schedule(static) num_threads(f(g(n))) if (few(a, n))\n", None),
    ("src/ops/blank.c", "", "has the name of src/core/blank.c"),
    # names of one thing in files of all
    ("src/model/quoted.c", 'bool f(void) { return same("decaying"); }\n', "has the name of decaying"),
    ("src/model/quoted_mixer.c", 'bool f(void) { return same("soft"); }\n', "has the name of soft"),
    ("src/model/quoted_ok.c", 'bool f(void) { return same("decaying fast"); } /* "decaying" */\n', None),
    ("src/ops/identifier.c", "void f(void) { run(&lnt_recur_decaying); }\n", "has the name of decaying"),
    ("src/ops/prefixed.c", "void f(lnt_decaying_options *o) { }\n", "has the name of decaying"),
    ("src/program/bare.c", "void f(int decaying) { }\n", "has the name of decaying"),
    ("src/program/other_word.c", "void f(int scanning_line, struct s *p) { p->decaying = 1; }\n", None),
    ("cli/quoted.h", 'static const char *usual = "soft";\n', "has the name of soft"),
    ("src/tasks/header.c", '#include "recurrence/fade/fade.h"\n', "includes a header of fade"),
    ("src/tasks/header_ok.c", '#include "recurrence/recur_args.h"\n', None),
    ("src/recurrence/fade/own.c", '#include "recurrence/fade/fade.h"\nint decaying;\n', None),
    # lengths
    ("src/core/long.c", "int f(int x)\n{\n" + LONG + "    return x;\n}\n", "a function of 105 lines"),
    ("src/core/long_ok.c", "/* f.\n * Long: a sum. */\nint f(int x)\n{\n" + LONG + "    return x;\n}\n", None),
    ("src/core/long_far.c", "/* Long: not here. */\nint a;\nint f(int x)\n{\n" + LONG + "}\n", "a function of 104 lines"),
    ("src/core/long_many.c", "".join(f"int f{i}(void)\n{{\n    return '{{' + {i};\n}}\n" for i in range(100)), None),
    ("src/core/long_table.c", "static const int t[] = {\n" + "    1,\n" * 200 + "};\n", None),
    ("src/core/long_struct.h", "typedef struct {\n" + "    int (*f)(int x);\n" * 200 + "} table;\n", None),
    ("src/device/long_space.cu", CUDA + "namespace {\ntemplate <int N = 3> __global__ void f(int x)\n{\n" + LONG + "}\n}\n",
     "a function of 104 lines"),
    ("src/core/file.c", "int x;\n" * 701, "701 lines, at most 700"),
    ("src/core/file_ok.c", "/* All.\n * Long: they belong together. */\n" + "int x;\n" * 701, None),
    # pages and what cites them
    ("docs/page.md", "[a](operators.md#fading-away) [b](#here) [c](https://example.org/x)\n\n## Here\n", None),
    ("docs/no_page.md", "[a](nowhere.md)\n", "links to nowhere.md, which is not there"),
    ("docs/no_heading.md", "[a](operators.md#fading)\n", "which has no such heading"),
    ("src/ops/cites.c", "/* operators.md#fading-away, #in-chunks-backwards */\n", None),
    ("src/ops/cites_none.c", "/* operators.md 4 */\n", "without a section"),
    ("src/ops/cites_wrong.c", "/* operators.md#fading-away, #elsewhere */\n", "cites operators.md#elsewhere"),
]


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path, text in {**TREE, **{path: text for path, text, _ in CASES}}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        lint.check_calls(CALLS)
        lint.check_tree(root, sorted(p.relative_to(root) for p in root.rglob("*") if p.is_file()))
    wrong = []
    for path, _, said in CASES:
        of = [f for f in lint.findings if f.split(":")[0] == path]
        if (said is None) != (not of) or (said and not any(said in f for f in of)):
            wrong.append(f"{path}: expected {said!r}, found {of}")
    wrong += [f"not a case: {f}" for f in lint.findings if f.split(":")[0] not in {path for path, _, _ in CASES}]
    print("\n".join(wrong) or f"{len(CASES)} files as expected")
    print(f"[  {'FAILED' if wrong else 'PASSED'}  ] 1 test(s).")  # as cmocka says it, for tests/count_tests.py
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
