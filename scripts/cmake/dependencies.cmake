# Finds what Lockstep uses and reports it in one table. A missing requirement names its Debian package.
if(LOCKSTEP_DEPS_DIR)
  list(PREPEND CMAKE_PREFIX_PATH "${LOCKSTEP_DEPS_DIR}")
endif()

set(dependency_table "")
set(missing_packages "")

# pad(<variable> <width>): fills the variable up with spaces.
function(pad variable width)
  string(LENGTH "${${variable}}" length)
  math(EXPR missing "${width} - ${length}")
  if(missing GREATER 0)
    string(REPEAT " " ${missing} spaces)
    set(${variable} "${${variable}}${spaces}" PARENT_SCOPE)
  endif()
endfunction()

# dependency_row(<name> <found> <version or reason> <what it gives>)
function(dependency_row name found version gives)
  set(state -)
  if(found)
    set(state found)
  endif()
  pad(name 15)
  pad(state 7)
  pad(version 24)
  set(dependency_table "${dependency_table}\n  ${name}${state}${version}${gives}" PARENT_SCOPE)
endfunction()

# require(<found> <Debian package>): collects what is missing, so that one error names all of it.
macro(require found package)
  if(NOT ${found})
    list(APPEND missing_packages ${package})
  endif()
endmacro()

# macro_version(<variable> <header> <macro>...): joins numeric macros of a header into a version.
function(macro_version variable header)
  set(version "")
  foreach(name IN LISTS ARGN)
    file(STRINGS "${header}" line REGEX "define ${name} " LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9.]+[\" ]*(/|$)" number "${line}")
    string(REGEX MATCH "[0-9]+[0-9.]*" number "${number}")
    list(APPEND version "${number}")
  endforeach()
  list(JOIN version "." version)
  set(${variable} "${version}" PARENT_SCOPE)
endfunction()

# Threads: the library itself.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# nlohmann-json: private to the library.
find_path(NLOHMANN_JSON_INCLUDE_DIR nlohmann/json.hpp)
set(version "")
if(NLOHMANN_JSON_INCLUDE_DIR)
  set(header "${NLOHMANN_JSON_INCLUDE_DIR}/nlohmann/detail/abi_macros.hpp")  # since 3.11.2
  if(NOT EXISTS "${header}")
    set(header "${NLOHMANN_JSON_INCLUDE_DIR}/nlohmann/json.hpp")
  endif()
  macro_version(version "${header}"
    NLOHMANN_JSON_VERSION_MAJOR NLOHMANN_JSON_VERSION_MINOR NLOHMANN_JSON_VERSION_PATCH)
endif()
dependency_row(nlohmann-json "${NLOHMANN_JSON_INCLUDE_DIR}" "${version}" "headers of safetensors files")
require(NLOHMANN_JSON_INCLUDE_DIR nlohmann-json3-dev)

# oneDNN: optional.
set(ONEDNN_FOUND OFF)
if(LOCKSTEP_ONEDNN STREQUAL "OFF")
  set(version "LOCKSTEP_ONEDNN=OFF")
elseif(LOCKSTEP_SANITIZE STREQUAL "thread")
  set(version "not instrumented (tsan)")
else()
  find_package(OneDNN MODULE QUIET)
  set(ONEDNN_FOUND ${OneDNN_FOUND})
  set(version "${OneDNN_VERSION}")
  if(OneDNN_REFUSED AND LOCKSTEP_ONEDNN STREQUAL "ON")
    message(FATAL_ERROR "LOCKSTEP_ONEDNN=ON, but ${OneDNN_REFUSED}")
  elseif(OneDNN_REFUSED)
    message(WARNING "${OneDNN_REFUSED}. Going on without oneDNN")
    set(version "${OneDNN_VERSION} (expected 2.x or 3.x)")
  elseif(LOCKSTEP_ONEDNN STREQUAL "ON")
    require(ONEDNN_FOUND libdnnl-dev)
  endif()
