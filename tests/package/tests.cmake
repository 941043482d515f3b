# Builds the consumer in this folder in each way that a project may come to use Lockstep, and looks at what it built.
set(source "${CMAKE_CURRENT_LIST_DIR}")
set(binary "${CMAKE_CURRENT_BINARY_DIR}/package")
file(MAKE_DIRECTORY "${binary}")
set(has_mpi OFF)
if(TARGET lockstep_mpi)
  set(has_mpi ON)
endif()

# install_test(<name> <build folder> <prefix>): the install is moved before it is used: nothing in it may remember where it
# was made.
function(install_test name from prefix)
  add_test(NAME package/${name} WORKING_DIRECTORY "${binary}" COMMAND sh -ec
    "rm -rf '${prefix}.stage' '${prefix}'
     '${CMAKE_COMMAND}' --install '${from}' --prefix '${binary}/${prefix}.stage'
     mv '${prefix}.stage' '${prefix}'")
  set_tests_properties(package/${name} PROPERTIES LABELS "package;user" TIMEOUT 120 FIXTURES_SETUP ${name})
endfunction()

# package_test(<name> <cmake argument>...): configures, builds and runs the consumer with CMake.
function(package_test name)
  add_test(NAME package/${name} COMMAND
    ${CMAKE_CTEST_COMMAND} --build-and-test "${source}" "${binary}/${name}"
    --build-generator ${CMAKE_GENERATOR} --build-noclean
    --build-options "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}"
                    "-DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}"
                    -DCONSUMER_EXPECTS_MPI=${has_mpi} ${ARGN}
    --test-command consumer)
  set_tests_properties(package/${name} PROPERTIES LABELS "package;user" TIMEOUT 1800 FIXTURES_SETUP built_${name})
endfunction()

install_test(install "${PROJECT_BINARY_DIR}" prefix)
package_test(find_package "-DCMAKE_PREFIX_PATH=${binary}/prefix" -DCMAKE_BUILD_TYPE=Release)
set_tests_properties(package/find_package PROPERTIES FIXTURES_REQUIRED install)

# A benchmark of a user's own, and the program that comes with the package.
if(TARGET lockstep_bench)
  add_test(NAME package/bench WORKING_DIRECTORY "${binary}" COMMAND sh -ec
    "'${CMAKE_COMMAND}' -S '${source}/bench' -B bench -G '${CMAKE_GENERATOR}' -DCMAKE_PREFIX_PATH='${binary}/prefix' \\
       -DCMAKE_CXX_COMPILER='${CMAKE_CXX_COMPILER}' -DCMAKE_BUILD_TYPE=Release
     '${CMAKE_COMMAND}' --build bench
     test \"$(wc -l <'${source}/bench/main.cpp')\" -le 20
     test \"$(bench/my-bench --list)\" = \"$(printf 'benchmarks/matmul, side 64\\nbenchmarks/matmul, side 256')\"
     bench/my-bench --filter 'side 64' --repetitions 2 --min-time 0.001 | grep 'matmul, side 64 .*±.*FLOP'
     bench/my-bench --json --repetitions 2 --min-time 0.001 | grep '\"samples\"'
     '${binary}/prefix/${CMAKE_INSTALL_BINDIR}/lockstep-bench' --version | grep '^Lockstep ${PROJECT_VERSION}'")
  set_tests_properties(package/bench PROPERTIES LABELS "package;user" TIMEOUT 600 FIXTURES_REQUIRED install)
endif()

# What docs/extending.md shows, outside of the tree.
if(Python3_FOUND)
  add_test(NAME package/extending WORKING_DIRECTORY "${binary}" COMMAND sh -ec
    "'${Python3_EXECUTABLE}' -B '${PROJECT_SOURCE_DIR}/tests/user/documents.py' extract '${PROJECT_SOURCE_DIR}' docs/extending.md extending_blocks
     '${CMAKE_COMMAND}' -S '${source}/extending' -B extending -G '${CMAKE_GENERATOR}' -DCMAKE_PREFIX_PATH='${binary}/prefix' \\
       -DCMAKE_CXX_COMPILER='${CMAKE_CXX_COMPILER}' -DCMAKE_CUDA_COMPILER='${CMAKE_CUDA_COMPILER}' \\
       -DCMAKE_CXX_COMPILER_LAUNCHER='${CMAKE_CXX_COMPILER_LAUNCHER}' -DCMAKE_CUDA_COMPILER_LAUNCHER='${CMAKE_CXX_COMPILER_LAUNCHER}' \\
       -DBLOCKS='${binary}/extending_blocks' -DWITH_CUDA=${LOCKSTEP_HAVE_CUDA} -DCMAKE_BUILD_TYPE=Debug
     '${CMAKE_COMMAND}' --build extending
     for mode in inline async strict; do
       for program in cube lion mailbox_communicator scale; do LOCKSTEP_HOST_MODE=$mode extending/$program; done
     done")
  set_tests_properties(package/extending PROPERTIES LABELS "package;user" TIMEOUT 900 PROCESSORS 2 FIXTURES_REQUIRED install)

  add_test(NAME package/left_out COMMAND Python3::Interpreter -B "${source}/left_out.py" "${PROJECT_SOURCE_DIR}"
           "${CMAKE_COMMAND}" "${binary}/left_out")
  set_tests_properties(package/left_out PROPERTIES LABELS package TIMEOUT 300)
endif()

# Compiles the library once more, as a shared one, which is then installed and found; to be quick, with precompiled
# headers, sources united, unoptimised, without debug information, CUDA and kernels for AVX-512, which the static one has.
package_test(add_subdirectory "-DLOCKSTEP_SOURCE_DIR=${PROJECT_SOURCE_DIR}" -DBUILD_SHARED_LIBS=ON
             -DLOCKSTEP_INSTALL=ON -DLOCKSTEP_PRECOMPILE=ON -DCMAKE_UNITY_BUILD=ON -DLOCKSTEP_CUDA=OFF -DLOCKSTEP_AVX512=OFF -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 "-DLOCKSTEP_DEPS_DIR=${LOCKSTEP_DEPS_DIR}")
set_tests_properties(package/add_subdirectory PROPERTIES PROCESSORS 2)
install_test(install_shared "${binary}/add_subdirectory/lockstep" prefix_shared)
set_tests_properties(package/install_shared PROPERTIES FIXTURES_REQUIRED built_add_subdirectory)
package_test(find_shared "-DCMAKE_PREFIX_PATH=${binary}/prefix_shared" -DCMAKE_BUILD_TYPE=Debug)
set_tests_properties(package/find_shared PROPERTIES FIXTURES_REQUIRED install_shared)

# user_test(<name> <fixture> <command>...)
function(user_test name fixture)
  add_test(NAME user/${name} COMMAND ${ARGN})
  set_tests_properties(user/${name} PROPERTIES LABELS user TIMEOUT 300 FIXTURES_REQUIRED "${fixture}")
endfunction()

# The functions of C, in a program of strict C and from Python, against the shared library.
set(models "${PROJECT_SOURCE_DIR}/tests/golden/models/llama")
add_test(NAME package/in_c WORKING_DIRECTORY "${binary}" COMMAND sh -ec
         "cc -std=c99 -pedantic -Wall -Wextra -Werror -I prefix_shared/include '${source}/in_c.c' -o in_c -L 'prefix_shared/${CMAKE_INSTALL_LIBDIR}' -Wl,-rpath,'${binary}/prefix_shared/${CMAKE_INSTALL_LIBDIR}' -llockstep
          head -n 1 '${PROJECT_SOURCE_DIR}/tests/golden/tokenizers/gpt2.json' > tokenizer.json
          ./in_c '${models}' tokenizer.json")
set_tests_properties(package/in_c PROPERTIES LABELS "package;user" TIMEOUT 300 FIXTURES_REQUIRED install_shared)

if(Python3_FOUND)
  user_test(in_ctypes install_shared Python3::Interpreter -B "${source}/in_ctypes.py"
            "${binary}/prefix_shared/${CMAKE_INSTALL_LIBDIR}/liblockstep.so" "${source}/../../c/lockstep.h" "${models}")
  set(look Python3::Interpreter -B "${source}/built_files.py")
  user_test(static_pkg_config_file install ${look} pkg_config "${binary}/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig/lockstep.pc")
  user_test(shared_exports install_shared ${look} library "${binary}/prefix_shared/${CMAKE_INSTALL_LIBDIR}/liblockstep.so")
  foreach(kind static shared)
    set(fixture built_find_package)
    set(folder "${binary}/find_package")
    set(needing "${folder}/consumer" "${folder}/plugin_1.so")
    set(library -)
    if(kind STREQUAL "shared")
      set(fixture built_find_shared)
      set(folder "${binary}/find_shared")
      set(library "${binary}/prefix_shared/${CMAKE_INSTALL_LIBDIR}/liblockstep.so")
      set(needing "${library}")
    endif()
    user_test(${kind}_plugins_in_c ${fixture} "${folder}/host" "${folder}/plugin_1.so" "${folder}/plugin_2.so")
    user_test(${kind}_plugins_in_python ${fixture}
              Python3::Interpreter -B "${source}/host.py" "${folder}/plugin_1.so" "${folder}/plugin_2.so")
    user_test(${kind}_plugin_exports ${fixture} ${look} plugin "${folder}/plugin_1.so"
              "${folder}/CMakeFiles/plugin.dir/plugin.cpp.o" "${library}" plugin_step plugin_touch plugin_catches)
    if(LOCKSTEP_HAVE_MNEEDED AND LOCKSTEP_MARCH MATCHES "^x86-64-(v[234])$")
      user_test(${kind}_instruction_set ${fixture} ${look} needs ${CMAKE_MATCH_1} ${needing})
      if(kind STREQUAL "static")
        user_test(older_processors ${fixture} ${look} pretend "${folder}/consumer" "${folder}/host" "${folder}/plugin_1.so")
      endif()
    endif()
  endforeach()

  # A pretended oneDNN of a version that is not supported.
  user_test(onednn_3 "" Python3::Interpreter -B "${source}/onednn.py" "${PROJECT_SOURCE_DIR}" "${CMAKE_COMMAND}")
endif()

find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  # The line of the README. Where CUDA's libraries are is the linker's to know.
  add_test(NAME package/pkg_config WORKING_DIRECTORY "${binary}" COMMAND sh -ec
    "export PKG_CONFIG_PATH='${binary}/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig'
     export LD_LIBRARY_PATH='${binary}/prefix/${CMAKE_INSTALL_LIBDIR}'
     export LIBRARY_PATH='${CUDAToolkit_LIBRARY_DIR}'
     cp '${source}/main.cpp' program.cpp
     cp '${source}/ranks.h' .
     line=\$(grep '^g++ .*program.cpp' '${PROJECT_SOURCE_DIR}/README.md')
     echo \"\$line\"
     eval \"\$line\"
     ./program")
  set_tests_properties(package/pkg_config PROPERTIES LABELS "package;user" TIMEOUT 300 FIXTURES_REQUIRED install)
endif()
