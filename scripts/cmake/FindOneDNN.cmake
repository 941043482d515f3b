# Finds oneDNN by header and library, without the OpenCL that its own package file may ask for.
# Defines OneDNN::OneDNN (with the OpenMP runtime that a CPU build of oneDNN uses) and OneDNN_VERSION.
# Lockstep is written for the interfaces of 2.x and 3.x: another version is not taken, and OneDNN_REFUSED says why.
# Installed beside lockstepConfig.cmake as well: a static liblockstep hands this dependency on.
find_path(OneDNN_INCLUDE_DIR oneapi/dnnl/dnnl.h)
find_library(OneDNN_LIBRARY dnnl)
mark_as_advanced(OneDNN_INCLUDE_DIR OneDNN_LIBRARY)
find_package(OpenMP QUIET COMPONENTS CXX)

set(OneDNN_VERSION "")
if(EXISTS "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h" line REGEX "define DNNL_VERSION_${part} ")
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND OneDNN_VERSION "${number}")
  endforeach()
  list(JOIN OneDNN_VERSION "." OneDNN_VERSION)
endif()

set(OneDNN_REFUSED "")
set(OneDNN_SUPPORTED ON)
if(OneDNN_LIBRARY AND OneDNN_INCLUDE_DIR AND NOT OneDNN_VERSION MATCHES "^[23]\\.")
  set(OneDNN_SUPPORTED OFF)
  set(OneDNN_REFUSED
    "oneDNN ${OneDNN_VERSION} in ${OneDNN_INCLUDE_DIR} cannot be used: expected version 2.x or 3.x, whose interfaces Lockstep is written for")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN
  REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR OpenMP_CXX_FOUND OneDNN_SUPPORTED
  VERSION_VAR OneDNN_VERSION REASON_FAILURE_MESSAGE "${OneDNN_REFUSED}")
if(OneDNN_FOUND AND NOT TARGET OneDNN::OneDNN)
  add_library(OneDNN::OneDNN UNKNOWN IMPORTED)
  set_target_properties(OneDNN::OneDNN PROPERTIES
    IMPORTED_LOCATION "${OneDNN_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${OneDNN_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES OpenMP::OpenMP_CXX)
endif()
