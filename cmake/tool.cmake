# tool.cmake: the tool's program, man pages and completions, ready for the install rules.
#
# Who may call it: CMakeLists.txt, when WEIR_TOOL is set. WEIR_TOOL=CARGO builds the program from tool/
# with this build's library inside; a path takes a program that is built already. The pages and the
# completions are what that program prints, so it has to run on the machine that builds. It deliberately
# knows none of the tool's commands but `man` and `completions`.
#
# SPDX-License-Identifier: Apache-2.0
set(WEIR_TOOL_TEXTS ${PROJECT_BINARY_DIR}/tool-texts)
if(WEIR_TOOL STREQUAL "CARGO")
  if(NOT WEIR_SHARED)
    message(FATAL_ERROR "the tool has libweir.so.1 inside: WEIR_TOOL=CARGO needs WEIR_SHARED=ON")
  endif()
  find_program(WEIR_CARGO cargo REQUIRED)
  set(WEIR_CARGO_PROFILE release CACHE STRING "cargo's profile for the tool")
  set(WEIR_CARGO_FOLDER ${PROJECT_BINARY_DIR}/tool CACHE PATH "where cargo builds the tool")
  set(profile_folder ${WEIR_CARGO_PROFILE})
  if(profile_folder STREQUAL "dev")
    set(profile_folder debug) # cargo's one profile whose folder has another name
  endif()
  set(WEIR_TOOL_PROGRAM ${WEIR_CARGO_FOLDER}/${profile_folder}/weir)
  # Cargo finds out itself what has changed, so it is asked each time.
  add_custom_target(weir_tool_program ALL
                    COMMAND ${CMAKE_COMMAND} -E env WEIR_LIBRARY=$<TARGET_FILE:weir>
                            ${WEIR_CARGO} build --profile ${WEIR_CARGO_PROFILE} --locked
                            --manifest-path ${PROJECT_SOURCE_DIR}/tool/Cargo.toml
                            --target-dir ${WEIR_CARGO_FOLDER}
                    BYPRODUCTS ${WEIR_TOOL_PROGRAM} DEPENDS weir weir_native weir_workload USES_TERMINAL VERBATIM)
else()
  get_filename_component(WEIR_TOOL_PROGRAM ${WEIR_TOOL} ABSOLUTE BASE_DIR ${CMAKE_BINARY_DIR})
  if(NOT EXISTS ${WEIR_TOOL_PROGRAM})
    message(FATAL_ERROR "WEIR_TOOL: there is no ${WEIR_TOOL_PROGRAM}; WEIR_TOOL=CARGO builds one")
  endif()
endif()

add_custom_command(OUTPUT ${WEIR_TOOL_TEXTS}/made
                   COMMAND ${CMAKE_COMMAND} -DPROGRAM=${WEIR_TOOL_PROGRAM} -DFOLDER=${WEIR_TOOL_TEXTS}
                           -P ${PROJECT_SOURCE_DIR}/cmake/tool-texts.cmake
                   DEPENDS ${WEIR_TOOL_PROGRAM} ${PROJECT_SOURCE_DIR}/cmake/tool-texts.cmake VERBATIM)
add_custom_target(weir_tool_texts ALL DEPENDS ${WEIR_TOOL_TEXTS}/made)
if(TARGET weir_tool_program)
  add_dependencies(weir_tool_texts weir_tool_program)
endif()
