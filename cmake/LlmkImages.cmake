# Kernel images: what cl/manifest.txt lists, compiled offline and embedded. Where a compiler is not
# there, its targets are off and the summary says so. docs/images-and-caches.md has the recipes.
#
# Sets LLMK_IMAGES_<SPIRV|COOPMAT|NVIDIA|CUBIN|AMD>_STATUS for the summary, and the cache variable
# LLMK_IMAGES_DIR for the tests: the folder of the images, or empty.

set(LLMK_IMAGES "spirv,coopmat,nvidia,amd" CACHE STRING
  "Kinds of kernel images to build, separated by commas: spirv, coopmat, nvidia, amd; empty for none")
set(LLMK_IMAGES_FILES "." CACHE STRING
  "Build only images of the kernel files whose path under cl matches this regular expression")
set(LLMK_IMAGES_LEVEL 19 CACHE STRING "zstd's level: 1 to 19")
mark_as_advanced(LLMK_IMAGES_FILES LLMK_IMAGES_LEVEL)

string(REPLACE "," ";" llmk_image_words "${LLMK_IMAGES}")
foreach(word IN LISTS llmk_image_words) # empty ones too
  if(NOT word MATCHES "^(spirv|coopmat|nvidia|amd)$")
    message(FATAL_ERROR "LLMK_IMAGES=${LLMK_IMAGES}: \"${word}\" is no kind of image; expected spirv, "
      "coopmat, nvidia, amd, separated by commas, or nothing")
  endif()
endforeach()

# ---- Tools --------------------------------------------------------------------------------------

