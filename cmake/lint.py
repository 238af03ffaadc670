#!/usr/bin/env python3
"""House rules that a program can check: python3 cmake/lint.py SOURCE_DIR BUILD/liblinnet.so [--symbols: those of the library and its objects alone]

Include order of the rooms, in the sources and in the objects, symbol prefixes, headers that compile alone, unique file names, layout of the text, calls that the library must not make,
links between pages, names that shared files have, lengths of functions and files.
Prints one line for each finding and ends with 1 when there is any."""
import concurrent.futures
import os
import re
import subprocess
import sys
from pathlib import Path

# A room may include itself and what has a smaller number. Rooms that share a number do not see each other.
RANK = {"core": 0, "simd": 0, "device": 1, "program": 2, "ops": 3, "recurrence": 4, "mixers": 5, "model": 6, "hub": 7,
        "eval": 8, "generate": 8, "train": 9, "tasks": 10, "bench": 10, "serve": 10}
# simd/ stands on core/; a task measures with what bench/ has.
ALSO = {("simd", "core"), ("tasks", "bench")}

# Calls that only cli/ may make, and the files of src/ that have a reason.
FORBIDDEN = re.compile(r"(?<![\w>.])(printf|puts|putchar|vprintf|fprintf|vfprintf|perror|exit|_exit|abort|assert|getenv|system)\s*\(")
ALLOWED = {
    ("src/core/cpu.c", "getenv"),        # LINNET_CPU
    ("src/device/context.c", "getenv"),  # LINNET_VERBOSE
    ("src/device/block_clock_cuda.cu", "getenv"),  # LINNET_BLOCK_CLOCK, in builds for that alone
}
# fprintf to a memory stream or a file that the caller named is no printing.
PRINTS_TO_FILES = re.compile(r"\b(fprintf|vfprintf)\s*\(\s*(?!stderr|stdout)")

# Allocators and which of their arguments are bytes (core/memory.h, device/device.h, program/program.h, ops/gemm.c; the system's in cli/).
ALLOCATORS = {"lnt_alloc": (0,), "lnt_calloc": (0,), "lnt_realloc": (1, 2), "lnt_arena_alloc": (1,), "lnt_device_alloc": (1,), "lnt_program_alloc": (1,),
              "buffer_of": (1,), "malloc": (0,), "realloc": (1,), "aligned_alloc": (1,)}
SYSTEM_ALLOCATORS = re.compile(r"(?<![\w>.])(malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|alloca|strn?dup|asprintf|getline|getdelim)\s*\(")
MAKES_SIZES = {Path("src/core/memory.c"), Path("src/core/memory.h")}
CONSTANT = r"(?:\d\w*|[A-Z][A-Z0-9_]+|sizeof\b(?: ?\*?[\w.>\[\]-]+|\([^()]*\)))"

# Functions that follow the locale of the host program; core/number.h has what does not. The command line sets LC_CTYPE alone.
LOCALE = re.compile(r"(?<![\w>.])(v?sn?printf_l|vs?n?printf|vfprintf|strto(?:f|d|ld)|ato[fil]|setlocale|localeconv|alphasort|strcoll|strxfrm|str(?:n)?casecmp"
                    r"|is(?:alpha|digit|space|alnum|upper|lower|punct|print)|to(?:lower|upper)|strftime)\s*\(")
REAL = re.compile(r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*)?)?[lL]?[aefgAEFG]")

# Shared files that may name one operator or mixer all the same: the beginning of a path, the name, the reason.
MAY_NAME = [
    ("src/mixers/mesa_rule.h", "mesa", "the keys of the operator's node, for the two mixers that have them"),
    ("src/mixers/attention_rule.h", "attention", "the layer with its keys, for the mixers that have it"),
    ("src/tasks/mesa_", "mesa", "the files of one task, a look inside mesa layers"),
    ("src/tasks/local_global.c", "attention", "its measure is by definition over windows of softmax attention"),
    ("cli/args.h", "gated_deltanet", "the command line's kind of layer where none is named"),
    ("cli/shared_args.c", "attention", "a pattern's model is named after its first kind of layer that is not attention"),
]

