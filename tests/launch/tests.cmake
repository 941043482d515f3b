# lockstep-run, as a user runs it.
add_executable(lockstep-launch-rank "${CMAKE_CURRENT_LIST_DIR}/rank.cpp")
target_link_libraries(lockstep-launch-rank PRIVATE lockstep_flags lockstep::lockstep)
foreach(test Arguments Output Environment Ends LeftBehind Nodes)
  add_test(NAME launch/${test} COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/lockstep_run.py"
           $<TARGET_FILE:lockstep-run> $<TARGET_FILE:lockstep-launch-rank> ${test})
  set_tests_properties(launch/${test} PROPERTIES LABELS host TIMEOUT 300)
endforeach()
# DistributedDataParallel by threads, by lockstep-run and by mpirun.
add_executable(ddp_ranks "${CMAKE_CURRENT_LIST_DIR}/ddp_ranks.cpp" "${CMAKE_CURRENT_LIST_DIR}/../parallel/ddp/scenarios.cpp")
target_link_libraries(ddp_ranks PRIVATE ${layer_objects} lockstep_test_support
                      $<$<BOOL:${LOCKSTEP_HAVE_CUDA}>:CUDA::cudart_static>)
if(ONEDNN_FOUND)
  target_link_libraries(ddp_ranks PRIVATE OneDNN::OneDNN)
endif()
set(mpirun "")
if(TARGET lockstep-tests-mpi AND MPIEXEC_EXECUTABLE)
  set(mpirun "${MPIEXEC_EXECUTABLE}")
endif()
add_test(NAME launch/ddp_ranks COMMAND sh "${CMAKE_CURRENT_LIST_DIR}/ddp_ranks.sh" $<TARGET_FILE:ddp_ranks> $<TARGET_FILE:lockstep-run> ${mpirun})
set_tests_properties(launch/ddp_ranks PROPERTIES LABELS host TIMEOUT 600 PROCESSORS 2)

# Two hosts that are network namespaces.
set(mpi_programs "")
if(mpirun)
  set(mpi_programs "${mpirun}" $<TARGET_FILE:lockstep-tests-mpi> $<TARGET_FILE:ddp_ranks>)
endif()
add_test(NAME launch/two_hosts COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/two_hosts.py"
         $<TARGET_FILE:lockstep-run> $<TARGET_FILE:lockstep-launch-rank> ${mpi_programs})
set_tests_properties(launch/two_hosts PROPERTIES LABELS host TIMEOUT 600 PROCESSORS 2 SKIP_REGULAR_EXPRESSION "^skipped: ")
