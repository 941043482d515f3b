# Our side of scripts/compare_transformers, which needs more Python packages than a test run has.
add_executable(lockstep-model-logits "${CMAKE_CURRENT_LIST_DIR}/logits.cpp")
target_link_libraries(lockstep-model-logits PRIVATE lockstep::lockstep lockstep_flags)
target_include_directories(lockstep-model-logits PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")

# And of scripts/compare_generation.
add_executable(lockstep-model-generate "${CMAKE_CURRENT_LIST_DIR}/generate.cpp")
target_link_libraries(lockstep-model-generate PRIVATE lockstep::lockstep lockstep_flags)
