# Ranks that are processes of mpirun.
file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cpp"
                                    "${CMAKE_CURRENT_SOURCE_DIR}/parallel/comm/conformance*.cpp")
add_executable(lockstep-tests-mpi ${sources})
target_link_libraries(lockstep-tests-mpi PRIVATE ${layer_objects} lockstep_test_support
                      $<$<BOOL:${LOCKSTEP_HAVE_CUDA}>:CUDA::cudart_static>)
add_dependencies(lockstep-tests-mpi lockstep_mpi)
if(MPIEXEC_EXECUTABLE)
  # mpi_test(<name> <ranks> <mode>)
  function(mpi_test name ranks mode)
    add_test(NAME mpi/${name} COMMAND "${MPIEXEC_EXECUTABLE}" -n ${ranks} --oversubscribe --allow-run-as-root
             $<TARGET_FILE:lockstep-tests-mpi>)
    set_tests_properties(mpi/${name} PROPERTIES LABELS host TIMEOUT 600 PROCESSORS 2
                         ENVIRONMENT LOCKSTEP_HOST_MODE=${mode})
  endfunction()
  foreach(ranks 2 3 4 5)
    mpi_test(${ranks} ${ranks} inline)
  endforeach()
  mpi_test(3_async 3 async)
  mpi_test(3_strict 3 strict)
endif()
if(Python3_FOUND)
  set(mpirun "")
  if(MPIEXEC_EXECUTABLE)
    set(mpirun "${MPIEXEC_EXECUTABLE}")
  endif()
  add_test(NAME mpi/faults COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/faults.py"
           $<TARGET_FILE:lockstep-tests-mpi> ${mpirun})
  set_tests_properties(mpi/faults PROPERTIES LABELS host TIMEOUT 600 PROCESSORS 2 SKIP_REGULAR_EXPRESSION "^skipped: ")
endif()
