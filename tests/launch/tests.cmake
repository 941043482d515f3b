# lockstep-run, as a user runs it.
add_executable(lockstep-launch-rank "${CMAKE_CURRENT_LIST_DIR}/rank.cpp")
target_link_libraries(lockstep-launch-rank PRIVATE lockstep_flags lockstep::lockstep)
foreach(test Arguments Output Environment Ends FailedFirst Gone Logs LeftBehind Membership Nodes Restarts Summary Unfit)
  string(REGEX REPLACE "([a-z])([A-Z])" "\\1_\\2" script "${test}")
  string(TOLOWER "${script}" script)
  add_test(NAME launch/${test} COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/${script}.py"
           $<TARGET_FILE:lockstep-run> $<TARGET_FILE:lockstep-launch-rank> $<TARGET_FILE:lockstep-launch-drill>)
  set_tests_properties(launch/${test} PROPERTIES LABELS host TIMEOUT 300)
endforeach()
# Ranks that get over the loss of others.
add_executable(lockstep-launch-survivor "${CMAKE_CURRENT_LIST_DIR}/survivor_rank.cpp")
target_link_libraries(lockstep-launch-survivor PRIVATE lockstep_flags lockstep::lockstep)
# What --health says of nodes that are not there.
add_executable(lockstep-launch-health "${CMAKE_CURRENT_LIST_DIR}/health_table.cpp"
               "${PROJECT_SOURCE_DIR}/parallel/launch/health_report.cpp")
target_link_libraries(lockstep-launch-health PRIVATE lockstep_flags lockstep::lockstep)
target_include_directories(lockstep-launch-health SYSTEM PRIVATE "${NLOHMANN_JSON_INCLUDE_DIR}")
foreach(test IN ITEMS "KeepGoing keep_going survivor" "Health health health")
  separate_arguments(words UNIX_COMMAND "${test}")
  list(POP_FRONT words name script program)
  add_test(NAME launch/${name} COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/${script}.py"
           $<TARGET_FILE:lockstep-run> $<TARGET_FILE:lockstep-launch-rank> $<TARGET_FILE:lockstep-launch-drill>
           $<TARGET_FILE:lockstep-launch-${program}>)
  set_tests_properties(launch/${name} PROPERTIES LABELS host TIMEOUT 300)
endforeach()
# Where the system does not say which cores there are: without --bind nobody asks, with it it is an error.
add_library(lockstep-no-affinity MODULE "${CMAKE_CURRENT_LIST_DIR}/no_affinity.cpp")
add_test(NAME launch/no_affinity COMMAND sh -c
  "LD_PRELOAD=$1 \"$0\" -n 3 --no-prefix true || exit 1
   text=$(LD_PRELOAD=$1 \"$0\" -n 3 --bind cores true 2>&1) && exit 2
   echo \"$text\" | grep 'expected the cores of this process, got Invalid argument'"
  $<TARGET_FILE:lockstep-run> $<TARGET_FILE:lockstep-no-affinity>)
set_tests_properties(launch/no_affinity PROPERTIES LABELS host TIMEOUT 60)
# Ranks that fail in every way, by seed; scripts/drill --launch runs more of them.
add_executable(lockstep-launch-drill "${CMAKE_CURRENT_LIST_DIR}/drill_rank.cpp")
target_link_libraries(lockstep-launch-drill PRIVATE lockstep_flags lockstep::lockstep)
add_test(NAME launch/drill COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/drill.py"
         $<TARGET_FILE:lockstep-run> $<TARGET_FILE:lockstep-launch-drill> --count 12)
set_tests_properties(launch/drill PROPERTIES LABELS "host;drill" TIMEOUT 900 PROCESSORS 2)
# The ranks that are left when one is killed go on by themselves.
add_executable(lockstep-launch-shrink "${CMAKE_CURRENT_LIST_DIR}/shrink_rank.cpp")
target_link_libraries(lockstep-launch-shrink PRIVATE lockstep_flags lockstep::lockstep)
add_test(NAME launch/shrink COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/shrink.py"
         $<TARGET_FILE:lockstep-run> $<TARGET_FILE:lockstep-launch-shrink>)
set_tests_properties(launch/shrink PROPERTIES LABELS host TIMEOUT 600)
# DistributedDataParallel by threads, by lockstep-run and by mpirun.
test_program(ddp_ranks "${CMAKE_CURRENT_LIST_DIR}/ddp_ranks.cpp")
target_link_libraries(ddp_ranks PRIVATE lockstep_test_ranks)
if(ONEDNN_FOUND)
  target_link_libraries(ddp_ranks PRIVATE OneDNN::OneDNN)
endif()
if(TARGET lockstep_mpi)
  add_dependencies(ddp_ranks lockstep_mpi)
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