endif()
dependency_row(oneDNN "${ONEDNN_FOUND}" "${version}" "fast matmul, convolution and norms on host devices")

# MPI: optional.
set(MPI_CXX_FOUND OFF)
if(LOCKSTEP_MPI STREQUAL "OFF")
  set(version "LOCKSTEP_MPI=OFF")
elseif(LOCKSTEP_SANITIZE STREQUAL "thread")
  set(version "not instrumented (tsan)")
else()
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  set(version "${MPI_CXX_VERSION}")
  if(LOCKSTEP_MPI STREQUAL "ON")
    require(MPI_CXX_FOUND libopenmpi-dev)
  endif()
endif()
dependency_row(MPI "${MPI_CXX_FOUND}" "${version}" "ranks with host devices on several machines")

# CUDA: optional. The runtime is linked (it serves machines without a driver too), everything else is opened when needed.
set(LOCKSTEP_HAVE_CUDA OFF)
if(LOCKSTEP_CUDA STREQUAL "OFF")
  set(version "LOCKSTEP_CUDA=OFF")
else()
  include(CheckLanguage)
  check_language(CUDA)
  set(version "no nvcc")
  if(CMAKE_CUDA_COMPILER)
    if(LOCKSTEP_CUDA_FAT)
      # Code for each, and PTX of the last for what comes after it.
      set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90-real 100-real 120)
    elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      # The machine's own, or Hopper where there is no GPU.
      set(CMAKE_CUDA_ARCHITECTURES 90)
      find_program(nvidia_smi nvidia-smi)
      if(nvidia_smi)
        execute_process(COMMAND ${nvidia_smi} --query-gpu=compute_cap --format=csv,noheader
                        OUTPUT_VARIABLE capabilities ERROR_QUIET RESULT_VARIABLE failed)
        string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${capabilities}")
        if(NOT failed AND capabilities)
          list(REMOVE_DUPLICATES capabilities)
          string(REPLACE "." "" CMAKE_CUDA_ARCHITECTURES "${capabilities}")
        endif()
      endif()
      set(CMAKE_CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}" CACHE STRING "CUDA architectures")
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    set(LOCKSTEP_HAVE_CUDA ${CUDAToolkit_FOUND})
    list(JOIN CMAKE_CUDA_ARCHITECTURES "," architectures)
    set(version "${CUDAToolkit_VERSION} for ${architectures}")
    if(CUDAToolkit_FOUND AND CUDAToolkit_VERSION VERSION_LESS 12.8)  # the errors and entry points that runtime/cuda names
      set(LOCKSTEP_HAVE_CUDA OFF)
      set(level WARNING)
      if(LOCKSTEP_CUDA STREQUAL "ON")
        set(level FATAL_ERROR)
      endif()
      message(${level} "CUDA devices need a toolkit of 12.8 or later, got ${CUDAToolkit_VERSION} in ${CUDAToolkit_BIN_DIR}: "
                       "set CMAKE_CUDA_COMPILER to the nvcc of another one, or LOCKSTEP_CUDA=OFF")
      set(version "${CUDAToolkit_VERSION}, needs 12.8")
    endif()
    # Linked by name where it is wanted: tests put another one in its place.
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)
    set(LOCKSTEP_CUDART_TARGET CUDA::cudart_static)
    if(LOCKSTEP_CUDART STREQUAL "shared")
      set(LOCKSTEP_CUDART_TARGET CUDA::cudart)
    endif()
  endif()
  if(LOCKSTEP_CUDA STREQUAL "ON" AND NOT LOCKSTEP_HAVE_CUDA)
    message(FATAL_ERROR "LOCKSTEP_CUDA=ON, but there is no CUDA compiler (nvcc) or toolkit: set CMAKE_CUDA_COMPILER, or "
                        "PATH, or LOCKSTEP_CUDA=AUTO")
  endif()
