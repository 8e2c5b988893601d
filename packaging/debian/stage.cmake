# stage.cmake: what Debian asks of a package and an installed tree does not have: stripped programs,
# compressed pages, the changelog, the copyright file.
#
# Who may call it: cpack, when the components are staged and before they are packed. Other generators
# than DEB are left alone. It deliberately does not know what the packages hold.
#
# SPDX-License-Identifier: Apache-2.0
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()
function(stage_gzip file)
  execute_process(COMMAND gzip --best --no-name --force ${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

foreach(pair IN LISTS CPACK_WEIR_DEB_PACKAGES)
  string(REPLACE "=" ";" pair ${pair})
  list(GET pair 0 component)
  list(GET pair 1 package)
  set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${component}${CPACK_PACKAGING_INSTALL_PREFIX})
  set(doc ${root}/share/doc/${package})
  file(COPY ${CPACK_WEIR_DEB_FILES}/copyright DESTINATION ${doc})
  configure_file(${CPACK_WEIR_DEB_FILES}/changelog ${doc}/changelog.Debian COPYONLY)
  stage_gzip(${doc}/changelog.Debian)
  file(GLOB programs ${root}/bin/*)
  foreach(program IN LISTS programs) # what CMake has not built itself, it does not strip
    execute_process(COMMAND ${CPACK_WEIR_STRIP} ${program} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  file(GLOB_RECURSE pages ${root}/share/man/*.[1-9])
  foreach(page IN LISTS pages)
    stage_gzip(${page})
  endforeach()
endforeach()
