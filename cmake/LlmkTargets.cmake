# llmk_internal_library(NAME FOLDER...)
#
# A static library of every .c file directly in FOLDER... (relative to the project), not installed,
# and built where something links it.
# Without any file it is an empty interface library, so that what links it still configures. Sets
# NAME_SCOPE, the keyword that target_link_libraries(NAME ...) takes.
function(llmk_internal_library name)
  set(patterns "")
  foreach(folder ${ARGN})
    list(APPEND patterns "${PROJECT_SOURCE_DIR}/${folder}/*.c")
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  if(sources)
    set(scope PUBLIC)
    add_library(${name} STATIC EXCLUDE_FROM_ALL ${sources})
    target_link_libraries(${name} PRIVATE llmk_build_options)
  else()
    set(scope INTERFACE)
    add_library(${name} INTERFACE)
  endif()
  target_include_directories(${name} ${scope}
    "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${name} ${scope} ${LLMK_PRIVATE_LIBRARIES})
  set(${name}_SCOPE ${scope} PARENT_SCOPE)
endfunction()
