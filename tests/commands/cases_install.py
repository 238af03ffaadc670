"""Installing below a prefix that moves afterwards; programs, pages and completion that are found there; linnet inside another project."""
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import harness
from harness import SOURCE, Skip, case

INSIDE = """cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
add_subdirectory(%s linnet)
add_executable(user user.c)
target_link_libraries(user PRIVATE linnet::linnet)
if(TARGET lint OR TARGET linnet_cli OR CMAKE_BUILD_TYPE)
  message(FATAL_ERROR "linnet brings more than its library")
endif()
"""
# What each example prints when all is well; train_loop wants a text and a folder.
SAYS = {"operator": "along dbeta", "stream": "-- or --", "fork": "the same bits", "threads": "the same texts", "train_loop": "step 60"}
QUIET = {"GOMP_SPINCOUNT": "10000", "OMP_NUM_THREADS": "2"}


def do(*words, **more):
    done = subprocess.run([str(w) for w in words], capture_output=True, encoding="utf-8", errors="replace", **more)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return done.stdout


def installed(folder):
    """A prefix that was moved after the installation, without what the build said of it."""
    build = Path(harness.LINNET).parent
    if not (build / "CMakeCache.txt").exists() or not shutil.which("cmake") or not shutil.which("pkg-config"):
        raise Skip("not beside its CMake build, or no cmake or pkg-config here")
    do("cmake", "--install", build, "--prefix", folder / "first")
    (folder / "first").rename(folder / "moved")
    return folder / "moved"


def examples_run(programs, folder, names=SAYS):
    """Every example runs; `programs` has the path of each. train_loop, which takes a while, when it is named."""
    text = folder / "text.txt"
    text.write_text("".join(f"{i} linnets sang {i * i % 97} songs\n" for i in range(300)))
    for name in names:
        words = [text, folder / "trained"] if name == "train_loop" else []
        assert SAYS[name] in do(programs[name], *words, env={**os.environ, **QUIET}, timeout=300), name


@case("installed below any prefix and moved: the command runs, every example builds by pkg-config, shared and static, and runs")
def installs(folder):
    prefix = installed(folder)
    version = do(prefix / "bin/linnet", "--version").split()[-1]
    package = next(prefix.rglob("linnet.pc"))
    env = {**os.environ, "PKG_CONFIG_PATH": str(package.parent)}
    libraries = package.parent.parent
    assert do("pkg-config", "--modversion", "linnet", env=env).strip() == version
    for static in (False, True):
        flags = do("pkg-config", "--cflags", "--libs", *(["--static"] if static else []), "linnet", env=env).split()
        if static:  # the archive, not the shared library beside it
            flags = [str(libraries / "liblinnet.a") if f == "-llinnet" else f for f in flags]
        assert str(folder / "first") not in " ".join(flags), flags
        programs = {}
        for name in SAYS:
            source = SOURCE / "examples" / (name + (".cpp" if name == "threads" else ".c"))
            compiler = ["c++", "-std=c++17"] if source.suffix == ".cpp" else ["cc", "-std=c11"]
            if not shutil.which(compiler[0]):
                raise Skip(f"no {compiler[0]}")
            programs[name] = folder / f"{name}-{'static' if static else 'shared'}"
            do(*compiler, "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", source, "-o", programs[name], *flags, "-lm", "-pthread",
               *([] if static else [f"-Wl,-rpath,{libraries}"]))
        needs = do("readelf", "-d", programs["stream"])
        assert ("liblinnet.so" in needs) != static
        examples_run(programs, folder, [n for n in SAYS if static or n != "train_loop"])


