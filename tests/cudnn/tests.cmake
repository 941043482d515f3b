# The library's questions to the real cuDNN, where there is one: it answers for a GPU that is described.
add_executable(lockstep-cudnn-plans "${CMAKE_CURRENT_LIST_DIR}/plans.cpp")
target_link_libraries(lockstep-cudnn-plans PRIVATE lockstep_runtime lockstep_kernels lockstep_flags CUDA::cudart_static)
if(ONEDNN_FOUND)
  target_link_libraries(lockstep-cudnn-plans PRIVATE OneDNN::OneDNN)
endif()
add_test(NAME cudnn/plans COMMAND lockstep-cudnn-plans)
set_tests_properties(cudnn/plans PROPERTIES LABELS host TIMEOUT 300 SKIP_RETURN_CODE 77)
# A library that is named and is none; and none.
add_test(NAME cudnn/named COMMAND lockstep-cudnn-plans)
set_tests_properties(cudnn/named PROPERTIES LABELS host TIMEOUT 60 ENVIRONMENT LOCKSTEP_CUDNN_LIBRARY=libm.so.6
  PASS_REGULAR_EXPRESSION "expected cuDNN 9, which LOCKSTEP_CUDNN_LIBRARY names, got libm.so.6: no cudnnGetVersion")
add_test(NAME cudnn/none COMMAND lockstep-cudnn-plans)
set_tests_properties(cudnn/none PROPERTIES LABELS host TIMEOUT 60 ENVIRONMENT LOCKSTEP_CUDNN_LIBRARY=none
  PASS_REGULAR_EXPRESSION "cuDNN 9.8 or later expected, none found")
