# install.cmake: the install rules, in three components: runtime, dev, tool.
#
# Who may call it: CMakeLists.txt. Everything that is installed finds its neighbours from its own place,
# so that an installed tree may be moved. It deliberately does not know where it will be.
#
# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)
set(WEIR_INSTALL_CMAKEDIR ${CMAKE_INSTALL_LIBDIR}/cmake/weir)
set(WEIR_INSTALL_PCDIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(WEIR_INSTALL_SOURCEDIR ${CMAKE_INSTALL_DATADIR}/weir/src)

if(WEIR_SHARED)
  install(TARGETS weir EXPORT weir-shared
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev)
  install(TARGETS weir_dlopen LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_SKIP)
  install(EXPORT weir-shared NAMESPACE weir:: DESTINATION ${WEIR_INSTALL_CMAKEDIR} COMPONENT dev)
endif()
if(WEIR_STATIC)
  install(TARGETS weir_static EXPORT weir-static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
  install(EXPORT weir-static NAMESPACE weir:: DESTINATION ${WEIR_INSTALL_CMAKEDIR} COMPONENT dev)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/weir DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

# weir::object is compiled where it is used: link-time optimisation needs the objects of one compiler.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/ DESTINATION ${WEIR_INSTALL_SOURCEDIR} COMPONENT dev
        FILES_MATCHING PATTERN "*.c" PATTERN "*.h" PATTERN "*.def")
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/weirConfig.cmake.in ${PROJECT_BINARY_DIR}/weirConfig.cmake
                              INSTALL_DESTINATION ${WEIR_INSTALL_CMAKEDIR}
                              PATH_VARS CMAKE_INSTALL_INCLUDEDIR WEIR_INSTALL_SOURCEDIR)
# Before 1.0 a minor version may break what was promised.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/weirConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weirConfig.cmake ${PROJECT_BINARY_DIR}/weirConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/weir-object.cmake
        DESTINATION ${WEIR_INSTALL_CMAKEDIR} COMPONENT dev)

# The prefix as seen from the .pc file's folder; an absolute folder stays what it is.
function(weir_pc_path out folder)
  if(IS_ABSOLUTE "${folder}")
    set(${out} "${folder}" PARENT_SCOPE)
  else()
    set(${out} "\${prefix}/${folder}" PARENT_SCOPE)
  endif()
endfunction()
if(IS_ABSOLUTE "${WEIR_INSTALL_PCDIR}")
  set(WEIR_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH WEIR_PC_PREFIX "/p/${WEIR_INSTALL_PCDIR}" "/p")
  string(REGEX REPLACE "/$" "" WEIR_PC_PREFIX "\${pcfiledir}/${WEIR_PC_PREFIX}")
endif()
weir_pc_path(WEIR_PC_LIBDIR "${CMAKE_INSTALL_LIBDIR}")
weir_pc_path(WEIR_PC_INCLUDEDIR "${CMAKE_INSTALL_INCLUDEDIR}")
# weir.pc links whichever library there is, the shared one first; weir-static.pc the archive alone.
set(WEIR_PC_ARCHIVE "-L\${libdir} -Wl,-u,weir_version -l:libweir.a")
set(WEIR_PC_PRIVATE "-pthread -ldl")
set(pc_files "")
if(WEIR_SHARED)
  set(WEIR_PC_LIBS "-L\${libdir} -Wl,-u,weir_version -Wl,--push-state,--no-as-needed,-lweir,--pop-state")
  configure_file(${PROJECT_SOURCE_DIR}/cmake/weir.pc.in ${PROJECT_BINARY_DIR}/weir.pc @ONLY)
  list(APPEND pc_files ${PROJECT_BINARY_DIR}/weir.pc)
endif()
if(WEIR_STATIC)
  set(WEIR_PC_LIBS "${WEIR_PC_ARCHIVE} ${WEIR_PC_PRIVATE}")
  set(WEIR_PC_PRIVATE "")
  configure_file(${PROJECT_SOURCE_DIR}/cmake/weir.pc.in ${PROJECT_BINARY_DIR}/weir-static.pc @ONLY)
  list(APPEND pc_files ${PROJECT_BINARY_DIR}/weir-static.pc)
  if(NOT WEIR_SHARED)
    configure_file(${PROJECT_BINARY_DIR}/weir-static.pc ${PROJECT_BINARY_DIR}/weir.pc COPYONLY)
    list(APPEND pc_files ${PROJECT_BINARY_DIR}/weir.pc)
  endif()
endif()
install(FILES ${pc_files} DESTINATION ${WEIR_INSTALL_PCDIR} COMPONENT dev)

include(${PROJECT_SOURCE_DIR}/cmake/manual.cmake)
weir_manual(${PROJECT_SOURCE_DIR}/docs/man/libweir.3.in ${PROJECT_BINARY_DIR}/libweir.3)
install(FILES ${PROJECT_BINARY_DIR}/libweir.3 DESTINATION ${CMAKE_INSTALL_MANDIR}/man3 COMPONENT dev)

if(WEIR_TOOL)
  # Debian's zsh looks for what packages bring in a folder of its own.
  set(zsh_folder site-functions)
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr" AND EXISTS /etc/debian_version)
    set(zsh_folder vendor-completions)
  endif()
  set(WEIR_INSTALL_ZSHDIR ${CMAKE_INSTALL_DATADIR}/zsh/${zsh_folder} CACHE STRING "folder for zsh's completion")
  install(PROGRAMS ${WEIR_TOOL_PROGRAM} DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tool RENAME weir)
  install(DIRECTORY ${WEIR_TOOL_TEXTS}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tool)
  install(FILES ${WEIR_TOOL_TEXTS}/weir.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          COMPONENT tool RENAME weir)
  install(FILES ${WEIR_TOOL_TEXTS}/_weir DESTINATION ${WEIR_INSTALL_ZSHDIR} COMPONENT tool)
  install(FILES ${WEIR_TOOL_TEXTS}/weir.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
          COMPONENT tool)
endif()
