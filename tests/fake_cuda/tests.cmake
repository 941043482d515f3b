# The CUDA sources against a runtime that checks (fake_cuda), and the rules of that runtime against a real one
# (cuda_contract).
set(here "${CMAKE_CURRENT_LIST_DIR}")
file(GLOB fake_sources CONFIGURE_DEPENDS "${here}/*.cpp")
list(FILTER fake_sources EXCLUDE REGEX "_test\\.cpp$|/main\\.cpp$|/checked_table\\.cpp$|/setup.*\\.cpp$")
add_library(lockstep_fake_cuda OBJECT ${fake_sources})
target_link_libraries(lockstep_fake_cuda PRIVATE lockstep_flags)
target_include_directories(lockstep_fake_cuda PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
target_include_directories(lockstep_fake_cuda SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
# Found by name at run time too.
set_target_properties(lockstep_fake_cuda PROPERTIES CXX_VISIBILITY_PRESET default VISIBILITY_INLINES_HIDDEN OFF)

add_library(lockstep_contract_kernels OBJECT "${here}/../cuda_contract/kernels.cu")
target_link_libraries(lockstep_contract_kernels PRIVATE lockstep_flags)
target_include_directories(lockstep_contract_kernels PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")

# fake_cuda_program(<name> <source>...): a test program whose CUDA runtime is the fake.
function(fake_cuda_program name)
  add_executable(${name} "${CMAKE_CURRENT_SOURCE_DIR}/fake_cuda/main.cpp" ${ARGN})
  target_link_libraries(${name} PRIVATE lockstep_fake_cuda lockstep_test_support)
  target_include_directories(${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
endfunction()

file(GLOB sources CONFIGURE_DEPENDS "${here}/*_test.cpp")
fake_cuda_program(lockstep-tests-fake-cuda ${sources})
target_link_libraries(lockstep-tests-fake-cuda PRIVATE lockstep_runtime lockstep_contract_kernels)
target_compile_definitions(lockstep-tests-fake-cuda PRIVATE LOCKSTEP_TESTS_CHOOSE_DEVICES)
add_test(NAME fake_cuda/rules COMMAND lockstep-tests-fake-cuda)
set_tests_properties(fake_cuda/rules PROPERTIES LABELS fake_cuda TIMEOUT ${case_timeout})

file(GLOB sources CONFIGURE_DEPENDS "${here}/../cuda_contract/*.cpp")
if(sources)
  fake_cuda_program(lockstep-fake-cuda-contract ${sources})
  target_link_libraries(lockstep-fake-cuda-contract PRIVATE lockstep_runtime lockstep_contract_kernels)
  target_compile_definitions(lockstep-fake-cuda-contract PRIVATE LOCKSTEP_FAKE_CUDA LOCKSTEP_TESTS_CHOOSE_DEVICES)
  add_test(NAME fake_cuda/contract COMMAND lockstep-fake-cuda-contract)
  set_tests_properties(fake_cuda/contract PROPERTIES LABELS fake_cuda TIMEOUT ${case_timeout})

  add_executable(lockstep-cuda-contract ${sources})
  target_link_libraries(lockstep-cuda-contract PRIVATE lockstep_contract_kernels lockstep_test_support
                        CUDA::cudart_static)
  target_include_directories(lockstep-cuda-contract SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  add_test(NAME cuda/contract COMMAND lockstep-cuda-contract)
  set_tests_properties(cuda/contract PROPERTIES LABELS cuda TIMEOUT ${case_timeout}
                       SKIP_REGULAR_EXPRESSION "GPUs expected, 0[ \n]+found")
endif()
