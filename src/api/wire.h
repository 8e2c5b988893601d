/* wire.h: this process's slot in the file that the tool shares (weir/wire.h). Internal to the api layer.
 *
 * Every call does nothing where the process was not started by the tool.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_API_WIRE_H
#define WEIR_API_WIRE_H

#include "base/compiler.h"

WEIR_FN void wire_open(void);    /* constructor: map the file, claim a slot */
WEIR_FN void wire_reached(void); /* a call came from outside the library */
WEIR_FN void wire_forked(void);  /* in the child: claim a slot of its own */
WEIR_FN void wire_ended(void);   /* destructor: final figures */

#endif
