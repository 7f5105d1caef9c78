# Install rules, the CMake package "llmk", the pkg-config module "llmk_cl", and CPack.

if(NOT LLMK_INSTALL)
  return()
endif()
include(CMakePackageConfigHelpers)

set(LLMK_STATIC_NEEDS_ZSTD OFF)
if(llmk_image_targets)
  set(LLMK_STATIC_NEEDS_ZSTD ON)
endif()

set(llmk_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/llmk")
install(TARGETS llmk_cl EXPORT llmkTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development)
# The static library has an export of its own: it needs more of its user's system.
install(TARGETS llmk_cl_static EXPORT llmkStaticTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
if(LLMK_TOOLS)
  install(TARGETS ${LLMK_TOOLS} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/bench/models"
    DESTINATION "${CMAKE_INSTALL_DATADIR}/llmk" COMPONENT tools)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/llmk"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development FILES_MATCHING PATTERN "*.h")
# The header is the manual, and names these.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT development)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT runtime)

install(EXPORT llmkTargets NAMESPACE llmk:: DESTINATION "${llmk_package_dir}" COMPONENT development)
install(EXPORT llmkStaticTargets NAMESPACE llmk:: DESTINATION "${llmk_package_dir}"
  COMPONENT development)
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/llmkConfig.cmake.in" "${PROJECT_BINARY_DIR}/llmkConfig.cmake"
  INSTALL_DESTINATION "${llmk_package_dir}")
# Before 1.0 a new minor version may break its users.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/llmkConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/llmkConfig.cmake" "${PROJECT_BINARY_DIR}/llmkConfigVersion.cmake"
  DESTINATION "${llmk_package_dir}" COMPONENT development)

# Relative to the .pc file, so that an installed tree can be moved.
file(RELATIVE_PATH LLMK_PC_PREFIX
  "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" LLMK_PC_PREFIX "\${pcfiledir}/${LLMK_PC_PREFIX}")
set(LLMK_PC_LIBDIR "${CMAKE_INSTALL_FULL_LIBDIR}")
set(LLMK_PC_INCLUDEDIR "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
foreach(dir LIBDIR INCLUDEDIR)
  if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
    set(LLMK_PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
  endif()
endforeach()
list(JOIN LLMK_PC_LIBS_PRIVATE " " LLMK_PC_LIBS_PRIVATE)
configure_file("${PROJECT_SOURCE_DIR}/cmake/llmk_cl.pc.in" "${PROJECT_BINARY_DIR}/llmk_cl.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/llmk_cl.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)

if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_PACKAGE_NAME "libllmk-cl")
  set(CPACK_PACKAGE_VENDOR "the libllmk_cl maintainers")
  set(CPACK_PACKAGE_CONTACT "maintainers of libllmk_cl")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
  set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
  set(CPACK_GENERATOR "TGZ;DEB")
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_PACKAGE_SECTION "libs")
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "pocl-opencl-icd | opencl-icd")
  include(CPack)
endif()
