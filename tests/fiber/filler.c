/* filler.c: a library that takes FILLER_BYTES of static TLS, to use it up.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
static __attribute__((tls_model("initial-exec"))) _Thread_local char filling[FILLER_BYTES];
char* filler(void);
char* filler(void) { return filling; }
