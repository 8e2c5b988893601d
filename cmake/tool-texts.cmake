# tool-texts.cmake: has the tool write its man pages and its completions.
#
# Who may call it: the build, as `cmake -DPROGRAM=weir -DFOLDER=out -P tool-texts.cmake`. It leaves
# man/*.1, weir.bash, _weir and weir.fish in FOLDER, and the file `made` when all of it is there. It
# deliberately does not know what the texts say.
#
# SPDX-License-Identifier: Apache-2.0
function(tool_run out)
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_VARIABLE text ERROR_VARIABLE error RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    string(REPLACE ";" " " said "${ARGN}")
    message(FATAL_ERROR "${PROGRAM} ${said}: ${result}\n${error}")
  endif()
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER}/man)
foreach(pair bash/weir.bash zsh/_weir fish/weir.fish)
  get_filename_component(shell ${pair} DIRECTORY)
  get_filename_component(name ${pair} NAME)
  tool_run(text completions ${shell})
  file(WRITE ${FOLDER}/${name} "${text}")
endforeach()
tool_run(text man ${FOLDER}/man)
if(NOT EXISTS ${FOLDER}/man/weir.1)
  message(FATAL_ERROR "${PROGRAM} man wrote no weir.1")
endif()
file(TOUCH ${FOLDER}/made)
