# Programs as users write them: which communicator ranks get, over every launcher and every backend.
add_executable(user-job "${CMAKE_CURRENT_LIST_DIR}/job.cpp")
target_link_libraries(user-job PRIVATE lockstep_flags lockstep::lockstep)
set(user_programs --host $<TARGET_FILE:user-job> --run $<TARGET_FILE:lockstep-run>)
if(LOCKSTEP_HAVE_CUDA)
  # The same program on CUDA devices of the fake, and one with graphs.
  foreach(program job graphs)
    add_executable(user-${program}-fake "${CMAKE_CURRENT_LIST_DIR}/${program}.cpp" "${CMAKE_CURRENT_LIST_DIR}/fake_machine.cpp")
    on_the_fake(user-${program}-fake)
    target_link_libraries(user-${program}-fake PRIVATE lockstep_fake_tables ${layer_objects})
    if(ONEDNN_FOUND)
      target_link_libraries(user-${program}-fake PRIVATE OneDNN::OneDNN)
    endif()
  endforeach()
  list(APPEND user_programs --cuda $<TARGET_FILE:user-job-fake>)
  find_path(LOCKSTEP_NCCL_HEADER nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})  # the fake has an NCCL where there is one
  mark_as_advanced(LOCKSTEP_NCCL_HEADER)
  if(LOCKSTEP_NCCL_HEADER)
    list(APPEND user_programs --nccl)
    add_test(NAME user/graphs COMMAND lockstep-run -n 2 $<TARGET_FILE:user-graphs-fake>)
    set_tests_properties(user/graphs PROPERTIES LABELS "fake_cuda;user" TIMEOUT 900 PROCESSORS 2
                         ENVIRONMENT LOCKSTEP_HOST_THREADS=1)
  endif()
endif()
if(TARGET lockstep_mpi AND MPIEXEC_EXECUTABLE)
  list(APPEND user_programs --mpirun "${MPIEXEC_EXECUTABLE}")
endif()
add_test(NAME user/launchers COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/launchers.py" ${user_programs})
set_tests_properties(user/launchers PROPERTIES LABELS "host;user" TIMEOUT 900 PROCESSORS 2)

set(mpirun -)
if(TARGET lockstep_mpi AND MPIEXEC_EXECUTABLE)
  set(mpirun "${MPIEXEC_EXECUTABLE}")
endif()
set(fake -)
if(TARGET user-job-fake AND LOCKSTEP_NCCL_HEADER)
  set(fake $<TARGET_FILE:user-job-fake>)
endif()
add_test(NAME user/two_hosts COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/two_hosts.py"
         $<TARGET_FILE:lockstep-run> $<TARGET_FILE:user-job> "${mpirun}" ${fake})
set_tests_properties(user/two_hosts PROPERTIES LABELS "host;user" TIMEOUT 900 PROCESSORS 2 SKIP_REGULAR_EXPRESSION "^skipped: ")

# The installed package under mpirun, static and shared.
if(LOCKSTEP_INSTALL AND TARGET lockstep_mpi AND MPIEXEC_EXECUTABLE)
  set(package "${CMAKE_CURRENT_BINARY_DIR}/package")
  foreach(kind "" _shared)
    add_test(NAME package/mpi${kind} COMMAND sh "${CMAKE_CURRENT_LIST_DIR}/installed/mpi.sh" "${package}/prefix${kind}"
             "${package}/mpi${kind}" "${MPIEXEC_EXECUTABLE}" "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}"
             "-DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}")
    set_tests_properties(package/mpi${kind} PROPERTIES LABELS "package;user" TIMEOUT 600 FIXTURES_REQUIRED install${kind})
  endforeach()
endif()
