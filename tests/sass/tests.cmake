# What scripts/sass_report reads out of machine code.
add_test(NAME sass/self_test COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/self_test.py")
set_tests_properties(sass/self_test PROPERTIES LABELS host TIMEOUT 60)
# The report on this build, where the tools are. The table of known failures holds for this compiler and GPU.
if(LOCKSTEP_HAVE_CUDA AND CMAKE_BUILD_TYPE STREQUAL "Release" AND "90" IN_LIST CMAKE_CUDA_ARCHITECTURES
   AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0 AND CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.1)
  execute_process(COMMAND "${Python3_EXECUTABLE}" -B "${PROJECT_SOURCE_DIR}/scripts/sass_report" --list-tools
                  RESULT_VARIABLE no_tools OUTPUT_QUIET ERROR_QUIET)
  if(no_tools EQUAL 0)
    add_test(NAME sass/report COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/scripts/sass_report"
             --build "${PROJECT_BINARY_DIR}")
    set_tests_properties(sass/report PROPERTIES LABELS host TIMEOUT 300 PROCESSORS 2)
  endif()
endif()
