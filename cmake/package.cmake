# package.cmake: three Debian packages from `cpack -G DEB`: libweir1, libweir-dev, weir.
#
# Who may call it: CMakeLists.txt. Configure with -DCMAKE_INSTALL_PREFIX=/usr, so that the library's
# folder is Debian's. It knows what each package is called and needs; it deliberately does not know what
# is in it: that is what the components of install.cmake say.
#
# SPDX-License-Identifier: Apache-2.0
set(WEIR_MAINTAINER "weir maintainers <maintainers@weir.invalid>" CACHE STRING "whom a package names as its maintainer")

set(CPACK_PACKAGE_NAME weir)
set(CPACK_PACKAGE_VENDOR weir)
set(CPACK_PACKAGE_CONTACT "${WEIR_MAINTAINER}")
# CPack puts any other summary than its default before each description, and each has its own.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${CMAKE_PROJECT_NAME} built using CMake")
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGING_INSTALL_PREFIX ${CMAKE_INSTALL_PREFIX})
# dpkg-shlibdeps finds the libraries of this build here, and folders are not writable by a group.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(weir_deb_version "${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libweir1)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "malloc for Linux - shared library
A drop-in replacement for the malloc of the C library, to preload or to link.
It keeps its records apart from the program's data, gives each thread a heap
of its own, and reports misuse of the heap in one line.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/triggers
    ${PROJECT_BINARY_DIR}/debian/shlibs)

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libweir-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libweir1 (= ${weir_deb_version}), libc6-dev")
set(CPACK_DEBIAN_DEV_DESCRIPTION "malloc for Linux - development files
Headers, the archive, the sources that CMake's weir::object compiles, and the
files through which CMake and pkg-config find them.")

set(CPACK_DEBIAN_TOOL_PACKAGE_NAME weir)
set(CPACK_DEBIAN_TOOL_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_TOOL_DESCRIPTION "runs programs on the weir malloc and reports what came of it
The tool has the library inside and needs no other package for it. It proves
in which processes calls of malloc arrived, and shows memory, time and misuse.")

set(CPACK_COMPONENTS_ALL runtime dev)
if(NOT WEIR_SHARED)
  set(CPACK_COMPONENTS_ALL dev)
  set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS libc6-dev)
endif()
if(WEIR_TOOL)
  list(APPEND CPACK_COMPONENTS_ALL tool)
endif()

# Pages are compressed and Debian's own files are added when the components are staged. The rows are
# for that script: component=package.
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  list(APPEND CPACK_WEIR_DEB_PACKAGES "${component}=${CPACK_DEBIAN_${upper}_PACKAGE_NAME}")
endforeach()
string(TIMESTAMP WEIR_DEB_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(${PROJECT_SOURCE_DIR}/packaging/debian/changelog.in ${PROJECT_BINARY_DIR}/debian/changelog @ONLY)
configure_file(${PROJECT_SOURCE_DIR}/packaging/debian/copyright ${PROJECT_BINARY_DIR}/debian/copyright COPYONLY)
configure_file(${PROJECT_SOURCE_DIR}/packaging/debian/shlibs.in ${PROJECT_BINARY_DIR}/debian/shlibs @ONLY)
configure_file(${PROJECT_SOURCE_DIR}/packaging/debian/triggers ${PROJECT_BINARY_DIR}/debian/triggers COPYONLY)
set(CPACK_WEIR_STRIP ${CMAKE_STRIP})
set(CPACK_WEIR_CROSS ${CMAKE_CROSSCOMPILING})
set(CPACK_WEIR_DEB_FILES ${PROJECT_BINARY_DIR}/debian)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian/stage.cmake)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/packaging/debian/options.cmake)
include(CPack)
