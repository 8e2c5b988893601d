/* support/xsignal.h: signal calls that end the test when they fail; see support/support.h.
 *
 * Who may include it: the tests of glibc's source package, and this shim. It deliberately declares what the
 * tests we run use, and no more.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_SUPPORT_XSIGNAL_H
#define SHIM_SUPPORT_XSIGNAL_H

#include <signal.h>

void xraise(int signal);
void (*xsignal(int signal, void (*handler)(int)))(int);
void xsigaction(int signal, const struct sigaction* action, struct sigaction* before);
void xpthread_sigmask(int how, const sigset_t* set, sigset_t* before);

#endif
