# What lockstep::build_info() tells. Configuring again after each commit keeps the commit right.
set(commit "")
find_package(Git QUIET)
if(GIT_FOUND AND EXISTS "${PROJECT_SOURCE_DIR}/.git")  # not a checkout that merely contains this folder
  execute_process(COMMAND "${GIT_EXECUTABLE}" rev-parse --short=12 HEAD WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND "${GIT_EXECUTABLE}" rev-parse --git-path logs/HEAD WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
                  OUTPUT_VARIABLE log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  cmake_path(ABSOLUTE_PATH log BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
  if(EXISTS "${log}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${log}")
  endif()
endif()
set(architectures "")
if(LOCKSTEP_HAVE_CUDA)
  list(JOIN CMAKE_CUDA_ARCHITECTURES "," architectures)
endif()
set(shared 0)
if(BUILD_SHARED_LIBS)
  set(shared 1)
endif()
set_source_files_properties("${PROJECT_SOURCE_DIR}/parallel/build_info.cpp" PROPERTIES COMPILE_DEFINITIONS
  "LOCKSTEP_BUILD_COMMIT=\"${commit}\";LOCKSTEP_BUILD_TYPE=\"$<CONFIG>\";LOCKSTEP_BUILD_MARCH=\"${LOCKSTEP_MARCH}\";LOCKSTEP_BUILD_COMPILER=\"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\";LOCKSTEP_BUILD_SANITIZER=\"${LOCKSTEP_SANITIZE}\";LOCKSTEP_BUILD_CUDA_ARCHITECTURES=\"${architectures}\";LOCKSTEP_BUILD_SHARED=${shared}")
# Also in errors about kernels that are not there for a GPU.
set_source_files_properties("${PROJECT_SOURCE_DIR}/runtime/cuda/cuda_check.cpp" PROPERTIES COMPILE_DEFINITIONS
  "LOCKSTEP_BUILD_CUDA_ARCHITECTURES=\"${architectures}\"")