find_package(Python3 3.10 COMPONENTS Interpreter QUIET)
if(Python3_FOUND) # the interpreter itself: a version manager's wrapper takes longer than a job
  execute_process(COMMAND "${Python3_EXECUTABLE}" -c "import sys; print(sys.executable)"
    OUTPUT_VARIABLE llmk_python OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
find_program(LLMK_ZSTD zstd)
find_program(LLMK_SPIRV_VAL spirv-val)
find_program(LLMK_PTXAS ptxas PATHS /usr/local/cuda/bin)
mark_as_advanced(LLMK_ZSTD LLMK_SPIRV_VAL LLMK_PTXAS)

# clang and llvm-spirv of the same version, or nothing.
set(LLMK_SPIRV_VERSION "")
foreach(version 19 15 18 17 16 14)
  find_program(LLMK_CLANG_${version} clang-${version})
  find_program(LLMK_LLVM_SPIRV_${version} llvm-spirv-${version})
  mark_as_advanced(LLMK_CLANG_${version} LLMK_LLVM_SPIRV_${version})
  if(LLMK_CLANG_${version} AND LLMK_LLVM_SPIRV_${version} AND NOT LLMK_SPIRV_VERSION)
    set(LLMK_SPIRV_VERSION ${version})
  endif()
endforeach()

# The clang of the device images, and libclc's bitcode of a version that it reads.
find_file(LLMK_LIBCLC_NVPTX nvptx64--nvidiacl.bc PATHS /usr/lib/clc /usr/share/clc NO_DEFAULT_PATH)
find_file(LLMK_LIBCLC_AMDGCN gfx942-amdgcn--.bc PATHS /usr/lib/clc /usr/share/clc NO_DEFAULT_PATH)
find_program(LLMK_LLD ld.lld-19)
mark_as_advanced(LLMK_LIBCLC_NVPTX LLMK_LIBCLC_AMDGCN LLMK_LLD)

set(LLMK_SPIRV_CLANG "${LLMK_CLANG_${LLMK_SPIRV_VERSION}}")
set(LLMK_SPIRV_TRANSLATOR "${LLMK_LLVM_SPIRV_${LLMK_SPIRV_VERSION}}")

# Text that changes with the version of any tool, at the latest when cmake runs again. libclc says
# none, so that its bitcode itself goes in.
set(llmk_image_versions "")
foreach(program LLMK_ZSTD LLMK_SPIRV_CLANG LLMK_SPIRV_TRANSLATOR LLMK_SPIRV_VAL LLMK_CLANG_19 LLMK_LLD
    LLMK_PTXAS)
  if(${program})
    execute_process(COMMAND "${${program}}" --version OUTPUT_VARIABLE text ERROR_VARIABLE text
      RESULT_VARIABLE ignored)
    string(APPEND llmk_image_versions "${program} ${text}")
  endif()
endforeach()
foreach(library LLMK_LIBCLC_NVPTX LLMK_LIBCLC_AMDGCN)
  if(${library})
    file(MD5 "${${library}}" text)
    string(APPEND llmk_image_versions "${library} ${text}")
  endif()
endforeach()
string(MD5 LLMK_IMAGES_TOOLS_HASH "${llmk_image_versions}")

# ---- What is on ---------------------------------------------------------------------------------

# llmk_images_need(NAME "TEXT" VARIABLE "WHAT"...) sets LLMK_IMAGES_NAME_STATUS to "on (TEXT)", or to
# what is missing first.
function(llmk_images_need name text)
  string(TOLOWER "${name}" kind)
  string(REPLACE "," ";" wanted "${LLMK_IMAGES}")
  set(status "on (${text})")
  if(NOT kind IN_LIST wanted)
    set(status "off (LLMK_IMAGES=${LLMK_IMAGES})")
  else()
    set(pairs LLMK_HAVE_ZSTD "libzstd-dev" LLMK_ZSTD "zstd" Python3_FOUND "python3 (3.10)" ${ARGN})
    while(pairs)
      list(POP_FRONT pairs variable what)
      if(NOT ${variable})
        set(status "off (not found: ${what})")
        break()
      endif()
    endwhile()
  endif()
  set(LLMK_IMAGES_${name}_STATUS "${status}" PARENT_SCOPE)
endfunction()

llmk_images_need(SPIRV "clang-${LLMK_SPIRV_VERSION} and llvm-spirv-${LLMK_SPIRV_VERSION}"
  LLMK_SPIRV_VERSION "clang and llvm-spirv of the same version" LLMK_SPIRV_VAL "spirv-tools")
llmk_images_need(COOPMAT "clang-19 and llvm-spirv-19"
  LLMK_CLANG_19 "clang-19" LLMK_LLVM_SPIRV_19 "llvm-spirv-19, of Debian 13"
  LLMK_SPIRV_VAL "spirv-tools")
llmk_images_need(NVIDIA "PTX by clang-19"
  LLMK_CLANG_19 "clang-19" LLMK_LIBCLC_NVPTX "libclc-19")
llmk_images_need(AMD "gfx942 by clang-19"
  LLMK_CLANG_19 "clang-19" LLMK_LLD "lld-19" LLMK_LIBCLC_AMDGCN "libclc-19")
set(llmk_image_targets "")
if(LLMK_IMAGES_SPIRV_STATUS MATCHES "^on")
  list(APPEND llmk_image_targets spirv spirv1.3)
endif()
if(LLMK_IMAGES_COOPMAT_STATUS MATCHES "^on")
  list(APPEND llmk_image_targets coopmat)
endif()
set(LLMK_IMAGES_CUBIN_STATUS "${LLMK_IMAGES_NVIDIA_STATUS}")
if(LLMK_IMAGES_NVIDIA_STATUS MATCHES "^on")
  list(APPEND llmk_image_targets sm_80 sm_90a)
  set(LLMK_IMAGES_CUBIN_STATUS "off (not found: ptxas, of the CUDA toolkit)")
  if(LLMK_PTXAS) # that takes the newest of the PTX that images/images.py makes
    set(trial "${PROJECT_BINARY_DIR}/CMakeFiles/llmk_ptxas")
    file(WRITE "${trial}.ptx" ".version 8.3\n.target sm_90a\n.address_size 64\n.visible .entry trial()\n{ ret; }\n")
    execute_process(COMMAND "${LLMK_PTXAS}" -arch=sm_90a "${trial}.ptx" -o "${trial}.cubin"
      RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    set(LLMK_IMAGES_CUBIN_STATUS "on (${LLMK_PTXAS})")
    if(failed)
      set(LLMK_IMAGES_CUBIN_STATUS "off (ptxas ${LLMK_PTXAS} is older than CUDA 12.3)")
    endif()
  endif()
endif()
if(LLMK_IMAGES_AMD_STATUS MATCHES "^on")
  list(APPEND llmk_image_targets gfx942)
endif()
if(llmk_image_targets)
  # Users of the installed static library need no libzstd.pc: llmkConfig.cmake makes llmk::zstd.
  list(APPEND LLMK_PRIVATE_LIBRARIES $<BUILD_INTERFACE:PkgConfig::ZSTD> $<INSTALL_INTERFACE:llmk::zstd>)
  list(APPEND LLMK_PC_LIBS_PRIVATE -lzstd)
  target_compile_definitions(llmk_build_options INTERFACE
    $<$<COMPILE_LANGUAGE:C>:LLMK_HAVE_ZSTD=1>)
endif()
set(LLMK_IMAGE_KINDS "source")
foreach(pair SPIRV:spirv NVIDIA:ptx CUBIN:cubin AMD:gfx942)
  string(REPLACE ":" ";" pair "${pair}")
  list(GET pair 0 name)
  list(GET pair 1 kind)
  if(LLMK_IMAGES_${name}_STATUS MATCHES "^on")
    string(APPEND LLMK_IMAGE_KINDS " ${kind}")
  endif()
endforeach()
set_source_files_properties("${PROJECT_SOURCE_DIR}/src/core/version.c" PROPERTIES
  COMPILE_DEFINITIONS "LLMK_IMAGE_KINDS=\"${LLMK_IMAGE_KINDS}\"")

# ---- The build ----------------------------------------------------------------------------------

# llmk_images(TARGET CL_DIR) compiles the configurations of CL_DIR/manifest.txt and embeds them into
# TARGET as llmk_embedded_images. Only what changed is compiled again: depfiles name the sources.
function(llmk_images target cl)
  set(out "${PROJECT_BINARY_DIR}/images")
  set(script "${PROJECT_SOURCE_DIR}/images/images.py")
  set(manifest "${cl}/manifest.txt")
  set(LLMK_IMAGES_DIR "" CACHE INTERNAL "Folder of the kernel images")
  if(NOT llmk_image_targets)
    llmk_embed(${target} llmk_embedded_image "${out}/packed")
    return()
  endif()
  set(LLMK_IMAGES_DIR "${out}" CACHE INTERNAL "Folder of the kernel images")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/images.json.in" "${out}/tools.json" @ONLY)

  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${manifest}" "${script}")
  execute_process(COMMAND "${llmk_python}" "${script}" list "${manifest}" ${llmk_image_targets}
    OUTPUT_VARIABLE jobs OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "cannot expand ${manifest}")
  endif()
  string(REPLACE "\n" ";" jobs "${jobs}")
  list(FILTER jobs INCLUDE REGEX "^[^|]*\\|[^|]*\\|[^|]*(${LLMK_IMAGES_FILES})")

  file(GLOB headers "${PROJECT_SOURCE_DIR}/images/*.clh" "${PROJECT_SOURCE_DIR}/spirv/*.ll")
  set(packed "")
  foreach(job ${jobs})
    if(NOT LLMK_IMAGES_CUBIN_STATUS MATCHES "^on")
      string(REGEX REPLACE ",[a-z0-9_]+\\.cubin" "" job "${job}")
    endif()
    string(REPLACE "|" ";" fields "${job}")
    list(GET fields 0 stem)
    list(GET fields 1 name)
    list(GET fields 2 file)
    list(GET fields -1 suffixes)
    string(REPLACE "," ";" suffixes "${suffixes}")
    list(TRANSFORM suffixes PREPEND "${out}/packed/${stem}." OUTPUT_VARIABLE outputs)
    add_custom_command(OUTPUT ${outputs}
      COMMAND "${llmk_python}" -I -S "${script}" compile "${out}/tools.json" "${cl}" "${out}" "${job}"
      DEPENDS "${script}" "${out}/tools.json" "${cl}/${file}" ${headers}
      DEPFILE "${out}/raw/${stem}.${name}.d"
      COMMENT "Kernel image ${stem} (${name})"
      VERBATIM)
    list(APPEND packed ${outputs})
  endforeach()
  # What this configuration makes; what others left in the folders is not looked at.
  list(TRANSFORM packed REPLACE "^.*/images/packed/" "" OUTPUT_VARIABLE names)
  list(JOIN names "\n" names)
  file(GENERATE OUTPUT "${out}/list" CONTENT "${names}\n")
  add_custom_command(OUTPUT "${out}/packed/index"
    COMMAND "${llmk_python}" "${script}" index "${out}" "${manifest}"
    DEPENDS "${script}" "${manifest}" "${out}/list" ${packed}
    COMMENT "Index of the kernel images"
    VERBATIM)
  llmk_embed(${target} llmk_embedded_image "${out}/packed" "${out}/packed/index" ${packed})
  list(LENGTH packed count)
  set(LLMK_IMAGES_COUNT ${count} PARENT_SCOPE)
endfunction()
