# Kernels of the host that gain by AVX-512 are compiled once more for x86-64-v4, and chosen at run time. The linker makes
# one object of them in which only their table has a name: no inline function of a header, compiled with instructions that
# the processor may lack, can take the place of the same function elsewhere. What the object lacks (the other kernels,
# working memory) it has from the rest of the library. What memory bounds is not in it: it gains nothing, or loses.
set(wide_sources attention cells cross_entropy elementwise few_rows gather gemm group_norm kernels matmul quantized rms_norm softmax strip_gemm unary widen)

set(why_not "")
if(NOT LOCKSTEP_MARCH STREQUAL "x86-64-v3")
  set(why_not "LOCKSTEP_MARCH is '${LOCKSTEP_MARCH}', not x86-64-v3")
elseif(LOCKSTEP_SANITIZE)
  set(why_not "LOCKSTEP_SANITIZE is '${LOCKSTEP_SANITIZE}'")
elseif(NOT CMAKE_LINKER OR NOT CMAKE_OBJCOPY)
  set(why_not "there is no linker or no objcopy")
else()
  execute_process(COMMAND "${CMAKE_LINKER}" --help OUTPUT_VARIABLE linker_help ERROR_QUIET)
  if(NOT linker_help MATCHES "--force-group-allocation")
    set(why_not "${CMAKE_LINKER} has no --force-group-allocation")
  endif()
endif()
if(LOCKSTEP_AVX512 STREQUAL "ON" AND why_not)
  message(FATAL_ERROR "LOCKSTEP_AVX512=ON expects kernels for AVX-512 beside the baseline's: ${why_not}")
endif()
if(LOCKSTEP_AVX512 STREQUAL "OFF" OR why_not)
  return()
endif()

list(TRANSFORM wide_sources REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/kernels/host/\\1*.cpp")
file(GLOB wide_sources CONFIGURE_DEPENDS ${wide_sources})
add_library(lockstep_kernels_avx512 OBJECT ${wide_sources})
set_target_properties(lockstep_kernels_avx512 PROPERTIES LOCKSTEP_TARGET_MARCH x86-64-v4)
target_link_libraries(lockstep_kernels_avx512 PRIVATE lockstep_flags)
target_compile_options(lockstep_kernels_avx512 PRIVATE ${lockstep_library_warnings} ${lockstep_kernel_options} -fno-lto $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>
                       -mprefer-vector-width=512)
target_compile_definitions(lockstep_kernels_avx512 PRIVATE LOCKSTEP_EXPORTS $<$<BOOL:${BUILD_SHARED_LIBS}>:LOCKSTEP_SHARED>
                           LOCKSTEP_HOST_TABLE=avx512_table)

set(wide_object "${PROJECT_BINARY_DIR}/kernels_avx512.o")
add_custom_command(OUTPUT "${wide_object}"
  COMMAND "${CMAKE_LINKER}" -r --force-group-allocation -o "${wide_object}" $<TARGET_OBJECTS:lockstep_kernels_avx512>
  COMMAND "${CMAKE_OBJCOPY}" --wildcard "--keep-global-symbol=*avx512_table*" "${wide_object}"
  DEPENDS $<TARGET_OBJECTS:lockstep_kernels_avx512> COMMAND_EXPAND_LISTS VERBATIM)
add_custom_target(lockstep_avx512_object DEPENDS "${wide_object}")
add_dependencies(lockstep_kernels lockstep_avx512_object)
foreach(layer runtime kernels)
  target_compile_definitions(lockstep_${layer} PRIVATE LOCKSTEP_HAVE_AVX512)
endforeach()
target_sources(lockstep PRIVATE "${wide_object}")
add_dependencies(lockstep lockstep_avx512_object)
target_link_libraries(lockstep_kernels INTERFACE "${wide_object}")
