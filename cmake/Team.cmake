# linnet_team(SHARED STATIC): the calls that GCC makes of linnet's parallel regions go to src/core/team.c, which knows of the caller's threads; those of
# other objects in the same program do not. In the shared library the linker does it (--wrap), in the archive the names are changed.
set(LINNET_TEAM_CALLS GOMP_parallel GOMP_loop_nonmonotonic_dynamic_start GOMP_loop_nonmonotonic_dynamic_next GOMP_loop_end_nowait
  omp_get_thread_num omp_get_num_threads)
# Only GCC's calls are known; compiled by another, linnet has no threads but OpenMP's and says so.
string(COMPARE EQUAL "${CMAKE_C_COMPILER_ID}" GNU LINNET_TEAM)
if(LINNET_TEAM)
  set_property(SOURCE src/core/team.c PROPERTY COMPILE_DEFINITIONS LNT_TEAM)
endif()

function(linnet_team shared static)
  if(NOT LINNET_TEAM)
    return()
  endif()
  set(names "")
  foreach(call ${LINNET_TEAM_CALLS})
    target_link_options(${shared} PRIVATE -Wl,--wrap=${call})
    list(APPEND names --redefine-sym ${call}=__wrap_${call} --redefine-sym __real_${call}=${call})
  endforeach()
  add_custom_command(TARGET ${static} POST_BUILD COMMAND ${CMAKE_OBJCOPY} ${names} $<TARGET_FILE:${static}> VERBATIM)
endfunction()
