# weir-object.cmake: how a target is set up that compiles weir's C sources.
#
# Who may call it: weir's own build, and the installed weirConfig.cmake, in the build of whoever links
# weir::object. The flags are those that the sources cannot do without; warnings and optimisation are
# the caller's. It deliberately does not know where the sources lie.
#
# SPDX-License-Identifier: Apache-2.0
function(weir_source_configure target)
  # -fPIC, never -fPIE: some compilers turn hidden initial-exec TLS in -fPIE code into local-exec.
  # Unwind tables let C++ exceptions pass. No -fno-builtin: compilers would not inline across it under LTO.
  target_compile_options(${target} PRIVATE -fPIC -fvisibility=hidden -fexceptions)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    target_compile_options(${target} PRIVATE -fcf-protection=return) # shadow stacks need no marker on the fast path
  endif()
  # A build without a type has no optimisation; malloc is not what anybody wants to run like that.
  target_compile_options(${target} PRIVATE $<$<CONFIG:>:-O2>)
  # What a project sets for all of its targets is meant for its own code.
  set_target_properties(${target} PROPERTIES C_STANDARD 17 C_STANDARD_REQUIRED ON C_EXTENSIONS ON
                        UNITY_BUILD OFF
                        C_CLANG_TIDY "" C_CPPCHECK "" C_INCLUDE_WHAT_YOU_USE "" C_CPPLINT "")
  set_property(TARGET ${target} PROPERTY C_VISIBILITY_PRESET) # the options above say it
endfunction()
