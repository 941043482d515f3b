# A program that is recorded, as one rank of many that are not there.
add_executable(lockstep-user-recorded "${CMAKE_CURRENT_LIST_DIR}/recorded.cpp")
target_link_libraries(lockstep-user-recorded PRIVATE lockstep_flags lockstep::lockstep)
set(simulate)
if(TARGET lockstep-bench)
  set(simulate $<TARGET_FILE:lockstep-bench> "${PROJECT_SOURCE_DIR}/docs/machines/8x8-h200-400gb.json")
endif()
add_test(NAME user/recorded COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/recorded.py"
         $<TARGET_FILE:lockstep-user-recorded> ${simulate})
set_tests_properties(user/recorded PROPERTIES LABELS "host;user" TIMEOUT 600)
