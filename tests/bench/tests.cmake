# What lockstep-bench says of collectives is so. (The program itself is made where lockstep-run is.)
set(mpirun "")
if(TARGET lockstep-tests-mpi AND MPIEXEC_EXECUTABLE)
  set(mpirun "${MPIEXEC_EXECUTABLE}")
endif()
add_test(NAME bench/collectives COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/collectives.py"
         $<TARGET_FILE:lockstep-bench> $<TARGET_FILE:lockstep-run> ${mpirun})
set_tests_properties(bench/collectives PROPERTIES LABELS host TIMEOUT 300 PROCESSORS 2)
