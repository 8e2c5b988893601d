# options.cmake: refuses a .deb of a build whose folders are not Debian's, or of a cross build: there are no
# libraries here whose packages it could depend on.
#
# Who may call it: cpack, once for each generator. It deliberately does not know what is packed.
#
# SPDX-License-Identifier: Apache-2.0
if(CPACK_GENERATOR STREQUAL "DEB" AND CPACK_WEIR_CROSS)
  message(FATAL_ERROR "a .deb is made on the architecture that it is for; this is a cross build")
endif()
if(CPACK_GENERATOR STREQUAL "DEB" AND NOT CPACK_PACKAGING_INSTALL_PREFIX STREQUAL "/usr")
  message(FATAL_ERROR "this build installs into ${CPACK_PACKAGING_INSTALL_PREFIX}: for a .deb, configure with "
                      "-DCMAKE_INSTALL_PREFIX=/usr")
endif()
