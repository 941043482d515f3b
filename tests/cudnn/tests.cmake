# What cuDNN itself says of a GPU that is described to it, where there is a cuDNN.
foreach(program plans attention_plans)
  string(REPLACE _ - target "lockstep-cudnn-${program}")
  add_executable(${target} "${CMAKE_CURRENT_LIST_DIR}/${program}.cpp")
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE lockstep_runtime lockstep_kernels lockstep_flags CUDA::cudart_static)
  if(ONEDNN_FOUND)
    target_link_libraries(${target} PRIVATE OneDNN::OneDNN)
  endif()
endforeach()

add_test(NAME cudnn/plans COMMAND lockstep-cudnn-plans)
set_tests_properties(cudnn/plans PROPERTIES LABELS host TIMEOUT 300 SKIP_RETURN_CODE 77)

# Kernels of attention are compiled for their graph, and the driver takes them: one of the tests', GPU or not.
add_library(lockstep_cudnn_driver SHARED "${CMAKE_CURRENT_LIST_DIR}/driver.cpp")
target_include_directories(lockstep_cudnn_driver SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
set_target_properties(lockstep_cudnn_driver PROPERTIES
  OUTPUT_NAME cuda SOVERSION 1 CXX_VISIBILITY_PRESET default
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/driver_without_a_gpu")
add_dependencies(lockstep-cudnn-attention-plans lockstep_cudnn_driver)
set(found_first "${CMAKE_CURRENT_BINARY_DIR}/driver_without_a_gpu")
if(DEFINED ENV{LD_LIBRARY_PATH})
  string(APPEND found_first ":$ENV{LD_LIBRARY_PATH}")
endif()
add_test(NAME cudnn/attention_plans COMMAND lockstep-cudnn-attention-plans)
set_tests_properties(cudnn/attention_plans PROPERTIES LABELS host TIMEOUT 300 SKIP_RETURN_CODE 77
                     ENVIRONMENT "LD_LIBRARY_PATH=${found_first}")

# A library that is named and is none; and none.
add_test(NAME cudnn/named COMMAND lockstep-cudnn-plans)
set_tests_properties(cudnn/named PROPERTIES LABELS host TIMEOUT 60 ENVIRONMENT LOCKSTEP_CUDNN_LIBRARY=libm.so.6
  PASS_REGULAR_EXPRESSION "expected cuDNN 9, which LOCKSTEP_CUDNN_LIBRARY names, got libm.so.6: no cudnnGetVersion")
add_test(NAME cudnn/none COMMAND lockstep-cudnn-plans)
set_tests_properties(cudnn/none PROPERTIES LABELS host TIMEOUT 60 ENVIRONMENT LOCKSTEP_CUDNN_LIBRARY=none
  PASS_REGULAR_EXPRESSION "cuDNN 9.8 or later expected, none found")
