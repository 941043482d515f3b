# The CUDA sources against a runtime that checks (fake_cuda), and the rules of that runtime against a real one
# (cuda_contract).
set(here "${CMAKE_CURRENT_LIST_DIR}")
file(GLOB fake_sources CONFIGURE_DEPENDS "${here}/*.cpp")
list(FILTER fake_sources EXCLUDE REGEX "_test\\.cpp$|/main\\.cpp$|/checked_table\\.cpp$|/library_retained\\.cpp$|/setup.*\\.cpp$")
add_library(lockstep_fake_cuda OBJECT ${fake_sources} "${CMAKE_CURRENT_SOURCE_DIR}/cudnn/stand_in.cpp")
target_link_libraries(lockstep_fake_cuda PRIVATE lockstep_flags)
target_include_directories(lockstep_fake_cuda PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
target_include_directories(lockstep_fake_cuda SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
# Found by name at run time too.
set_target_properties(lockstep_fake_cuda PROPERTIES CXX_VISIBILITY_PRESET default VISIBILITY_INLINES_HIDDEN OFF)

add_library(lockstep_contract_kernels OBJECT "${here}/../cuda_contract/kernels.cu")
target_link_libraries(lockstep_contract_kernels PRIVATE lockstep_flags)
target_include_directories(lockstep_contract_kernels PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")

# What programs have that use the library on the fake: kernels that look at their memory, and what may be left at the end.
add_library(lockstep_fake_tables OBJECT "${here}/checked_table.cpp" "${here}/library_retained.cpp")
# The machine of the layers' tests.
add_library(lockstep_fake_setup OBJECT "${here}/setup_layers.cpp")
add_library(lockstep_fake_main OBJECT "${here}/main.cpp")
target_link_libraries(lockstep_fake_main PRIVATE lockstep_test_support)
foreach(objects lockstep_fake_tables lockstep_fake_setup lockstep_fake_main)
  target_link_libraries(${objects} PRIVATE lockstep_flags)
  target_include_directories(${objects} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_include_directories(${objects} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endforeach()

# on_the_fake(<target>): its CUDA runtime is the fake.
function(on_the_fake target)
  target_link_libraries(${target} PRIVATE lockstep_fake_cuda lockstep_flags)
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)
endfunction()

# fake_cuda_program(<name> <source>...): a test program whose CUDA runtime is the fake.
function(fake_cuda_program name)
  add_executable(${name} ${ARGN})
  on_the_fake(${name})
  target_link_libraries(${name} PRIVATE lockstep_fake_main lockstep_test_support)
endfunction()

file(GLOB sources CONFIGURE_DEPENDS "${here}/*_test.cpp")
fake_cuda_program(lockstep-tests-fake-cuda ${sources})
target_link_libraries(lockstep-tests-fake-cuda PRIVATE lockstep_runtime lockstep_contract_kernels)
if(LOCKSTEP_SANITIZE STREQUAL "thread")  # that case is a data race, on purpose
  set(left_out_of_rules "~NCCL: what a collective reads and writes is ordered")
endif()
add_test(NAME fake_cuda/rules COMMAND lockstep-tests-fake-cuda ${left_out_of_rules})
set_tests_properties(fake_cuda/rules PROPERTIES LABELS fake_cuda TIMEOUT ${case_timeout})

file(GLOB sources CONFIGURE_DEPENDS "${here}/../cuda_contract/*.cpp")
if(sources)
  fake_cuda_program(lockstep-fake-cuda-contract ${sources} "${here}/setup_contract.cpp")
  target_link_libraries(lockstep-fake-cuda-contract PRIVATE lockstep_runtime lockstep_contract_kernels)
  target_compile_definitions(lockstep-fake-cuda-contract PRIVATE LOCKSTEP_FAKE_CUDA)
  add_test(NAME fake_cuda/contract COMMAND lockstep-fake-cuda-contract)
  set_tests_properties(fake_cuda/contract PROPERTIES LABELS fake_cuda TIMEOUT ${case_timeout})

  if(NOT LOCKSTEP_SANITIZE)
    add_executable(lockstep-cuda-contract ${sources})
    target_link_libraries(lockstep-cuda-contract PRIVATE lockstep_contract_kernels lockstep_test_support
                          CUDA::cudart_static)
    target_include_directories(lockstep-cuda-contract SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    add_test(NAME cuda/contract COMMAND lockstep-cuda-contract)
    set_tests_properties(cuda/contract PROPERTIES LABELS cuda TIMEOUT ${case_timeout}
                         SKIP_REGULAR_EXPRESSION "GPUs expected, 0[ \n]+found")
  endif()
endif()

# The layers' cases that hold on every kind of device, on CUDA's, and the CUDA backend's own.
function(fake_cuda_layer layer)
  set(cases $<TARGET_OBJECTS:lockstep_device_cases_${layer}>)
  file(GLOB own CONFIGURE_DEPENDS "${here}/${layer}/*.cpp")
  set(own_cases "")
  if(own)
    test_cases(lockstep_fake_cases_${layer} ${layer} ${own})
    target_include_directories(lockstep_fake_cases_${layer} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    set(own_cases $<TARGET_OBJECTS:lockstep_fake_cases_${layer}>)
  endif()
  fake_cuda_program(lockstep-fake-${layer} ${cases} ${own_cases})
  # Every layer: the setup brings the kernels.
  target_link_libraries(lockstep-fake-${layer} PRIVATE lockstep_fake_tables lockstep_fake_setup ${layer_objects}
                        $<$<STREQUAL:${layer},parallel>:lockstep_test_ranks>)
  if(ONEDNN_FOUND)
    target_link_libraries(lockstep-fake-${layer} PRIVATE $<LINK_ONLY:OneDNN::OneDNN>)
  endif()
  if(LOCKSTEP_GPU_TESTS AND NOT layer STREQUAL "runtime")
    file(GLOB real CONFIGURE_DEPENDS "${here}/${layer}/nccl_alone.cpp")  # needs no fake
    test_program(lockstep-cuda-${layer} ${cases} ${real} "${here}/../cuda_contract/setup_gpu.cc")
    target_link_libraries(lockstep-cuda-${layer} PRIVATE $<$<STREQUAL:${layer},parallel>:lockstep_test_ranks>)
    target_include_directories(lockstep-cuda-${layer} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    list(TRANSFORM left_out_of_real_${layer} REPLACE "(.+)" "~\"\\1\"" OUTPUT_VARIABLE patterns)
    list(JOIN patterns "" patterns)
    add_test(NAME cuda/${layer} COMMAND lockstep-cuda-${layer} "~[.]${patterns}")
    set_tests_properties(cuda/${layer} PROPERTIES LABELS cuda TIMEOUT 1800 ENVIRONMENT LOCKSTEP_CUDA_DEVICES=8)
  endif()
endfunction()

# fake_cuda_test(<name> <layer> <arguments of the program> [<environment, its variables with bars between>])
function(fake_cuda_test name layer arguments)
  string(REPLACE "|" ";" environment "${ARGN}")
  # The threads that share a kernel are the host's business. Here, where each stream has a thread, they make more of them.
  list(APPEND environment LOCKSTEP_HOST_THREADS=1)
  add_test(NAME fake_cuda/${name} COMMAND lockstep-fake-${layer} ${arguments})
  set_tests_properties(fake_cuda/${name} PROPERTIES LABELS fake_cuda TIMEOUT 1800 ENVIRONMENT "${environment}")
endfunction()

# Cases that are the host devices' own are left out: left_out_of_<layer> on the fake, left_out_of_real_<layer> on GPUs.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${here}/left_out.txt")
file(STRINGS "${here}/left_out.txt" rows REGEX "^[^#]")
foreach(row IN LISTS rows)
  if(NOT row MATCHES "^(runtime|tensor|parallel|models) \\| (both|fake|gpu) \\| ([^|]+) \\| [^|]+$")
    message(FATAL_ERROR "tests/fake_cuda/left_out.txt: expected layer | both, fake or gpu | case | why, got: ${row}")
  endif()
  set(where ${CMAKE_MATCH_2})
  set(layer ${CMAKE_MATCH_1})
  set(case "${CMAKE_MATCH_3}")
  if(NOT where STREQUAL "gpu")
    list(APPEND left_out_of_${layer} "${case}")
  endif()
  if(NOT where STREQUAL "fake")
    list(APPEND left_out_of_real_${layer} "${case}")
  endif()
endforeach()
# The host's arithmetic; ranks over copies, which the host's own tests go through; the same threads once more, with what
# they do compared, or with calls that block; and counts of calls and of looks, which depend on how fast threads are
# while each takes ten times as long. Replays of kernels, which are left out under the sanitizers.
if(LOCKSTEP_SANITIZE)
  list(APPEND left_out_of_tensor "golden*")
  list(APPEND left_out_of_parallel "ddp over peer copies*" "communicator: peers" "peer: *" "layers of every kind*"
       "backward in replicas*" "*every call compared through the store" "*with calls that block"
       "readers of packed sequences*" "sequence models in replicas*" "gradients come home in one sum*"
       "the calls that a refresh makes*" "NCCL: who waits for a collective to be enqueued asks again*"
       "graphs: *" "NCCL graphs*")
endif()

# Arithmetic, and races of callers' threads, which other names and other numbers of devices do not change.
string(CONCAT same_of_tensor "~\"golden*\"~\"*for every option\"~\"derivatives of*\""
       "~\"*on the device it is moved to*\"~\"autograd: a graph dies in*\"~\"data loader: *\"")
set(same_of_parallel "~\"communicator: NCCL*\"~\"ddp over NCCL*\"")

set(fake_layers runtime tensor parallel models)
if(LOCKSTEP_SANITIZE)  # threads are the business of runtime and parallel
  list(REMOVE_ITEM fake_layers tensor models)
endif()
foreach(layer IN LISTS fake_layers)
  fake_cuda_layer(${layer})
  list(TRANSFORM left_out_of_${layer} REPLACE "(.+)" "~\"\\1\"")
  list(JOIN left_out_of_${layer} "" cases_of_${layer})
  fake_cuda_test(${layer} ${layer} "~[.]${cases_of_${layer}}")
  set_tests_properties(fake_cuda/${layer} PROPERTIES COST 200)  # among the longest: begins first
  # The same code on another machine: once is enough for the sanitizers, and for what sees devices through other layers.
  if(NOT LOCKSTEP_SANITIZE AND NOT layer STREQUAL "models")
    fake_cuda_test(${layer}_permuted ${layer} "~[.]${cases_of_${layer}}${same_of_${layer}}" "LOCKSTEP_FAKE_CUDA=seed=3,order=3/0/2/1/5/4/6/7,deny=0-1,lose=2-1")
    set_tests_properties(fake_cuda/${layer}_permuted PROPERTIES COST 200)
  endif()
endforeach()

# What needs a machine, or a program, of its own.
fake_cuda_test(context runtime "[.context]" "LOCKSTEP_FAKE_CUDA=only=3")
fake_cuda_test(old_driver runtime "[.old_driver]" "LOCKSTEP_FAKE_CUDA=driver=11080")
fake_cuda_test(no_driver runtime "[.no_driver]" "LOCKSTEP_FAKE_CUDA=driver=0")
fake_cuda_test(lost runtime "[.lost]")
fake_cuda_test(lost_user runtime "[.lost_user]")
fake_cuda_test(loss_told runtime "[.loss_told]")
fake_cuda_test(unloading runtime "[.unloading]")
fake_cuda_test(first_use runtime "[.first_use]")
fake_cuda_test(graph_lost runtime "[.graph_lost]")
fake_cuda_test(uncached runtime "without a cache*" "LOCKSTEP_CACHE=off")
set(same_in_pool "")
if(LOCKSTEP_SANITIZE)  # half a minute of copies, whose memory it does not matter
  set(same_in_pool "~\"a call that fails in the middle of a copy*\"")
endif()
fake_cuda_test(runtime_pool runtime "~[.]${cases_of_runtime}${same_in_pool}" "LOCKSTEP_CUDA_MEMORY=pool")
fake_cuda_test(pool runtime "[.pool]" "LOCKSTEP_CUDA_MEMORY=pool|LOCKSTEP_FAKE_CUDA=deny=1-0")
fake_cuda_test(pool_errors runtime "[.pool_errors]" "LOCKSTEP_CUDA_MEMORY=pool")
fake_cuda_test(pool_logical runtime "[.pool_logical]"
               "LOCKSTEP_CUDA_MEMORY=pool|LOCKSTEP_FAKE_CUDA=devices=2|LOCKSTEP_CUDA_DEVICES=5")
fake_cuda_test(no_pools runtime "[.no_pools]" "LOCKSTEP_CUDA_MEMORY=pool|LOCKSTEP_FAKE_CUDA=pools=0")
fake_cuda_test(pool_unknown runtime "[.pool_unknown]" "LOCKSTEP_CUDA_MEMORY=pol")
add_library(lockstep-fake-nvtx MODULE "${CMAKE_CURRENT_SOURCE_DIR}/fake_cuda/nvtx/injection.cpp")
target_link_libraries(lockstep-fake-nvtx PRIVATE lockstep_flags)
target_include_directories(lockstep-fake-nvtx SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
add_dependencies(lockstep-fake-runtime lockstep-fake-nvtx)
fake_cuda_test(nvtx runtime "[.nvtx]" "NVTX_INJECTION64_PATH=$<TARGET_FILE:lockstep-fake-nvtx>")
fake_cuda_test(nvtx_always runtime "[.nvtx_always]"
               "NVTX_INJECTION64_PATH=$<TARGET_FILE:lockstep-fake-nvtx>|LOCKSTEP_NVTX=1")
fake_cuda_test(peers runtime "[.peers]" "LOCKSTEP_FAKE_CUDA=deny=1-0,lose=2-3")
fake_cuda_test(links runtime "[.links]" "LOCKSTEP_FAKE_CUDA=devices=4,nvlink=0-3-0,nvlink=3-1-1,nvlink=1-2-0,deny=0-2")
fake_cuda_test(logical runtime "[.logical]" "LOCKSTEP_FAKE_CUDA=devices=2|LOCKSTEP_CUDA_DEVICES=5")
fake_cuda_test(shared_gpu parallel "[.shared_gpu]" "LOCKSTEP_FAKE_CUDA=devices=1|LOCKSTEP_CUDA_DEVICES=2")
fake_cuda_test(no_nccl parallel "[.no_nccl]" "LOCKSTEP_NCCL_LIBRARY=libnowhere.so")
if(NOT LOCKSTEP_SANITIZE)
  fake_cuda_test(lost_product tensor "[.lost_product]")
  fake_cuda_test(no_cudnn tensor "[.no_cudnn]" "LOCKSTEP_CUDNN_LIBRARY=none")
  fake_cuda_test(small_shared tensor "[.small_shared]" "LOCKSTEP_FAKE_CUDA=shared=99K")
  # As scripts/gpu_check runs them: logical devices of one GPU, fewer than the tests know of.
  foreach(layer tensor parallel)
    fake_cuda_test(${layer}_logical ${layer} "~[.]${cases_of_${layer}}${same_of_${layer}}" "LOCKSTEP_FAKE_CUDA=devices=1|LOCKSTEP_CUDA_DEVICES=3")
  endforeach()
endif()

# A toolkit that is too old is refused with a sentence: this one, by another version.
set(old "${CMAKE_CURRENT_BINARY_DIR}/old_toolkit")
file(GENERATE OUTPUT "${old}/nvcc" CONTENT
  "#!/bin/sh\n'${CMAKE_CUDA_COMPILER}' \"$@\" 2>&1 | sed 's/release [0-9.]*, V[0-9.]*/release 12.4, V12.4.131/'\n"
  FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
add_test(NAME fake_cuda/old_toolkit COMMAND sh -ec
  "rm -rf '${old}/build'; '${CMAKE_COMMAND}' -S '${PROJECT_SOURCE_DIR}' -B '${old}/build' -G '${CMAKE_GENERATOR}' -DLOCKSTEP_CUDA=ON \
     -DCMAKE_CXX_COMPILER='${CMAKE_CXX_COMPILER}' -DCMAKE_CUDA_COMPILER='${old}/nvcc'")
set_tests_properties(fake_cuda/old_toolkit PROPERTIES LABELS fake_cuda TIMEOUT 300
                     PASS_REGULAR_EXPRESSION "need a toolkit of 12.8 or later, got 12.4.131")

# The example and the benchmarks on the fake, for the rehearsal of scripts/gpu_check.
foreach(program digits bench)
  set(of train_digits)
  if(program STREQUAL "bench")
    set(of lockstep-bench)
  endif()
  if(TARGET ${of})
    add_executable(lockstep-fake-${program} $<TARGET_OBJECTS:${of}>)
    if(program STREQUAL "bench" AND TARGET lockstep_bench)
      target_sources(lockstep-fake-bench PRIVATE $<TARGET_OBJECTS:lockstep_bench> $<TARGET_OBJECTS:lockstep_simulate>)
      target_link_libraries(lockstep-fake-bench PRIVATE $<TARGET_NAME_IF_EXISTS:PNG::PNG>)
    endif()
    on_the_fake(lockstep-fake-${program})
    target_link_libraries(lockstep-fake-${program} PRIVATE lockstep_fake_tables lockstep_fake_setup ${layer_objects})
    if(ONEDNN_FOUND)
      target_link_libraries(lockstep-fake-${program} PRIVATE $<LINK_ONLY:OneDNN::OneDNN>)
    endif()
  endif()
endforeach()

# Two processes on one GPU: NCCL takes them from 2.30 on, where it is told to.
if(TARGET lockstep-fake-bench AND TARGET lockstep-run)
  foreach(version IN ITEMS 22900 23000)
    add_test(NAME fake_cuda/ranks_of_one_gpu/${version} COMMAND lockstep-run -n 2 --timeout 60
             $<TARGET_FILE:lockstep-fake-bench> allreduce -b 1K -e 1K -n 2 -T 30)
    set_tests_properties(fake_cuda/ranks_of_one_gpu/${version} PROPERTIES LABELS fake_cuda TIMEOUT 120 ENVIRONMENT
      "LOCKSTEP_FAKE_CUDA=devices=1,nccl=${version};LOCKSTEP_CUDA_DEVICES=1;NCCL_MULTI_RANK_GPU_ENABLE=1")
  endforeach()
  set_tests_properties(fake_cuda/ranks_of_one_gpu/22900 PROPERTIES
                       PASS_REGULAR_EXPRESSION "nccl needs a GPU for every rank, and ranks 0 and 1 share one")
  set_tests_properties(fake_cuda/ranks_of_one_gpu/23000 PROPERTIES PASS_REGULAR_EXPRESSION "# backend nccl.*Out of bounds values : 0 OK")
endif()

# The drill with CUDA devices; scripts/drill --cuda runs more of it.
file(GLOB sources CONFIGURE_DEPENDS "${here}/drill/*.cpp")
set(fake_drill ${drill})
list(FILTER fake_drill EXCLUDE REGEX "/host_machine\\.cpp$")
add_executable(lockstep-fake-drill ${fake_drill} ${sources})
on_the_fake(lockstep-fake-drill)
target_link_libraries(lockstep-fake-drill PRIVATE lockstep_fake_tables ${layer_objects})
if(ONEDNN_FOUND)
  target_link_libraries(lockstep-fake-drill PRIVATE OneDNN::OneDNN)
endif()
set(fake_drill_runs 100)
if(LOCKSTEP_SANITIZE)
  set(fake_drill_runs 12)
endif()
add_test(NAME fake_cuda/drill COMMAND lockstep-fake-drill --schedules ${fake_drill_runs} --faults ${fake_drill_runs})
set_tests_properties(fake_cuda/drill PROPERTIES LABELS "fake_cuda;drill" TIMEOUT 1800)
