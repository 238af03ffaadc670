# The files of the page at / as arrays of bytes. Run by itself, cmake -DOUT=FILE -DFILES=a.html;b.css -P Page.cmake, it writes them; included, it lets the
# build do so whenever one of them changes.
if(CMAKE_SCRIPT_MODE_FILE)
  set(text "/* Made by cmake/Page.cmake. */\n")
  foreach(file ${FILES})
    get_filename_component(name ${file} NAME)
    string(REPLACE "." "_" name ${name})
    file(READ ${file} bytes HEX)
    string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(APPEND text "static const unsigned char ${name}[] = {\n${bytes}\n};\n")
  endforeach()
  file(WRITE ${OUT} "${text}")
  return()
endif()

set(page_made ${PROJECT_BINARY_DIR}/page)
set(page_files ${linnet_SOURCE_DIR}/src/serve/page/page.html ${linnet_SOURCE_DIR}/src/serve/page/page.css ${linnet_SOURCE_DIR}/src/serve/page/page.js)
add_custom_command(OUTPUT ${page_made}/page_bytes.h DEPENDS ${page_files} ${linnet_SOURCE_DIR}/cmake/Page.cmake
  COMMAND ${CMAKE_COMMAND} "-DOUT=${page_made}/page_bytes.h" "-DFILES=${page_files}" -P ${linnet_SOURCE_DIR}/cmake/Page.cmake VERBATIM)
set_property(SOURCE src/serve/page.c PROPERTY OBJECT_DEPENDS ${page_made}/page_bytes.h)
set_property(SOURCE src/serve/page.c PROPERTY INCLUDE_DIRECTORIES ${page_made})