endif()
dependency_row(CUDA "${LOCKSTEP_HAVE_CUDA}" "${version}" "CUDA devices")

# CLI11: the programs.
find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp)
set(version "")
if(CLI11_INCLUDE_DIR AND EXISTS "${CLI11_INCLUDE_DIR}/CLI/Version.hpp")
  macro_version(version "${CLI11_INCLUDE_DIR}/CLI/Version.hpp" CLI11_VERSION)
endif()
dependency_row(CLI11 "${CLI11_INCLUDE_DIR}" "${version}" "command lines of lockstep-run, examples, benchmarks")
if(LOCKSTEP_EXAMPLES OR LOCKSTEP_BENCHMARKS)
  require(CLI11_INCLUDE_DIR libcli11-dev)
endif()

# libpng: optional, for the pictures of one example and of lockstep-bench simulate.
set(PNG_FOUND OFF)
if(LOCKSTEP_EXAMPLES OR LOCKSTEP_BENCHMARKS)
  find_package(PNG QUIET)
  dependency_row(libpng "${PNG_FOUND}" "${PNG_VERSION_STRING}" "pictures: the example detect_shapes, lockstep-bench simulate --plot")
endif()

# cpp-httplib: optional, for one example. Its file for pkg-config says with which macros it was compiled, without which its
# types are others.
set(HTTPLIB_FOUND OFF)
if(LOCKSTEP_EXAMPLES)
  if(LOCKSTEP_SANITIZE STREQUAL "thread")
    set(version "not instrumented (tsan)")
  else()
    find_package(PkgConfig QUIET)
    if(PKG_CONFIG_FOUND)
      pkg_check_modules(HTTPLIB QUIET IMPORTED_TARGET cpp-httplib)
    endif()
    set(version "${HTTPLIB_VERSION}")
  endif()
  dependency_row(cpp-httplib "${HTTPLIB_FOUND}" "${version}" "HTTP: the example serve")
endif()

# Catch2: the tests; version 2 or 3. A bare version 2 header serves too.
if(LOCKSTEP_TESTS)
  find_package(Catch2 QUIET CONFIG)
  if(NOT Catch2_FOUND)
    find_path(CATCH2_INCLUDE_DIR catch2/catch.hpp)
    if(CATCH2_INCLUDE_DIR)
      add_library(Catch2::Catch2 INTERFACE IMPORTED)
      target_include_directories(Catch2::Catch2 INTERFACE "${CATCH2_INCLUDE_DIR}")
      set(Catch2_VERSION "2 (header only)")
    endif()
  endif()
  dependency_row(Catch2 "${Catch2_VERSION}" "${Catch2_VERSION}" "the tests")
  require(Catch2_VERSION catch2)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  dependency_row(Python3 "${Python3_FOUND}" "${Python3_VERSION}" "the layering test")
endif()

# ccache: only where this project is the one being built.
if(PROJECT_IS_TOP_LEVEL)
  find_program(LOCKSTEP_CCACHE ccache)
  mark_as_advanced(LOCKSTEP_CCACHE)
  dependency_row(ccache "${LOCKSTEP_CCACHE}" "" "faster rebuilds")
  if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # What ccache wants to be told where headers are precompiled. Comments count: GCC includes a header once only if it is
    # byte for byte what was precompiled, and by default ccache hands out what differs in comments.
    set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_COMMENTS=true
                                    "${LOCKSTEP_CCACHE}")
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${LOCKSTEP_CCACHE}")
  endif()
endif()

message(STATUS "Lockstep ${PROJECT_VERSION}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, uses:"
               "${dependency_table}")
if(missing_packages)
  list(JOIN missing_packages " " missing_packages)
  message(FATAL_ERROR "Not found: ${missing_packages} (names of Debian packages). Install them with\n"
                      "  apt install ${missing_packages}\n"
                      "or let LOCKSTEP_DEPS_DIR name a prefix that has them.")
endif()