# Symbols of one CPU variant: an architecture has others, so that lists of them are made where all stand.
VARIANT = re.compile(r"(?<![\w>.])lnt_\w+_(avx2|avx512|amx|neon)\b")
KNOWS_VARIANTS = Path("src/simd/variant.h")

# A parallel region is one loop whose pieces wait for nobody: what src/core/team.c can have run by a caller's threads one after another.
OMP = re.compile(r"(?:#[ \t]*pragma|_Pragma\(\"|PRAGMA\()[ \t]*omp[ \t]+([^\n]*)")
OTHER_LOOP = re.compile(r"\bordered\b|\bschedule\((?!static|dynamic)")

# Files whose comments may cite a section of docs/operators.md.
CITES = {".c", ".h", ".cu", ".cuh", ".py"}
CITES_WRONGLY = {"lint.py", "test_lint.py"}  # on purpose

SAME_NAME_OK = {"README.md", "CMakeLists.txt", "__init__.py", "__init__.pyi"}
LONGEST_LINE, LONGEST_FUNCTION, LONGEST_FILE = 150, 100, 700

findings = []


def finding(where, what):
    findings.append(f"{where}: {what}")


def without_comments(text):
    """The text with comments and the inside of string literals blanked out; line numbers stay."""
    def blank(m):
        return re.sub(r"[^\n]", " ", m.group(0)) if m.group(0)[0] == "/" else '"' + " " * (len(m.group(0)) - 2) + '"'
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", blank, text, flags=re.S)


def room_of(path):
    return path.parts[1] if path.parts[0] == "src" and len(path.parts) > 2 else path.parts[0]


def may_use(room, target):
    return room == target or RANK[target] < RANK[room] or (room, target) in ALSO


def check_include(path, line, name):
    room, target = room_of(path), name.split("/")[0]
    where = f"{path}:{line}"
    if path.parts[0] == "cli":
        if not name.startswith("linnet/") and "/" in name:
            finding(where, f'cli/ includes "{name}"; it may include only linnet/*.h and its own headers')
    elif path.parts[0] == "include":
        if target != "linnet":
            finding(where, f'a public header includes "{name}"')
    elif path.parts[0] == "src" and target in RANK and "/" in name and target != room:
        if room not in RANK:
            finding(where, f"room {room}/ has no place in the order; add it to cmake/lint.py")
        elif not may_use(room, target):
            finding(where, f'{room}/ includes "{name}", but {target}/ does not stand below {room}/ (docs/house-rules.md)')
    elif path.parts[0] == "src" and target == "cli":
        finding(where, f'the library includes "{name}" of the command line')


