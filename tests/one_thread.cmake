# Programs whose cases use one thread, and so have no race that ThreadSanitizer could see.

# As many devices as there can be, and nothing but host devices that run at once.
file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/many_devices/*.cpp")
test_program(lockstep-tests-many-devices ${sources})
if(ONEDNN_FOUND)
  target_link_libraries(lockstep-tests-many-devices PRIVATE OneDNN::OneDNN)
endif()
add_test(NAME inline/many_devices COMMAND lockstep-tests-many-devices)
set_tests_properties(inline/many_devices PROPERTIES LABELS host TIMEOUT ${case_timeout}
                     ENVIRONMENT "LOCKSTEP_HOST_DEVICES=256;LOCKSTEP_HOST_MODE=inline")

# Models of many parameters, in a program that counts what it allocates.
file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/growth/*.cpp")
test_program(lockstep-tests-growth ${sources} drill/memory/failing_new.cpp)
if(ONEDNN_FOUND)
  target_link_libraries(lockstep-tests-growth PRIVATE OneDNN::OneDNN)
endif()
add_test(NAME inline/growth COMMAND lockstep-tests-growth)
set_tests_properties(inline/growth PROPERTIES LABELS host TIMEOUT ${case_timeout}
                     ENVIRONMENT "LOCKSTEP_HOST_DEVICES=2;LOCKSTEP_HOST_MODE=inline")

# Host devices that record: what programs enqueue, as text.
file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/recording/*.cpp")
if(NOT TARGET lockstep_simulate)
  list(FILTER sources EXCLUDE REGEX "links_test\\.cpp$")
endif()
test_program(lockstep-tests-recording ${sources})
if(ONEDNN_FOUND)
  target_link_libraries(lockstep-tests-recording PRIVATE OneDNN::OneDNN)
endif()
if(TARGET lockstep_simulate)
  target_sources(lockstep-tests-recording PRIVATE $<TARGET_OBJECTS:lockstep_simulate>)
  target_link_libraries(lockstep-tests-recording PRIVATE $<TARGET_NAME_IF_EXISTS:PNG::PNG>)
  target_compile_definitions(lockstep-tests-recording PRIVATE
                             LOCKSTEP_MACHINES_FOLDER="${PROJECT_SOURCE_DIR}/docs/machines")
endif()
add_test(NAME recording COMMAND lockstep-tests-recording)
set_tests_properties(recording PROPERTIES LABELS host TIMEOUT 300)

# Memory of the host that runs out at the k-th place; scripts/drill --memory tries every one, also on streams that work on
# their own.
add_executable(lockstep-memory-drill drill/memory/main.cpp drill/memory/phases.cpp drill/memory/failing_new.cpp)
target_link_libraries(lockstep-memory-drill PRIVATE ${layer_objects} lockstep_flags
                      $<$<BOOL:${LOCKSTEP_HAVE_CUDA}>:CUDA::cudart_static>)
if(ONEDNN_FOUND)
  target_link_libraries(lockstep-memory-drill PRIVATE OneDNN::OneDNN)
endif()
set(modes inline async strict)
if(LOCKSTEP_SANITIZE)
  set(modes inline)  # where the places are the same in every run
endif()
foreach(mode IN LISTS modes)
  set(every 3)
  if(mode STREQUAL "async")
    set(every 23)
  elseif(mode STREQUAL "strict")
    set(every 211)
  endif()
  if(LOCKSTEP_SANITIZE)
    math(EXPR every "${every} * 17")
  endif()
  add_test(NAME ${mode}/memory COMMAND lockstep-memory-drill --every ${every})
  set_tests_properties(${mode}/memory PROPERTIES LABELS "host;drill" TIMEOUT 1800 COST 50
                       ENVIRONMENT LOCKSTEP_HOST_MODE=${mode})
endforeach()

if(Python3_FOUND)
  include(fuzz/tests.cmake)
endif()
