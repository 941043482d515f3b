# Builds the consumer in this folder in each way that a project may come to use Lockstep.
set(source "${CMAKE_CURRENT_LIST_DIR}")
set(binary "${CMAKE_CURRENT_BINARY_DIR}/package")
set(prefix "${binary}/prefix")
file(MAKE_DIRECTORY "${binary}")

# The install is moved before it is used: nothing in it may remember where it was made.
add_test(NAME package/install WORKING_DIRECTORY "${binary}" COMMAND sh -ec
  "rm -rf stage prefix
   '${CMAKE_COMMAND}' --install '${PROJECT_BINARY_DIR}' --prefix '${binary}/stage'
   mv stage prefix")
set_tests_properties(package/install PROPERTIES LABELS package TIMEOUT 120 FIXTURES_SETUP install)

# package_test(<name> <cmake argument>...): configures, builds and runs the consumer with CMake.
function(package_test name)
  add_test(NAME package/${name} COMMAND
    ${CMAKE_CTEST_COMMAND} --build-and-test "${source}" "${binary}/${name}"
    --build-generator ${CMAKE_GENERATOR} --build-noclean
    --build-options "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}"
                    "-DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}" ${ARGN}
    --test-command consumer)
  set_tests_properties(package/${name} PROPERTIES LABELS package TIMEOUT 1800)
endfunction()

package_test(find_package "-DCMAKE_PREFIX_PATH=${prefix}" -DCMAKE_BUILD_TYPE=Release)
set_tests_properties(package/find_package PROPERTIES FIXTURES_REQUIRED install)

# Compiles the library once more, so it also covers the shared library; unoptimised, to be quick.
package_test(add_subdirectory "-DLOCKSTEP_SOURCE_DIR=${PROJECT_SOURCE_DIR}" -DBUILD_SHARED_LIBS=ON
             -DCMAKE_BUILD_TYPE=Debug "-DLOCKSTEP_DEPS_DIR=${LOCKSTEP_DEPS_DIR}")
set_tests_properties(package/add_subdirectory PROPERTIES PROCESSORS 2)

find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  add_test(NAME package/pkg_config WORKING_DIRECTORY "${binary}" COMMAND sh -ec
    "export PKG_CONFIG_PATH='${prefix}/${CMAKE_INSTALL_LIBDIR}/pkgconfig'
     export LD_LIBRARY_PATH='${prefix}/${CMAKE_INSTALL_LIBDIR}'
     flags=$('${PKG_CONFIG_EXECUTABLE}' --cflags --libs --static lockstep)
     '${CMAKE_CXX_COMPILER}' '${source}/main.cpp' $flags -o consumer
     ./consumer")
  set_tests_properties(package/pkg_config PROPERTIES LABELS package TIMEOUT 300 FIXTURES_REQUIRED install)
endif()
