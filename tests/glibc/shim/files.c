/* files.c: temporary files, streams in memory, and the output of a forked child.
 *
 * Who may call it: the tests, through support/temp_file.h, support/xmemstream.h and
 * support/capture_subprocess.h; the driver calls shim_temp_files_remove. The list of files lives in memory
 * that the test's processes share, since the test makes them and the driver removes them. It deliberately
 * does not know what the files are for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim.h"
#include "support/capture_subprocess.h"
#include "support/support.h"
#include "support/temp_file.h"
#include "support/test-driver.h"
#include "support/xunistd.h"

enum { TEMP_FILES_MAX = 64, TEMP_PATH_BYTES = 256 };

struct temp_files {
    /* Sync: atomic, relaxed: the driver reads after the test's processes ended. */
    unsigned count;
    char paths[TEMP_FILES_MAX][TEMP_PATH_BYTES];
};
static struct temp_files* temp_files;

__attribute__((constructor)) static void temp_files_init(void) {
    void* page = mmap(NULL, sizeof *temp_files, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) _exit(99);
    temp_files = page;
}

void add_temp_file(const char* path) {
    unsigned index = __atomic_fetch_add(&temp_files->count, 1, __ATOMIC_RELAXED);
    if (index >= TEMP_FILES_MAX || strlen(path) >= TEMP_PATH_BYTES) {
        FAIL_EXIT1("more temporary files, or a longer name, than the shim has room for");
    }
    memcpy(temp_files->paths[index], path, strlen(path) + 1);
}

void shim_temp_files_remove(void) {
    for (unsigned i = temp_files->count; i-- > 0;) {
        if (unlink(temp_files->paths[i]) != 0) rmdir(temp_files->paths[i]);
    }
}

int create_temp_file_in_dir(const char* base, const char* folder, char** path) {
    char* name = xasprintf("%s/%sXXXXXX", folder, base);
    int fd = mkstemp(name);
    if (fd < 0) FAIL_EXIT1("mkstemp %s: %s", name, strerror(errno));
    add_temp_file(name);
    if (path != NULL) {
        *path = name;
    } else {
        free(name);
    }
    return fd;
}

int create_temp_file(const char* base, char** path) { return create_temp_file_in_dir(base, test_dir, path); }

char* support_create_temp_directory(const char* base) {
    char* name = xasprintf("%s/%sXXXXXX", test_dir, base);
    if (mkdtemp(name) == NULL) FAIL_EXIT1("mkdtemp %s: %s", name, strerror(errno));
    add_temp_file(name);
    return name;
}

void xopen_memstream(struct xmemstream* stream) {
    *stream = (struct xmemstream){0};
    stream->out = open_memstream(&stream->buffer, &stream->length);
    if (stream->out == NULL) FAIL_EXIT1("open_memstream: %s", strerror(errno));
}

void xfclose_memstream(struct xmemstream* stream) {
    if (fclose(stream->out) != 0) FAIL_EXIT1("fclose: %s", strerror(errno));
    stream->out = NULL;
}

/* The child writes to unnamed files: no pipe that could fill up while nobody reads. */
static void file_to_memstream(FILE* file, struct xmemstream* stream) {
    char chunk[4096];
    size_t count;
    rewind(file);
    xopen_memstream(stream);
    while ((count = fread(chunk, 1, sizeof chunk, file)) > 0) fwrite(chunk, 1, count, stream->out);
    fclose(file);
    xfclose_memstream(stream);
}

struct support_capture_subprocess support_capture_subprocess(void (*body)(void*), void* closure) {
    struct support_capture_subprocess capture;
    FILE* files[2] = {tmpfile(), tmpfile()};
    if (files[0] == NULL || files[1] == NULL) FAIL_EXIT1("tmpfile: %s", strerror(errno));
    fflush(NULL);
    pid_t child = xfork();
    if (child == 0) {
        xdup2(fileno(files[0]), STDOUT_FILENO);
        xdup2(fileno(files[1]), STDERR_FILENO);
        body(closure);
        fflush(NULL);
        _exit(support_report_failure(0));
    }
    xwaitpid(child, &capture.status, 0);
    file_to_memstream(files[0], &capture.out);
    file_to_memstream(files[1], &capture.err);
    return capture;
}

void support_capture_subprocess_free(struct support_capture_subprocess* capture) {
    free(capture->out.buffer);
    free(capture->err.buffer);
}