@case("every example builds by find_package, shared and static, and runs")
def found(folder):
    prefix = installed(folder)
    for static in ("OFF", "ON"):
        build = folder / f"build-{static}"
        do("cmake", "-S", SOURCE / "examples", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DLINNET_STATIC={static}")
        do("cmake", "--build", build, "-j", "2")
        examples_run({n: build / n for n in SAYS}, folder, [n for n in SAYS if n != "train_loop"])


@case("inside another project (add_subdirectory) linnet is its library alone")
def inside(folder):
    if not shutil.which("cmake"):
        raise Skip("no cmake here")
    (folder / "user.c").write_text("int main(void) { return 0; }\n")
    (folder / "CMakeLists.txt").write_text(INSIDE % SOURCE)
    do("cmake", "-S", folder, "-B", folder / "build")


@case("every example builds with linnet's sources inside (add_subdirectory), shared and static, without optimisation, and runs")
def built_inside(folder):
    if not shutil.which("cmake") or not shutil.which("ninja"):
        raise Skip("no cmake or no ninja here")
    env = {**os.environ, **({"CMAKE_C_COMPILER_LAUNCHER": "ccache"} if shutil.which("ccache") else {})}
    for static in ("OFF", "ON"):  # the same library, linked another way; base alone, since clang's check sees of every variant what -O0 would
        do("cmake", "-S", SOURCE / "examples", "-B", folder / "build", "-G", "Ninja", f"-DLINNET_SOURCES={SOURCE}", "-DCMAKE_BUILD_TYPE=Debug",
           f"-DLINNET_STATIC={static}", "-DLINNET_CPU_VARIANTS=base", env=env)
        do("ninja", "-C", folder / "build", *SAYS, env=env)
        assert not (folder / "build/linnet/linnet").exists()  # the command is not built
        examples_run({n: folder / "build" / n for n in SAYS}, folder, [n for n in SAYS if n != "train_loop"])


@case("man pages: one for each command and each part of one, every flag in it, and man reads them without a word")
def man_pages(folder):
    prefix = installed(folder)
    pages = {p.stem for p in (prefix / "share/man/man1").glob("*.1")}
    wanted = {"linnet"}
    for c in map(json.loads, do(harness.LINNET, "--help=json").splitlines()):
        for part in ["", *(p["name"] for p in c["parts"])]:
            words = [c["command"], *([part] if part else [])]
            table = json.loads(do(harness.LINNET, *words, "--help=json"))
            assert table["command"] == " ".join(words) and table["flags"] or words == ["bench"], words
            name = "linnet-" + "-".join(words)
            wanted.add(name)
            text = (prefix / f"share/man/man1/{name}.1").read_text()
            assert text.startswith(f'.TH "{name.upper()}" 1')
            for flag in table["flags"]:
                assert "\\fB\\-\\-" + flag["flag"].replace("-", "\\-") + "\\fR" in text, (name, flag["flag"])
                assert f"--{flag['flag']}" in do(harness.LINNET, *words, "--help")
    assert pages == wanted, pages ^ wanted
    if not shutil.which("man"):
        raise Skip("no man here: the pages are not read")
    for page in sorted((prefix / "share/man/man1").glob("*.1")):
        done = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True, env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
        assert done.returncode == 0 and not done.stderr, (page, done.stderr)
        assert "SYNOPSIS" in done.stdout and "\\" not in re.sub(r'\\"', "", done.stdout), (page, done.stdout)


def completes(script, line, folder):
    """What bash offers behind a line."""
    words = line.split(" ")
    program = f"""source {script}
COMP_WORDS=({' '.join("'" + w + "'" for w in words)}) COMP_CWORD={len(words) - 1}
_linnet
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return do("bash", "--norc", "-c", program, cwd=folder).split()


@case("completion: bash offers commands, parts, flags, words and files; zsh and fish read theirs")
def completion(folder):
    prefix = installed(folder)
    script = prefix / "share/bash-completion/completions/linnet"
    (folder / "here").mkdir()
    (folder / "here/book.txt").write_text("x")
    (folder / "here/shelf").mkdir()
    commands = [json.loads(line)["command"] for line in do(harness.LINNET, "--help=json").splitlines()]
    offers = {line: completes(script, line, folder / "here") for line in
              ("linnet ", "linnet tr", "linnet train --mi", "linnet train --mixer gated_d", "linnet train --preset ", "linnet train ", "linnet train --out ",
               "linnet bench ", "linnet bench op --dty", "linnet bench op --dtype ", "linnet task mqar --protocol ", "linnet train --device = c",
               "linnet mixers mesa", "linnet train --recompute ", "linnet help ge", "linnet nothing --")}
    assert set(commands) <= set(offers["linnet "]) and offers["linnet tr"] == ["train"]
    assert set(offers["linnet train --mi"]) == {"--mixer", "--minutes", "--min-learning-rate-share"}, offers
    assert offers["linnet train --mixer gated_d"] == ["gated_deltanet", "gated_deltaproduct"] and "nano" in offers["linnet train --preset "]
    assert sorted(offers["linnet train "]) == ["book.txt", "shelf"] and offers["linnet train --out "] == ["shelf"]
    assert set(offers["linnet bench "]) == {"op", "train", "decode", "machine", "--help"} and offers["linnet bench op --dty"] == ["--dtype"]
    assert "bf16" in offers["linnet bench op --dtype "] and offers["linnet task mqar --protocol "] == ["short", "paper"]
    assert set(offers["linnet train --device = c"]) == {"cpu", "cuda"} and offers["linnet mixers mesa"] == ["mesa_net"]
    assert "cheap" in offers["linnet train --recompute "] and offers["linnet help ge"] == ["generate"] and offers["linnet nothing --"] == []
    left = [shell for shell in ("zsh", "fish") if not shutil.which(shell)]
    if "zsh" not in left:
        do("zsh", "-n", prefix / "share/zsh/site-functions/_linnet")
    if "fish" not in left:
        script = prefix / "share/fish/vendor_completions.d/linnet.fish"
        offered = do("fish", "--no-config", "-c", f"source {script}; complete -C 'linnet train --mixer gated_d'; complete -C 'linnet ben'", cwd=folder / "here")
        assert "gated_deltanet" in offered and "bench" in offered, offered
    if left:
        raise Skip(f"bash's is right; not here: {' and '.join(left)}")
