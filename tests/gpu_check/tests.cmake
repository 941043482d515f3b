# scripts/gpu_check from its beginning to its end without a GPU: on a pretended machine, with programs on the fake CUDA.
set(here "${CMAKE_CURRENT_SOURCE_DIR}/gpu_check")
add_executable(lockstep-gpu-check-trouble "${here}/trouble.cpp")
target_link_libraries(lockstep-gpu-check-trouble PRIVATE lockstep_test_support)

# Whatever a GPU machine may do to a program, and its owner to the script.
add_test(NAME gpu_check/troubles COMMAND Python3::Interpreter -B "${here}/troubles.py"
         $<TARGET_FILE:lockstep-gpu-check-trouble> $<TARGET_FILE:lockstep-fake-nvtx>)
set_tests_properties(gpu_check/troubles PROPERTIES LABELS "user;gpu_check" TIMEOUT 1800)

# Both calls with the real programs, their CUDA being the fake's.
if(TARGET lockstep-fake-digits AND TARGET lockstep-fake-bench AND TARGET lockstep-tests-cuda-emulation)
  add_test(NAME gpu_check/rehearsal COMMAND Python3::Interpreter -B "${here}/rehearsal.py"
           $<TARGET_FILE:lockstep-fake-nvtx> contract=$<TARGET_FILE:lockstep-fake-cuda-contract>
           kernels=$<TARGET_FILE:lockstep-tests-cuda-emulation> bench=$<TARGET_FILE:lockstep-fake-bench>
           digits=$<TARGET_FILE:lockstep-fake-digits> tensor=$<TARGET_FILE:lockstep-fake-tensor>
           run=$<TARGET_FILE:lockstep-run> parallel=$<TARGET_FILE:lockstep-fake-parallel>
           models=$<TARGET_FILE:lockstep-fake-models>)
  set_tests_properties(gpu_check/rehearsal PROPERTIES LABELS "user;gpu_check" TIMEOUT 1800)
endif()
