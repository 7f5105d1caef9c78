# llmk_tuning_rows(TARGET FILE...)
#
# Compiles files of tuned rows (docs/tuning.md) into TARGET as llmk_tuning_built_in of
# src/core/tuning.h. Rows that neither were measured nor say where they come from are notes, and left out. The files are read when CMake
# configures, and it configures again when one changes.

function(llmk_tuning_rows target)
  set(rows "")
  set(count 0)
  foreach(file ${ARGN})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    file(READ "${file}" text)
    string(JSON version ERROR_VARIABLE error GET "${text}" llmk_tuning)
    string(JSON length ERROR_VARIABLE error LENGTH "${text}" rows)
    if(error OR NOT version EQUAL 1)
      message(FATAL_ERROR "${file} is no file of tuned rows (version ${version}): ${error}")
    endif()
    math(EXPR last "${length} - 1")
    if(length GREATER 0)
      foreach(index RANGE ${last})
        string(JSON row GET "${text}" rows ${index})
        string(JSON type ERROR_VARIABLE error TYPE "${row}" measured)
        string(JSON from ERROR_VARIABLE no_from GET "${row}" from)
        if(NOT type STREQUAL "OBJECT" AND no_from)
          continue()
        endif()
        string(APPEND rows "    {")
        foreach(member op types shape variant config hash device architecture vendor from
            image)
          set(path ${member})
          if(member STREQUAL "image")
            set(path measured image)
          endif()
          string(JSON value ERROR_VARIABLE error GET "${row}" ${path})
          if(NOT error)
            if(value MATCHES "[\"\\\\\n\r]")
              message(FATAL_ERROR "${file}: row ${index} has a quote, a backslash or a line's end in its ${member}")
            endif()
            string(APPEND rows ".${member} = \"${value}\", ")
          endif()
        endforeach()
        string(APPEND rows "},\n")
        math(EXPR count "${count} + 1")
      endforeach()
    endif()
  endforeach()
  set(output "${CMAKE_CURRENT_BINARY_DIR}/tuning_rows.c")
  file(CONFIGURE OUTPUT "${output}" @ONLY NEWLINE_STYLE UNIX CONTENT
"/* Made of the files in tuning/ by cmake/LlmkTuning.cmake. */
#include \"core/tuning.h\"

const llmk_tuning_row llmk_tuning_built_in[] = {
@rows@    {.op = NULL},
};
const size_t llmk_tuning_built_in_count = @count@;
")
  target_sources(${target} PRIVATE "${output}")
endfunction()
