/* support/xunistd.h: system calls that end the test when they fail; see support/support.h.
 *
 * Who may include it: the tests of glibc's source package, and this shim. It deliberately declares what the
 * tests we run use, and no more.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_SUPPORT_XUNISTD_H
#define SHIM_SUPPORT_XUNISTD_H

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <support/support.h>

pid_t xfork(void);
pid_t xwaitpid(pid_t process, int* status, int flags);
int xopen(const char* path, int flags, mode_t mode);
void xclose(int fd);
void xpipe(int fds[2]);
int xdup(int fd);
void xdup2(int from, int to);
void xunlink(const char* path);
void xftruncate(int fd, off_t length);
/* xwrite: all of it, in as many calls as it takes. */
void xwrite(int fd, const void* data, size_t length);
ssize_t xread(int fd, void* data, size_t length);
void* xmmap(void* address, size_t length, int protection, int flags, int fd);
void xmprotect(void* address, size_t length, int protection);
void xmunmap(void* address, size_t length);

#endif
