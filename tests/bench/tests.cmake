# What lockstep-bench says of collectives is so. (The program itself is made where lockstep-run is.)
set(mpirun "")
if(TARGET lockstep-tests-mpi AND MPIEXEC_EXECUTABLE)
  set(mpirun "${MPIEXEC_EXECUTABLE}")
endif()
add_test(NAME bench/collectives COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/collectives.py"
         $<TARGET_FILE:lockstep-bench> $<TARGET_FILE:lockstep-run> ${mpirun})
set_tests_properties(bench/collectives PROPERTIES LABELS host TIMEOUT 300 PROCESSORS 2)
add_test(NAME bench/report COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/report.py"
         $<TARGET_FILE:lockstep-bench>)
set_tests_properties(bench/report PROPERTIES LABELS "host;user" TIMEOUT 300)
add_executable(lockstep-tests-bench "${CMAKE_CURRENT_LIST_DIR}/harness_test.cpp")
target_link_libraries(lockstep-tests-bench PRIVATE lockstep_bench lockstep_test_support)
add_test(NAME bench/harness COMMAND lockstep-tests-bench)
set_tests_properties(bench/harness PROPERTIES LABELS host TIMEOUT 60)
add_test(NAME bench/simulate COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/simulate.py"
         $<TARGET_FILE:lockstep-bench> "${PROJECT_SOURCE_DIR}/docs/machines")
set_tests_properties(bench/simulate PROPERTIES LABELS host TIMEOUT 120)
if(TARGET lockstep-works)
  add_test(NAME bench/compare_peers COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/compare_peers.py"
           $<TARGET_FILE:lockstep-works>)
  set_tests_properties(bench/compare_peers PROPERTIES LABELS host TIMEOUT 300)
endif()