def check_text(root, path):
    text = (root / path).read_text(encoding="utf-8", errors="surrogateescape")
    for i, line in enumerate(text.split("\n"), 1):
        if "\t" in line:
            finding(f"{path}:{i}", "tab")
        if line != line.rstrip():
            finding(f"{path}:{i}", "blanks at the end of the line")
        if len(line) > LONGEST_LINE:
            finding(f"{path}:{i}", f"{len(line)} characters, at most {LONGEST_LINE}")
    for m in re.finditer(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', text, flags=re.M):
        check_include(path, text.count("\n", 0, m.start()) + 1, m.group(1))
    if path.suffix != ".def":
        check_lengths(path, text)
    code = without_comments(text)
    if path.parts[0] in ("src", "cli") and path != Path("src/core/number.c"):
        check_locale(path, text, code)
    if path.parts[0] == "cli":
        check_sizes(path, re.sub(r"\b2 \* \*?[\w>-]+ \+ ", "", code))  # what lies in memory, doubled, fits
    if path.parts[0] != "src":
        return
    if path not in MAKES_SIZES:
        check_sizes(path, code)
        for m in SYSTEM_ALLOCATORS.finditer(code):
            finding(f"{path}:{code.count(chr(10), 0, m.start()) + 1}", f"calls {m.group(1)}(); memory comes from core/memory.h")
    if path.suffix in (".cu", ".cuh"):
        check_cuda(path, text, code)
    elif re.search(r'#[ \t]*include[ \t]+[<"](cu\w+\.h|.*\.cuh)[>"]', text):
        finding(path, "includes a header of CUDA; only .cu files do")
    check_regions(path, text)
    for m in VARIANT.finditer(code) if path != KNOWS_VARIANTS else ():
        where = f"{path}:{code.count(chr(10), 0, m.start()) + 1}"
        finding(where, f"{m.group(0)} is no symbol of every architecture: LNT_VARIANTS, LNT_FLOAT_VARIANTS and LNT_PICK know which there are (simd/variant.h)")
    for m in FORBIDDEN.finditer(code):
        if (str(path), m.group(1)) in ALLOWED or PRINTS_TO_FILES.match(code, m.start()):
            continue
        if m.group(1) == "assert" and code[max(0, m.start() - 8):m.start()].endswith("static_"):
            continue
        finding(f"{path}:{code.count(chr(10), 0, m.start()) + 1}", f"calls {m.group(1)}(); the library neither prints, exits nor reads the environment")


def check_regions(path, text):
    """Every parallel region is a loop, or has one that its threads leave without waiting."""
    open_region = None
    for m in OMP.finditer(text):
        words, where = " ".join(m.group(1).split()), f"{path}:{text.count(chr(10), 0, m.start()) + 1}"
        if words.startswith("simd"):
            continue
        if OTHER_LOOP.search(words) or not re.match(r"(parallel|for)\b", words):
            finding(where, f"omp {words.split()[0]}: a parallel region is one loop, static or dynamic (src/core/team.c)")
        elif words.startswith("for"):
            if not open_region or "nowait" not in words:
                finding(where, "a loop inside a parallel region is its only one, and ends with nowait (src/core/team.c)")
            open_region = False
        else:
            open_region = not words.startswith("parallel for")


def split_arguments(text):
    """What stands between the commas of an argument list; `text` begins behind its opening parenthesis."""
    parts, depth, start = [], 0, 0
    for i, ch in enumerate(text):
        if ch in ",);" and depth == 0:
            parts.append(text[start:i])
            start = i + 1
            if ch != ",":
                return parts
        depth += (ch in "([{") - (ch in ")]}")
    return parts + [text[start:]]


def unchecked(expression):
    """Whether a size is made by a product, or by a sum of counts that is cast to a size, that nothing checks. Sums of what lies in memory fit."""
    while True:
        fewer = re.sub(CONSTANT + r" \* " + CONSTANT, "1", expression)
        if fewer == expression:
            break
        expression = fewer
    sums = re.findall(r"\((?:size_t|int64_t)\)\(([^()]*?) \+ ([^()]*)\)", expression)
    return " * " in expression or any(not re.fullmatch(CONSTANT, a) and not re.fullmatch(CONSTANT, b) for a, b in sums)


def check_sizes(path, code):
    """Sizes that reach an allocator are made by lnt_bytes and lnt_bytes_plus, in the call or in the function's variable that the call names."""
    for m in re.finditer(r"(?<![\w>.])(" + "|".join(ALLOCATORS) + r")\(", code):
        arguments = split_arguments(code[m.end():])
        body = code[max(0, code.rfind("\n{", 0, m.start())):m.start()]
        for i in ALLOCATORS[m.group(1)]:
            size = arguments[i].strip() if i < len(arguments) else ""
            made = [size]
            if re.fullmatch(r"\w+", size):
                made += [split_arguments(body[a.end():])[0] for a in re.finditer(r"\b" + size + r" = ", body)]
            if any(unchecked(" ".join(x.split())) for x in made):
                where = f"{path}:{code.count(chr(10), 0, m.start()) + 1}"
                finding(where, f"{m.group(1)} of a product or sum that nothing checks: {size}; lnt_bytes and lnt_bytes_plus do (core/memory.h)")


def listed(root, path):
    return re.findall(r"^X\((\w+)\)", (root / path).read_text(), flags=re.M)


def core_folders(root):
    """Folders of src/recurrence whose files describe an operator; what else stands there, chunk/ too, is shared."""
    return {p.parent.name for p in (root / "src/recurrence").glob("*/*.c") if re.search(r"\blnt_recur_op lnt_recur_", p.read_text())}


def is_shared(path, cores, mixers):
    """Whether a file belongs to no one operator, mixer or foreign architecture."""
    own = (path.parts[:2] == ("src", "recurrence") and path.parts[2] in cores) or path.parts[:3] == ("src", "hub", "archs") or \
        (path.parts[:2] == ("src", "mixers") and path.stem in mixers)
    return path.parts[0] in ("src", "cli", "include") and path.suffix != ".def" and not own


def check_shared(root, sources):
    """A mixer, an operator and a foreign architecture are their own files and their lines: no shared file has the name of a mixer or an operator in
    quotes or as an identifier (NAME, lnt_NAME..., lnt_recur_NAME), or includes a header of a core's folder."""
    cores, mixers, operators = core_folders(root), listed(root, "src/mixers/mixers.def"), listed(root, "src/recurrence/operators.def")
    either = lambda names: "|".join(sorted(set(names), key=len, reverse=True))
    quoted = re.compile(r'"(' + either(mixers + operators) + r')"')
    begun, whole = r"(?<![\w.>])lnt_(?:recur_)?(" + either(operators) + r")(?:_\w+)?\b", r"(?<![\w.>])(" + either(operators) + r")\b"
    identifier = re.compile(begun + "|" + whole, re.I)
    header = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"recurrence/(' + either(cores) + r')/', flags=re.M)
    for path in (p for p in sources if is_shared(p, cores, mixers)):
        allowed = {name for place, name, _ in MAY_NAME if str(path).startswith(place)}
        text = (root / path).read_text(encoding="utf-8", errors="surrogateescape")
        plain = re.sub(r"/\*.*?\*/|//[^\n]*", lambda c: re.sub(r"[^\n]", " ", c.group(0)), text, flags=re.S)
        for kind, found in (("has the name of", quoted.finditer(plain)), ("has the name of", identifier.finditer(without_comments(text))),
                            ("includes a header of", header.finditer(text))):
            for m in found:
                name = next(g for g in m.groups() if g).lower()
                if name not in allowed:
                    where = f"{path}:{text.count(chr(10), 0, m.start()) + 1}"
                    finding(where, f"{kind} {name}; a shared file knows none (docs/house-rules.md, MAY_NAME in cmake/lint.py)")


def check_locale(path, text, code):
    """Numbers of floating type are written and read by core/number.h."""
    line = lambda at: code.count("\n", 0, at) + 1
    for m in LOCALE.finditer(code):
        if not (path.parts[0] == "cli" and (m.group(1) != "setlocale" or code[m.end():].startswith("LC_CTYPE"))):
            finding(f"{path}:{line(m.start())}", f"calls {m.group(1)}(), which follows the locale; see core/number.h")
    for m in re.finditer(r"\b(?:snprintf|sprintf|fprintf)\s*\(", code):
        if path.parts[0] != "cli" and REAL.search("".join(re.findall(r'"((?:\\.|[^"\\])*)"', text[m.end():text.find(";", m.end())])).replace("%%", "")):
            finding(f"{path}:{line(m.start())}", "writes a number of floating type as the locale has it; lnt_format does not (core/number.h)")


def check_cuda(path, text, code):
    """A .cu file begins with device/cuda.cuh, and what it gives to C begins with lnt_ (also checked on the objects, where they were built)."""
    first = re.search(r'^[ \t]*#[ \t]*include[ \t]+(\S+)', text, flags=re.M)
    if path.suffix == ".cu" and (not first or not first.group(1).endswith('.cuh"')):
        finding(path, "does not include device/cuda.cuh (or a .cuh of its own) first")
    for m in re.finditer(r'^extern "C?[ ]*"[^\n{;=]*?\b(\w+)\s*[(=\[]', code, flags=re.M):
        if not m.group(1).startswith(("lnt_", "linnet_")):
            finding(f"{path}:{code.count(chr(10), 0, m.start()) + 1}", f'extern "C" {m.group(1)} must begin with lnt_')


def check_names(root, files):
    seen = {}
    for path in files:
        # a public header may be named like its room; goldens are folders as others make them
        if path.name in SAME_NAME_OK or not path.suffix or path.parts[0] == "include" or path.parts[:2] == ("tests", "goldens"):
            continue
        if path.name in seen:
            finding(path, f"has the name of {seen[path.name]}; file names are unique in the tree")
        seen.setdefault(path.name, path)


def anchors(text):
    """What a link can name in a Markdown page: its headings in small letters, blanks as dashes, without punctuation."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in re.findall(r"^#+ +(.+)$", text, flags=re.M)}


def functions(text):
    """(first line, lines, head) of every function that the text defines, by its braces outside comments, literals and directives."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    code = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", blank, text, flags=re.S)
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, code, flags=re.M)
    open_braces, start, found = [], 0, []
    for m in re.finditer(r"[{};]", code):
        outside = "inner" not in open_braces
        if m.group(0) == "{":
            head = code[start:m.start()]
            flat, before = head, None
            while flat != before:
                before, flat = flat, re.sub(r"<[^<>()]*>", " ", re.sub(r"\([^()]*\)", "\x01", flat))
            if outside and re.search(r"\b(namespace|struct|union|class|enum)\b[^\x01]*$|^\s*extern\s*$", flat):
                open_braces.append("outer")  # what may hold functions
                start = m.end()
                continue
            if outside and "\x01" in flat and "=" not in flat:
                found.append([start + len(head) - len(head.lstrip()), None, " ".join(head.split())])
            open_braces.append("inner")
        elif m.group(0) == "}":
            if open_braces:
                open_braces.pop()
            if found and found[-1][1] is None and "inner" not in open_braces:
                found[-1][1] = m.end()
        if "inner" not in open_braces:
            start = m.end()
    line = lambda at: code.count("\n", 0, at) + 1
    return [(line(a), line(b) - line(a) + 1, head) for a, b, head in found if b]


