# Options of the build, and the flags that every target of this project is compiled with.

option(LLMK_BUILD_TOOLS "Build llmk-info, llmk-bench, llmk-tune and llmk-demo" ${PROJECT_IS_TOP_LEVEL})
option(LLMK_BUILD_TESTS "Build the tests (needs cmocka)" ${PROJECT_IS_TOP_LEVEL})
option(LLMK_INSTALL "Create the install rules" ${PROJECT_IS_TOP_LEVEL})
option(LLMK_WERROR "Turn compiler warnings into errors" OFF)
option(LLMK_FUZZ "Build the fuzzers in tests/fuzz (needs clang)" OFF)
option(LLMK_CCACHE "Compile through ccache where it is installed" ON)
set(LLMK_SANITIZE "" CACHE STRING "Sanitizers, separated by commas: address, undefined, thread")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(LLMK_CCACHE_STATUS "off (LLMK_CCACHE=OFF)")
if(CMAKE_C_COMPILER_LAUNCHER)
  set(LLMK_CCACHE_STATUS "launcher set by the caller: ${CMAKE_C_COMPILER_LAUNCHER}")
elseif(LLMK_CCACHE)
  find_program(LLMK_CCACHE_PROGRAM ccache)
  mark_as_advanced(LLMK_CCACHE_PROGRAM)
  set(LLMK_CCACHE_STATUS "off (ccache is not installed)")
  if(LLMK_CCACHE_PROGRAM)
    set(CMAKE_C_COMPILER_LAUNCHER "${LLMK_CCACHE_PROGRAM}")
    set(LLMK_CCACHE_STATUS "on (${LLMK_CCACHE_PROGRAM})")
  endif()
endif()

# Strict C11 hides POSIX; the sources may use POSIX.1-2008 without saying so in each file. They see
# the OpenCL 3.0 headers, and call OpenCL 1.2 functions where that is all a device has.
add_library(llmk_build_options INTERFACE)
target_compile_definitions(llmk_build_options INTERFACE
  $<$<COMPILE_LANGUAGE:C>:_POSIX_C_SOURCE=200809L>
  $<$<COMPILE_LANGUAGE:C>:CL_TARGET_OPENCL_VERSION=300>
  $<$<COMPILE_LANGUAGE:C>:CL_USE_DEPRECATED_OPENCL_1_2_APIS=>)
set(llmk_c_flags -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition
    -Wpointer-arith -Wundef -Wvla)
if(LLMK_WERROR)
  list(APPEND llmk_c_flags -Werror)
endif()
target_compile_options(llmk_build_options INTERFACE "$<$<COMPILE_LANGUAGE:C>:${llmk_c_flags}>")
target_include_directories(llmk_build_options INTERFACE
  "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")

# A fuzzer without sanitizers finds little, and needs coverage counters in all code.
if(LLMK_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "LLMK_FUZZ needs clang (libFuzzer): configure with -DCMAKE_C_COMPILER=clang")
  endif()
  include(CheckCSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -fsanitize=fuzzer)
  check_c_source_compiles("#include <stddef.h>
    int LLVMFuzzerTestOneInput(const unsigned char *d, size_t n) { (void)d; (void)n; return 0; }"
    LLMK_HAVE_LIBFUZZER)
  unset(CMAKE_REQUIRED_FLAGS)
  if(NOT LLMK_HAVE_LIBFUZZER)
    message(FATAL_ERROR "LLMK_FUZZ: ${CMAKE_C_COMPILER} links no libFuzzer; install its compiler-rt "
      "(Debian: libclang-rt-<version>-dev) or name another clang with -DCMAKE_C_COMPILER=clang-<version>")
  endif()
  if(NOT LLMK_SANITIZE)
    set(LLMK_SANITIZE "address,undefined")
  endif()
  add_compile_options("$<$<COMPILE_LANGUAGE:C>:-fsanitize=fuzzer-no-link>")
  add_link_options(-fsanitize=fuzzer-no-link)
endif()

if(LLMK_SANITIZE)
  string(REPLACE "," ";" llmk_sanitizers "${LLMK_SANITIZE}")
  foreach(sanitizer ${llmk_sanitizers})
    if(NOT sanitizer MATCHES "^(address|undefined|thread)$")
      message(FATAL_ERROR "LLMK_SANITIZE: '${sanitizer}' is none of address, undefined, thread")
    endif()
  endforeach()
  if("thread" IN_LIST llmk_sanitizers AND "address" IN_LIST llmk_sanitizers)
    message(FATAL_ERROR "LLMK_SANITIZE: address and thread cannot be built together")
  endif()
  set(llmk_sanitize_flags "-fsanitize=${LLMK_SANITIZE}" -fno-omit-frame-pointer)
  if("undefined" IN_LIST llmk_sanitizers)
    list(APPEND llmk_sanitize_flags -fno-sanitize-recover=undefined)
  endif()
  add_compile_options("$<$<COMPILE_LANGUAGE:C>:${llmk_sanitize_flags}>")
  add_link_options(${llmk_sanitize_flags})
endif()
