/* support/xthread.h: thread calls that end the test when they fail; see support/support.h.
 *
 * Who may include it: the tests of glibc's source package, and this shim. It deliberately declares what the
 * tests we run use, and no more.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_SUPPORT_XTHREAD_H
#define SHIM_SUPPORT_XTHREAD_H

#include <pthread.h>

#include <support/support.h>

/* Ends the process with a message unless `value`, what a pthread call returned, is 0. */
void xpthread_check_return(const char* function, int value);

pthread_t xpthread_create(pthread_attr_t* attributes, void* (*body)(void*), void* argument);
void* xpthread_join(pthread_t thread);
void xpthread_detach(pthread_t thread);
void xpthread_cancel(pthread_t thread);
void xpthread_kill(pthread_t thread, int signal);
void xpthread_once(pthread_once_t* guard, void (*body)(void));

void xpthread_attr_init(pthread_attr_t* attributes);
void xpthread_attr_destroy(pthread_attr_t* attributes);
void xpthread_attr_setdetachstate(pthread_attr_t* attributes, int state);
void xpthread_attr_setstacksize(pthread_attr_t* attributes, size_t size);

void xpthread_mutex_init(pthread_mutex_t* mutex, const pthread_mutexattr_t* attributes);
void xpthread_mutex_lock(pthread_mutex_t* mutex);
void xpthread_mutex_unlock(pthread_mutex_t* mutex);
void xpthread_mutex_destroy(pthread_mutex_t* mutex);
void xpthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex);

void xpthread_barrier_init(pthread_barrier_t* barrier, pthread_barrierattr_t* attributes, unsigned int count);
int xpthread_barrier_wait(pthread_barrier_t* barrier);
void xpthread_barrier_destroy(pthread_barrier_t* barrier);
void xpthread_barrierattr_init(pthread_barrierattr_t* attributes);
void xpthread_barrierattr_destroy(pthread_barrierattr_t* attributes);
void xpthread_barrierattr_setpshared(pthread_barrierattr_t* attributes, int shared);

#endif