def check_lengths(path, text):
    """A long function says why in the comment in front of it, a long file in its first one, in a sentence that begins with "Long:"."""
    comment = re.match(r"\s*(/\*.*?\*/)", text, flags=re.S)
    if text.count("\n") > LONGEST_FILE and not (comment and re.search(r"\bLong: \w", comment.group(1))):
        finding(path, f"{text.count(chr(10))} lines, at most {LONGEST_FILE} without a reason in the first comment (Long: ...)")
    lines = text.split("\n")
    for first, count, head in functions(text):
        above = "\n".join(lines[:first - 1]).rstrip()
        comment = re.search(r"/\*(?:(?!\*/).)*\*/$", above, flags=re.S)
        if count > LONGEST_FUNCTION and not (comment and re.search(r"\bLong: \w", comment.group(0))):
            finding(f"{path}:{first}", f"a function of {count} lines, at most {LONGEST_FUNCTION} without a reason above (Long: ...): {head[:60]}")


def check_links(root, files):
    """Pages link to files and headings that exist; comments that cite operators.md name a section of it."""
    for path in files:
        text = (root / path).read_text(encoding="utf-8", errors="surrogateescape") if path.suffix in CITES or path.suffix == ".md" else ""
        for m in re.finditer(r"\]\(([^()\s]+)\)", text if path.suffix == ".md" else ""):
            where, target = f"{path}:{text.count(chr(10), 0, m.start()) + 1}", m.group(1)
            page, _, anchor = target.partition("#")
            at = (root / path.parent / page) if page else root / path
            if re.match(r"[a-z]+:", target):
                continue
            if not at.exists():
                finding(where, f"links to {page}, which is not there")
            elif anchor and at.suffix == ".md" and anchor not in anchors(at.read_text()):
                finding(where, f"links to {target}, which has no such heading")
        for m in re.finditer(r"\boperators\.md((?:,? ?#[\w-]+)*)", text if path.suffix in CITES and path.name not in CITES_WRONGLY else ""):
            where = f"{path}:{text.count(chr(10), 0, m.start()) + 1}"
            named = re.findall(r"#([\w-]+)", m.group(1))
            if not named and "docs/" not in text[max(0, m.start() - 5):m.start()]:
                finding(where, "cites operators.md without a section: operators.md#delta")
            for name in set(named) - anchors((root / "docs/operators.md").read_text()):
                finding(where, f"cites operators.md#{name}, which has no such heading")


