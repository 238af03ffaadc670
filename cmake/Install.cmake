# What `cmake --install` puts below any prefix, now or moved later: the libraries, the headers, the command, linnet.pc and linnetConfig.cmake.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(LINNET_PACKAGE ${CMAKE_INSTALL_LIBDIR}/cmake/linnet)

# The static library's targets stand in a file of their own: who links the shared one needs none of the libraries below it.
install(TARGETS linnet EXPORT linnetTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS linnet_static EXPORT linnetStaticTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(targets linnetTargets linnetStaticTargets)
  install(EXPORT ${targets} NAMESPACE linnet:: DESTINATION ${LINNET_PACKAGE})
endforeach()
install(DIRECTORY include/linnet DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(LINNET_CLI)
  file(RELATIVE_PATH library_from_command /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(linnet_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${library_from_command}")
  install(TARGETS linnet_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

  # Man pages and the shells' completion, from the tables of flags: the command itself says what it has, so where it cannot run there are none.
  find_package(Python3 COMPONENTS Interpreter)
  if(Python3_Interpreter_FOUND AND NOT CMAKE_CROSSCOMPILING AND NOT LINNET_SANITIZE)
    set(pages ${PROJECT_BINARY_DIR}/pages)
    add_custom_command(OUTPUT ${pages}.made DEPENDS linnet_cli cmake/cli_pages.py
      COMMAND Python3::Interpreter ${linnet_SOURCE_DIR}/cmake/cli_pages.py $<TARGET_FILE:linnet_cli> ${pages}
      COMMAND ${CMAKE_COMMAND} -E touch ${pages}.made VERBATIM)
    add_custom_target(linnet_pages ALL DEPENDS ${pages}.made)
    install(DIRECTORY ${pages}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR})
    install(DIRECTORY ${pages}/bash-completion ${pages}/zsh ${pages}/fish DESTINATION ${CMAKE_INSTALL_DATADIR})
  else()
    message(STATUS "no man pages and no completion: they need Python 3 and a command that runs here")
  endif()
endif()

file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
set(private_cuda "")
if(LINNET_CUDA)
  set(private_cuda " -L${CUDAToolkit_LIBRARY_DIR} -lcublasLt -lcufft -lcudart_static -ldl -lrt -lpthread -lstdc++")
endif()
set(private_http "")
if(LINNET_HTTP)
  set(private_http " -lmicrohttpd")
endif()
set(private_fft "")
if(LINNET_FFT_LIBRARY)
  set(private_fft " kissfft-float")
endif()
configure_file(cmake/linnet.pc.in linnet.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/linnet.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

configure_package_config_file(cmake/linnetConfig.cmake.in linnetConfig.cmake INSTALL_DESTINATION ${LINNET_PACKAGE} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(linnetConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/linnetConfig.cmake ${PROJECT_BINARY_DIR}/linnetConfigVersion.cmake DESTINATION ${LINNET_PACKAGE})

# pip (python/pyproject.toml): the library, and the types of the operators' functions, into the package and nothing else.
if(SKBUILD)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(python_types ${PROJECT_BINARY_DIR}/_operators.pyi)
  add_custom_command(OUTPUT ${python_types} DEPENDS linnet VERBATIM
    COMMAND ${CMAKE_COMMAND} -E env LINNET_LIBRARY=$<TARGET_FILE:linnet> PYTHONPATH=${PROJECT_SOURCE_DIR}/python PYTHONDONTWRITEBYTECODE=1
      ${Python3_EXECUTABLE} -c "import sys; from linnet.ops import _plain; open(sys.argv[1], 'w').write(_plain.stub())" ${python_types})
  add_custom_target(linnet_python DEPENDS ${python_types})
  install(FILES $<TARGET_FILE:linnet> RENAME liblinnet.so DESTINATION linnet COMPONENT python)
  install(FILES ${python_types} DESTINATION linnet/ops COMPONENT python)
endif()
