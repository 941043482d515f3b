# Programs that serve while their weights change, and programs that end with work in flight.
foreach(program serving pool exits)
  add_executable(lockstep-user-${program} "${CMAKE_CURRENT_LIST_DIR}/${program}.cpp")
  target_link_libraries(lockstep-user-${program} PRIVATE lockstep_flags lockstep::lockstep)
  target_compile_options(lockstep-user-${program} PRIVATE $<$<CONFIG:Release>:-O1>)
endforeach()
foreach(mode inline async strict)
  add_test(NAME user/serving_${mode} COMMAND lockstep-user-serving 60)
  set_tests_properties(user/serving_${mode} PROPERTIES LABELS "host;user" TIMEOUT 600
                       ENVIRONMENT "LOCKSTEP_HOST_MODE=${mode};LOCKSTEP_HOST_DEVICES=2")
endforeach()
foreach(mode inline async strict)
  add_test(NAME user/pool_${mode} COMMAND lockstep-user-pool 3000)
  set_tests_properties(user/pool_${mode} PROPERTIES LABELS "host;user" TIMEOUT 600
                       ENVIRONMENT "LOCKSTEP_HOST_MODE=${mode}")
endforeach()
foreach(what allocations fork)
  add_test(NAME user/pool_${what} COMMAND lockstep-user-pool ${what})
  set_tests_properties(user/pool_${what} PROPERTIES LABELS "host;user" TIMEOUT 60
                       ENVIRONMENT "LOCKSTEP_HOST_MODE=inline")
endforeach()
add_test(NAME user/exits COMMAND Python3::Interpreter -B "${CMAKE_CURRENT_LIST_DIR}/exits.py"
         $<TARGET_FILE:lockstep-user-exits>)
set_tests_properties(user/exits PROPERTIES LABELS "host;user" TIMEOUT 1200)
