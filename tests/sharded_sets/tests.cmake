# States of sharded ranks as files that other programs read and write; scripts/compare_sharded asks PyTorch.
add_executable(lockstep-sharded-sets "${CMAKE_CURRENT_LIST_DIR}/sets.cpp")
target_link_libraries(lockstep-sharded-sets PRIVATE ${layer_objects} lockstep_flags
                      $<$<BOOL:${LOCKSTEP_HAVE_CUDA}>:CUDA::cudart_static>)
if(ONEDNN_FOUND)
  target_link_libraries(lockstep-sharded-sets PRIVATE OneDNN::OneDNN)
endif()
add_test(NAME sharded_sets COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/check.py" $<TARGET_FILE:lockstep-run>
         $<TARGET_FILE:lockstep-sharded-sets>)
set_tests_properties(sharded_sets PROPERTIES LABELS "host;user" TIMEOUT 300 PROCESSORS 2)
