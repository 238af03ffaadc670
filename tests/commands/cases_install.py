"""Installing below a prefix that moves afterwards, and programs that find the library there."""
import os
import shutil
import subprocess
from pathlib import Path

import harness
from harness import SOURCE, Skip, case

PROGRAM = """#include <linnet/linnet.h>
#include <stdio.h>
int main(void)
{
    linnet_context *c;
    if (linnet_context_create(NULL, &c) != LINNET_OK) return 1;
    linnet_context_destroy(c);
    return puts(linnet_version()) < 0;
}
"""
FOUND = """cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(linnet 0.1 REQUIRED COMPONENTS static)
foreach(kind linnet static)
  add_executable(with_${kind} user.c)
  target_link_libraries(with_${kind} PRIVATE linnet::${kind})
endforeach()
"""
INSIDE = """cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
add_subdirectory(%s linnet)
add_executable(user user.c)
target_link_libraries(user PRIVATE linnet::linnet)
if(TARGET lint OR TARGET linnet_cli OR CMAKE_BUILD_TYPE)
  message(FATAL_ERROR "linnet brings more than its library")
endif()
"""


def do(*words, **more):
    done = subprocess.run([str(w) for w in words], capture_output=True, encoding="utf-8", errors="replace", **more)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return done.stdout


@case("installed below any prefix and moved: the command runs, programs build by pkg-config and find_package, shared and static")
def installs(folder):
    build = Path(harness.LINNET).parent
    if not (build / "CMakeCache.txt").exists() or not shutil.which("cmake") or not shutil.which("pkg-config"):
        raise Skip("not beside its CMake build, or no cmake or pkg-config here")
    do("cmake", "--install", build, "--prefix", folder / "first")
    prefix = folder / "moved"
    (folder / "first").rename(prefix)
    version = do(prefix / "bin/linnet", "--version").split()[-1]
    source = folder / "user"
    source.mkdir()
    (source / "user.c").write_text(PROGRAM)
    package = next(prefix.rglob("linnet.pc"))
    env = {**os.environ, "PKG_CONFIG_PATH": str(package.parent)}
    libraries = package.parent.parent
    for static in (False, True):
        flags = do("pkg-config", "--cflags", "--libs", *(["--static"] if static else []), "linnet", env=env).split()
        if static:  # the archive, not the shared library beside it
            flags = [str(libraries / "liblinnet.a") if f == "-llinnet" else f for f in flags]
        assert str(folder / "first") not in " ".join(flags), flags
        do("cc", source / "user.c", "-o", source / "user", *flags, *([] if static else [f"-Wl,-rpath,{libraries}"]))
        assert do(source / "user").strip() == version
    (source / "CMakeLists.txt").write_text(FOUND)
    do("cmake", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    do("cmake", "--build", source / "build")
    for kind in ("linnet", "static"):
        assert do(source / f"build/with_{kind}").strip() == version


@case("inside another project (add_subdirectory) linnet is its library alone")
def inside(folder):
    if not shutil.which("cmake"):
        raise Skip("no cmake here")
    (folder / "user.c").write_text(PROGRAM)
    (folder / "CMakeLists.txt").write_text(INSIDE % SOURCE)
    do("cmake", "-S", folder, "-B", folder / "build")
