# What `cmake --install` lays down: headers, library, CMake package, pkg-config file.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")
set(interface_targets ${layers})
list(TRANSFORM interface_targets REPLACE "(.+)" "lockstep_\\1_interface")

install(TARGETS lockstep ${interface_targets} EXPORT lockstep FILE_SET HEADERS)
if(TARGET lockstep-run)
  install(TARGETS lockstep-run)
endif()
install(EXPORT lockstep NAMESPACE lockstep:: FILE lockstepTargets.cmake DESTINATION "${package_dir}")

# A static library hands its own dependencies on to whoever links it.
set(private_libraries "-pthread")
set(LOCKSTEP_NEEDS_ONEDNN OFF)
if(ONEDNN_FOUND)
  string(APPEND private_libraries " -ldnnl -lgomp")
  if(NOT BUILD_SHARED_LIBS)
    set(LOCKSTEP_NEEDS_ONEDNN ON)
    install(FILES "${PROJECT_SOURCE_DIR}/scripts/cmake/FindOneDNN.cmake" DESTINATION "${package_dir}")
  endif()
endif()
set(LOCKSTEP_NEEDS_MPI OFF)
if(MPI_CXX_FOUND)
  foreach(library IN LISTS MPI_CXX_LIBRARIES)
    string(APPEND private_libraries " ${library}")
  endforeach()
  if(NOT BUILD_SHARED_LIBS)
    set(LOCKSTEP_NEEDS_MPI ON)
  endif()
endif()
set(LOCKSTEP_NEEDS_CUDA OFF)
if(LOCKSTEP_HAVE_CUDA AND NOT BUILD_SHARED_LIBS)
  set(LOCKSTEP_NEEDS_CUDA ON)
  string(APPEND private_libraries " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")
endif()
foreach(library IN LISTS CMAKE_DL_LIBS)
  string(APPEND private_libraries " -l${library}")
endforeach()

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/scripts/cmake/lockstepConfig.cmake.in" "${PROJECT_BINARY_DIR}/lockstepConfig.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lockstepConfig.cmake" "${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
        DESTINATION "${package_dir}")

# Relative to the file itself, so that an installed tree can be moved.
file(RELATIVE_PATH prefix_from_pc "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
set(pc_definitions "")
if(BUILD_SHARED_LIBS)
  set(pc_definitions " -DLOCKSTEP_SHARED")
endif()
configure_file("${PROJECT_SOURCE_DIR}/scripts/cmake/lockstep.pc.in" "${PROJECT_BINARY_DIR}/lockstep.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/lockstep.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
