# The example programs, run as a user would.
set(examples "${CMAKE_CURRENT_LIST_DIR}")
add_executable(compare_models "${examples}/compare_models.cpp")
target_link_libraries(compare_models PRIVATE lockstep_flags lockstep::lockstep)

# example_test(<name> <script> <argument>...)
function(example_test name script)
  add_test(NAME example/${name} COMMAND sh "${examples}/${script}.sh" ${ARGN})
  set_tests_properties(example/${name} PROPERTIES LABELS example TIMEOUT 600 PROCESSORS 2
    ENVIRONMENT_MODIFICATION "LOCKSTEP_DEVICES=unset:;LOCKSTEP_HOST_DEVICES=unset:;LOCKSTEP_HOST_MEMORY=unset:")
endfunction()

foreach(devices 1 2 3 4 7)
  example_test(accuracy_${devices} accuracy $<TARGET_FILE:train_digits> ${devices} 0.975)
endforeach()
example_test(devices_agree_f64 devices_agree $<TARGET_FILE:train_digits> $<TARGET_FILE:compare_models> f64 1e-10)
example_test(devices_agree_f32 devices_agree $<TARGET_FILE:train_digits> $<TARGET_FILE:compare_models> f32 1e-4)
example_test(same_bits same_bits $<TARGET_FILE:train_digits>)
example_test(usage usage $<TARGET_FILE:train_digits> "${PROJECT_SOURCE_DIR}/docs/examples/data/digits")
example_test(fewshot_digits fewshot_digits $<TARGET_FILE:fewshot_digits> "${PROJECT_SOURCE_DIR}/docs/examples/data/digits")
example_test(quantize_model quantize_model $<TARGET_FILE:quantize_model> $<TARGET_FILE:lockstep-model-generate>
             "${PROJECT_SOURCE_DIR}/tests/golden/models")
example_test(readme readme $<TARGET_FILE:readme> "${PROJECT_SOURCE_DIR}")
if(TARGET lockstep-run)
  example_test(train_text train_text $<TARGET_FILE:train_text> $<TARGET_FILE:lockstep-run> "${PROJECT_SOURCE_DIR}/LICENSE")
endif()
find_package(Python3 QUIET COMPONENTS Interpreter)
if(TARGET lockstep-run AND Python3_FOUND)
  # Ranks that are killed while they train and save; scripts/kill_drill kills more of them.
  add_test(NAME launch/kill_drill COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/scripts/kill_drill" --quiet --kills 5
           --programs $<TARGET_FILE_DIR:lockstep-run>)
  set_tests_properties(launch/kill_drill PROPERTIES LABELS "host;drill" TIMEOUT 600 PROCESSORS 2)
  # On several nodes, which come and go.
  add_test(NAME launch/train_on_nodes COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/tests/launch/train_on_nodes.py"
           $<TARGET_FILE:lockstep-run> $<TARGET_FILE:train_text> "${PROJECT_SOURCE_DIR}/LICENSE")
  set_tests_properties(launch/train_on_nodes PROPERTIES LABELS host TIMEOUT 600)
endif()
if(TARGET lockstep-run AND TARGET detect_shapes)
  example_test(detect_shapes detect_shapes $<TARGET_FILE:detect_shapes> $<TARGET_FILE:lockstep-run>)
endif()
# A server, and what it is made of.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(TARGET serve AND Python3_FOUND)
  add_executable(text_logits "${examples}/text_logits.cpp")
  target_link_libraries(text_logits PRIVATE lockstep_flags lockstep::lockstep)
  target_include_directories(text_logits SYSTEM PRIVATE "${CLI11_INCLUDE_DIR}")
  add_test(NAME example/serve
    COMMAND ${Python3_EXECUTABLE} -B "${examples}/serve.py" $<TARGET_FILE_DIR:serve> "${PROJECT_SOURCE_DIR}")
  set_tests_properties(example/serve PROPERTIES LABELS example TIMEOUT 600 PROCESSORS 2
    ENVIRONMENT_MODIFICATION "LOCKSTEP_DEVICES=unset:;LOCKSTEP_HOST_DEVICES=unset:;LOCKSTEP_HOST_MEMORY=unset:")
endif()