def check_header(root, path):
    """Compile a header alone; those of kernels are compiled for a variant, here the base."""
    command = ["gcc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-Wno-unused-function", "-Wno-missing-field-initializers",
               "-D_GNU_SOURCE", "-fopenmp", "-DLNT_VARIANT=base", "-DLNT_VARIANT_base=1", "-Iinclude", "-Isrc", "-Icli", "-x", "c", "-include", str(path), "/dev/null"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        finding(path, "does not compile alone: " + " ".join(done.stderr.split("\n")[0:2]))


def symbols(files, *flags):
    """Global symbols that the files define."""
    done = subprocess.run(["nm", "--defined-only", *flags, *map(str, files)], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[1].isupper():
            yield parts[2].split("@")[0]


def calls(objects):
    """What check_calls looks at, of object files."""
    files = {}
    done = subprocess.run(["nm", "-A", "-P", *map(str, objects)], capture_output=True, text=True) if objects else None
    for line in done.stdout.splitlines() if done else []:
        path, _, symbol = line.partition(".o: ")
        name, kind = symbol.split()[:2]
        place = files.setdefault(str(Path("src", path.split(".dir/src/")[1])), (set(), set()))
        place[kind in "Uvw"].add(name) if kind.isupper() else None
    return files


def check_calls(files):
    """What each file of src/ defines and what it takes from others, {path: (defined, taken)}: nothing from a room that it may not include. A declaration
    written by hand is not seen in the includes."""
    place = {name: path for path, (defined, _) in files.items() for name in defined}
    for path, (_, taken) in files.items():
        for name in sorted(taken):
            at = place.get(name)
            if at and not may_use(path.split("/")[1], at.split("/")[1]):
                finding(path, f"calls {name} of {at}: {at.split('/')[1]}/ does not stand below {path.split('/')[1]}/")


def check_symbols(library):
    exported = {name for name in symbols([library], "-D") if not re.fullmatch(r"LINNET_\d+\.\d+", name)}  # but the versions of the map
    declared = set()
    for header in Path("include/linnet").glob("*.h"):
        declared |= set(re.findall(r"\b(linnet_\w+)\s*\(", without_comments(header.read_text())))
    for name in sorted(exported):
        # a sanitizer's or the toolchain's own begin with an underscore
        if not name.startswith("linnet_") and not name.startswith("_"):
            finding(library.name, f"exports {name}; only linnet_* leaves the library")
        elif name.startswith("linnet_") and name not in declared:
            finding(library.name, f"exports {name}, which no header in include/linnet declares")
    objects = list((library.parent / "CMakeFiles").glob("linnet_*.dir/src/**/*.o"))
    if not objects:
        finding(library.parent, "no object files of the library there")
    known = set(re.findall(r"\b(?:GOMP|omp)_\w+", Path("cmake/Team.cmake").read_text())) | {"omp_get_max_threads", "omp_set_num_threads"}
    done = subprocess.run(["nm", "--undefined-only", *map(str, objects)], capture_output=True, text=True) if objects else None
    for name in sorted(set(re.findall(r"\b(?:GOMP|omp|__kmpc)_\w+", done.stdout if done else "")) - known):
        finding("objects", f"{name} is called, which src/core/team.c does not know")
    check_calls(calls(objects))
    for name in sorted(set(symbols(objects))) if objects else []:
        if not name.startswith(("lnt_", "linnet_", "_")):
            finding("objects", f"symbol {name} between files must begin with lnt_ (or be static)")


def check_tree(root, files):
    """What can be said of files without a compiler. Returns the sources among them."""
    sources = [p for p in files if p.suffix in (".c", ".h", ".cu", ".cuh", ".def") and p.parts[0] in ("src", "include", "cli", "tests")]
    for path in sources:
        check_text(root, path)
    check_names(root, files)
    check_shared(root, sources)
    check_links(root, files)
    return sources


def report(what):
    for f in sorted(findings):
        print(f)
    print(f"{what}, {len(findings)} findings")
    return 1 if findings else 0


def main():
    root, library = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    os.chdir(root)
    if sys.argv[3:] == ["--symbols"]:
        check_symbols(library)
        return report("lint: symbols")
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True)
    names = listed.stdout.splitlines() if listed.returncode == 0 else \
        [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and not p.relative_to(root).parts[0].startswith(("build", ".git", "demo"))]
    files = sorted(Path(n) for n in set(names) if (root / n).is_file())
    sources = check_tree(root, files)
    headers = [p for p in sources if p.suffix == ".h" and p.parts[0] in ("src", "include", "cli")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda p: check_header(root, p), headers))
    check_symbols(library)
    return report(f"lint: {len(sources)} sources, {len(headers)} headers")


if __name__ == "__main__":
    sys.exit(main())
