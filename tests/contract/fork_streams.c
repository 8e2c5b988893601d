/* fork_streams.c: fork in some threads while others are inside stdio.
 *
 * Who may call it: tests/contract/run.py. Some threads read lines, which allocates under a stream's lock;
 * one flushes all streams, which waits for a stream under the lock of their list; some fork, which takes
 * that lock too. An allocator that holds its own locks while fork waits for the list closes a circle. The
 * children use streams and the heap as well.
 *
 * contract: timeout=60
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>

enum { READERS = 4, FORKERS = 3, FORKS = 12, LINE = 100000 };

static char path[] = "/tmp/fork_streams.XXXXXX";
static int ended;

static int is_over(void) { return __atomic_load_n(&ended, __ATOMIC_ACQUIRE) == FORKERS; }

static int line_is_whole(FILE* file) {
    char* line = NULL;
    size_t room = 0;
    rewind(file);
    int whole = getline(&line, &room, file) == LINE + 1 && line[0] == 'x' && line[LINE - 1] == 'x';
    free(line);
    return whole;
}

static void* reader(void* unused) {
    (void)unused;
    FILE* file = fopen(path, "r");
    EXPECT(file != NULL);
    int whole = 1;
    while (!is_over()) whole &= line_is_whole(file);
    EXPECT(whole);
    fclose(file);
    return NULL;
}

static void* flusher(void* unused) {
    (void)unused;
    while (!is_over()) {
        fflush(NULL);
        usleep(500); /* the list's lock is not fair */
    }
    return NULL;
}

/* Opens, reads and flushes: the list's lock must be free in the child, and is taken as often as given. */
static void child(void) {
    FILE* file = fopen(path, "r");
    int good = file != NULL && line_is_whole(file) && fflush(NULL) == 0;
    if (file != NULL) fclose(file);
    pid_t pid = fork();
    if (pid == 0) _exit(fflush(NULL) == 0 ? 0 : 1);
    int status = 1;
    if (pid > 0) waitpid(pid, &status, 0);
    _exit(good && status == 0 ? 0 : 1);
}

static void* forker(void* unused) {
    (void)unused;
    int good = 0;
    for (int i = 0; i < FORKS; i++) {
        pid_t pid = fork();
        if (pid == 0) child();
        int status = 1;
        if (pid > 0 && waitpid(pid, &status, 0) == pid && status == 0) good++;
    }
    EXPECT_EQ(good, FORKS);
    __atomic_fetch_add(&ended, 1, __ATOMIC_RELEASE);
    return NULL;
}

int main(void) {
    contract_begin();
    int fd = mkstemp(path);
    FILE* file = fdopen(fd, "w");
    for (int i = 0; i < LINE; i++) fputc('x', file);
    fputc('\n', file);
    fclose(file);
    pthread_t threads[READERS + FORKERS + 1];
    int count = 0;
    pthread_create(&threads[count++], NULL, flusher, NULL);
    for (int i = 0; i < READERS; i++) pthread_create(&threads[count++], NULL, reader, NULL);
    for (int i = 0; i < FORKERS; i++) pthread_create(&threads[count++], NULL, forker, NULL);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    unlink(path);
    return contract_end();
}
