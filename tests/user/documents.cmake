# Every C++ block of the documents is compiled, one source per document, and run. documents.py tells how blocks are marked.
set(user "${CMAKE_CURRENT_LIST_DIR}")
file(GLOB documents RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/*.md")
file(GLOB_RECURSE below RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/docs/*.md")
file(GLOB contexts CONFIGURE_DEPENDS "${user}/documents/*.cpp")
list(APPEND documents ${below})
set(generated "${CMAKE_CURRENT_BINARY_DIR}/documents")
file(MAKE_DIRECTORY "${generated}")
set(sources "")
foreach(document IN LISTS documents)
  string(REGEX REPLACE "[^A-Za-z0-9]" "_" source "${document}")
  set(source "${generated}/${source}.cpp")
  add_custom_command(OUTPUT "${source}" VERBATIM
    COMMAND Python3::Interpreter -B "${user}/documents.py" generate "${PROJECT_SOURCE_DIR}" "${document}" "${source}"
    DEPENDS "${PROJECT_SOURCE_DIR}/${document}" "${user}/documents.py" ${contexts})
  list(APPEND sources "${source}")
endforeach()
add_custom_command(OUTPUT "${generated}/main.cpp" VERBATIM
  COMMAND Python3::Interpreter -B "${user}/documents.py" main "${generated}/main.cpp" ${documents}
  DEPENDS "${user}/documents.py")
add_executable(lockstep-user-documents ${sources} "${generated}/main.cpp")
target_link_libraries(lockstep-user-documents PRIVATE lockstep::lockstep)
if(TARGET lockstep_bench)
  target_link_libraries(lockstep-user-documents PRIVATE lockstep_bench)
endif()
# Warnings are not asked for: a piece of a program uses less than it names.
target_compile_options(lockstep-user-documents PRIVATE -O0 -g0 $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
# What nearly every header of the library includes.
target_precompile_headers(lockstep-user-documents PRIVATE <lockstep/tensor/tensor.h>)

add_test(NAME user/documents_marked COMMAND Python3::Interpreter -B "${user}/documents.py" check "${PROJECT_SOURCE_DIR}")
add_test(NAME user/reference COMMAND Python3::Interpreter -B "${user}/reference.py" "${PROJECT_SOURCE_DIR}")
add_test(NAME user/documents COMMAND lockstep-user-documents)
set_tests_properties(user/documents_marked user/reference user/documents PROPERTIES LABELS user TIMEOUT 600
  ENVIRONMENT_MODIFICATION "LOCKSTEP_DEVICES=unset:;LOCKSTEP_HOST_DEVICES=unset:;LOCKSTEP_HOST_MEMORY=unset:")
