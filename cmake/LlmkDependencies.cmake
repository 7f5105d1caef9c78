# What the library needs from the system, and what the tools need beyond it.

find_package(OpenCL REQUIRED)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig)

set(LLMK_PRIVATE_LIBRARIES Threads::Threads)
set(LLMK_PC_LIBS_PRIVATE ${CMAKE_THREAD_LIBS_INIT})
find_library(LLMK_MATH_LIBRARY m)
mark_as_advanced(LLMK_MATH_LIBRARY)
if(LLMK_MATH_LIBRARY)
  list(APPEND LLMK_PRIVATE_LIBRARIES m)
  list(APPEND LLMK_PC_LIBS_PRIVATE -lm)
endif()

# jansson reads the user's tuned rows in the library; in the tools safetensors headers and config.json,
# and it writes llmk-bench's and llmk-tune's results. Tests link it to read what the tools write.
set(LLMK_TOOL_LIBRARIES "")
set(LLMK_HAVE_JANSSON OFF)
set(LLMK_JANSSON_STATUS "off (jansson was not found by pkg-config: no tuned rows of the user's, no safetensors files, no JSON)")
if(PkgConfig_FOUND)
  pkg_check_modules(JANSSON QUIET IMPORTED_TARGET jansson)
  if(JANSSON_FOUND)
    set(LLMK_JANSSON_STATUS "on (jansson ${JANSSON_VERSION})")
    set(LLMK_HAVE_JANSSON ON)
    list(APPEND LLMK_TOOL_LIBRARIES PkgConfig::JANSSON)
    # Users of the installed static library need no jansson.pc: llmkConfig.cmake makes llmk::jansson.
    list(APPEND LLMK_PRIVATE_LIBRARIES
      $<BUILD_INTERFACE:PkgConfig::JANSSON> $<INSTALL_INTERFACE:llmk::jansson>)
    list(APPEND LLMK_PC_LIBS_PRIVATE -ljansson)
    target_compile_definitions(llmk_build_options INTERFACE
      $<$<COMPILE_LANGUAGE:C>:LLMK_HAVE_JANSSON=1>)
  endif()
endif()

# zstd unpacks kernel images. Without it there are none, and without them it is not linked
# (LlmkImages.cmake): users of the static library would have to have it for nothing.
set(LLMK_HAVE_ZSTD OFF)
if(PkgConfig_FOUND)
  pkg_check_modules(ZSTD QUIET IMPORTED_TARGET libzstd)
  if(ZSTD_FOUND)
    set(LLMK_HAVE_ZSTD ON)
  endif()
endif()

# CLBlast is only a yardstick of llmk-bench; the library never uses it.
set(LLMK_CLBLAST_STATUS "off (libclblast was not found: llmk-bench has nothing to put beside dense products)")
find_library(LLMK_CLBLAST_LIBRARY clblast)
find_path(LLMK_CLBLAST_INCLUDE clblast_c.h)
mark_as_advanced(LLMK_CLBLAST_LIBRARY LLMK_CLBLAST_INCLUDE)
if(LLMK_CLBLAST_LIBRARY AND LLMK_CLBLAST_INCLUDE)
  set(LLMK_CLBLAST_STATUS "on (${LLMK_CLBLAST_LIBRARY})")
endif()

set(LLMK_CMOCKA_STATUS "")
if(LLMK_BUILD_TESTS)
  if(PkgConfig_FOUND)
    pkg_check_modules(CMOCKA QUIET IMPORTED_TARGET cmocka)
  endif()
  if(NOT CMOCKA_FOUND)
    message(FATAL_ERROR "The tests need cmocka (Debian: libcmocka-dev) and pkg-config; "
      "install them, or configure with -DLLMK_BUILD_TESTS=OFF")
  endif()
endif()
