# The kernels compiled for AVX-512 against the baseline's, bit by bit, where the build has them.
if(NOT TARGET lockstep_kernels_avx512)
  return()
endif()
add_executable(lockstep-tests-instruction-sets "${CMAKE_CURRENT_LIST_DIR}/main.cpp" $<TARGET_OBJECTS:lockstep_host_cases_kernels>)
target_link_libraries(lockstep-tests-instruction-sets PRIVATE lockstep_runtime lockstep_kernels lockstep_test_support
                      $<$<BOOL:${LOCKSTEP_HAVE_CUDA}>:CUDA::cudart_static>)
if(ONEDNN_FOUND)
  target_link_libraries(lockstep-tests-instruction-sets PRIVATE OneDNN::OneDNN)
endif()
# How large a head may be is a limit of CUDA devices.
add_test(NAME instruction_sets COMMAND lockstep-tests-instruction-sets "~*heads of attention have a largest size*")
set_tests_properties(instruction_sets PROPERTIES LABELS host SKIP_RETURN_CODE 77 TIMEOUT 900)
# Where the processor has AVX-512, the other tests do not run the baseline's kernels. They are divided in the same way.
add_test(NAME instruction_sets/avx2 COMMAND lockstep-tests-kernels "~*thread*" "~[streams]")
set_tests_properties(instruction_sets/avx2 PROPERTIES LABELS host ENVIRONMENT LOCKSTEP_CPU_ISA=avx2 TIMEOUT 900)

# What the object of those kernels defines but its table has no name outside of it: an inline function that was compiled
# for AVX-512 must not be the one that the rest of the library calls.
if(CMAKE_NM)
  add_test(NAME instruction_sets/names COMMAND sh -c
           "\"$1\" --extern-only --defined-only \"$2\" | awk '{n++; if (!/avx512_table/) bad = 1} END {exit bad || n != 1}'"
           names "${CMAKE_NM}" "${PROJECT_BINARY_DIR}/kernels_avx512.o")
  set_tests_properties(instruction_sets/names PROPERTIES LABELS host)
endif()
