# llmk_embed(TARGET SYMBOL ROOT [FILE...])
#
# Puts the bytes of FILE... into TARGET, without a tool of our own: a generated assembler file pulls
# them in with .incbin, and is assembled again whenever one of them changes. It defines
#
#     const llmk_embedded_file SYMBOLs[];      (the type is in src/core/embed.h)
#     const size_t SYMBOL_count;
#
# one row a FILE, in the order given: {path relative to ROOT, bytes, size}. A NUL byte that the size
# does not count follows the bytes, so that a text file is also a C string. Data is aligned to 16
# bytes. The symbols are hidden: nothing of this is exported from a shared library. A FILE may be
# the output of a custom command of the same directory.

set(LLMK_EMBED_TEMPLATE "${CMAKE_CURRENT_LIST_DIR}/embed.S.in")

function(llmk_embed target symbol root)
  set(LLMK_EMBED_SYMBOL "${symbol}")
  set(LLMK_EMBED_ROWS "")
  set(LLMK_EMBED_DATA "")
  set(index 0)
  foreach(file ${ARGN})
    file(RELATIVE_PATH name "${root}" "${file}")
    string(REPLACE "\\" "\\\\" path "${file}")
    string(REPLACE "\"" "\\\"" path "${path}")
    string(APPEND LLMK_EMBED_ROWS
      "    LLMK_PTR .Lname${index}, .Ldata${index}, .Lend${index} - .Ldata${index}\n")
    string(APPEND LLMK_EMBED_DATA
      ".Lname${index}:\n    .asciz \"${name}\"\n    .balign 16\n"
      ".Ldata${index}:\n    .incbin \"${path}\"\n.Lend${index}:\n    .byte 0\n")
    math(EXPR index "${index} + 1")
  endforeach()
  set(LLMK_EMBED_COUNT ${index})
  set(output "${CMAKE_CURRENT_BINARY_DIR}/embed/${symbol}.S")
  configure_file("${LLMK_EMBED_TEMPLATE}" "${output}" @ONLY)
  target_sources(${target} PRIVATE "${output}")
  set_source_files_properties("${output}" TARGET_DIRECTORY ${target} PROPERTIES
    GENERATED ON OBJECT_DEPENDS "${ARGN}")
endfunction()
