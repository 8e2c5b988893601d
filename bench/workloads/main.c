/* main.c: weir-workload, a program for each workload of the benchmark: what to run, how long it took.
 *
 *     weir-workload NAME [--scale PERCENT] [--rest SECONDS]
 *     weir-workload --list        one line each: name, threads, sizes, time, content, shape; tabs between
 *     weir-workload --touch MIB   uses so much memory and ends
 *
 * Does a fixed amount of work, frees what it has, rests and ends. Prints `time_s`, `operations`, where malloc
 * lies, and after the rest `resident_bytes`: what the allocator kept, before exit has it give that back.
 * Status 3: a block's content was lost or there was no memory. It deliberately knows no allocator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "workload.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAME_MAX_CHARS = 64 };

static const struct workload* const tables[] = {workloads_churn, workloads_shared, workloads_shapes,
                                                workloads_bare};

static double begun_s, time_s;
static uint64_t operations;

void load_begin(void) { begun_s = now_s(); }
void load_end(void) { time_s += now_s() - begun_s; }
void load_did(uint64_t count) { operations = count; }

void blocks_drop(struct block* blocks, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (blocks[i].at) block_drop(&blocks[i]);
    }
}

void sizes_draw(struct sizes* sizes, const struct load* load, uint64_t seed) {
    struct sequence s = sequence_of(seed, load->high);
    for (size_t i = 0; i < SIZES; i++) {
        size_t bytes = size_draw(&s, SIZE_LOG, load->low, load->high);
        sizes->bytes[i] = (uint32_t)bytes;
    }
}

void load_on_threads(const struct load* load, void (*job)(size_t number)) {
    if (load->threads == 1) {
        load_begin();
        job(0);
        load_end();
        return;
    }
    crew_open(load->threads);
    load_begin();
    crew_do(job);
    load_end();
}

void process_again(const char* name) {
    extern char** environ;
    static const char own_path[] = "/proc/self/exe";
    char* argv[] = {(char*)"weir-workload", (char*)name, (char*)"--rest", (char*)"0", NULL};
    pid_t pid;
    int status;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    if (posix_spawn(&pid, own_path, &actions, NULL, argv, environ) != 0) give_up("no process");
    posix_spawn_file_actions_destroy(&actions);
    if (waitpid(pid, &status, 0) != pid || status != 0) give_up("a process failed");
}

/* `server/t8` where there are several numbers of threads. */
static const char* row_name(const struct workload* w, size_t row) {
    static char name[NAME_MAX_CHARS];
    if (w->threads[1])
        snprintf(name, sizeof name, "%s/t%u", w->name, w->threads[row]);
    else
        snprintf(name, sizeof name, "%s", w->name);
    return name;
}

static void line_out(const char* line) {
    size_t length = strlen(line);
    if (write(1, line, length) != (ssize_t)length) _exit(4);
}

static void list(void) {
    char line[512];
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (const struct workload* w = tables[t]; w->name; w++) {
            for (size_t row = 0; row < sizeof w->threads && w->threads[row]; row++) {
                snprintf(line, sizeof line, "%s\t%u\t%zu-%zu\t%s\t%s\t%s\n", row_name(w, row),
                         w->threads[row], w->load.low, w->load.high - 1, w->time == TOLD ? "told" : "whole",
                         w->content == CHECKED ? "checked" : "unchecked", w->shape);
                line_out(line);
            }
        }
    }
}

static const struct workload* find(const char* wanted, unsigned* threads) {
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (const struct workload* w = tables[t]; w->name; w++) {
            for (size_t row = 0; row < sizeof w->threads && w->threads[row]; row++) {
                *threads = w->threads[row];
                if (strcmp(row_name(w, row), wanted) == 0) return w;
            }
        }
    }
    return NULL;
}

/* Asked of the loader: the program's own pointer may lead through the witness of `weir compare`. */
static void malloc_tell(void) {
    static char path[4096];
    Dl_info info;
    if (!dladdr(dlsym(RTLD_DEFAULT, "malloc"), &info) || !realpath(info.dli_fname, path))
        give_up("malloc lies nowhere");
    result_text("malloc_in", path);
}

void load_run(const struct workload* w, const struct load* load) { w->run(load); }

/* What is free afterwards the machine has at hand. The host of a virtual machine takes free memory away, in
 * pieces of 2 MiB, and may need 4 ms to give one back: which run pays for that would be chance. Half of it by
 * huge pages, so that the kernel has such pieces as well as smaller ones. */
static void touch(uint64_t mib) {
    size_t bytes = mib << 20, step = 4096;
    char* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) give_up("no memory to touch");
    madvise(memory, bytes / 2, MADV_HUGEPAGE);
    for (size_t at = 0; at < bytes; at += step) memory[at] = 1;
}

int main(int argc, char** argv) {
    uint64_t scale_percent = 100;
    double rest = 1;
    const struct option_row options[] = {
        {"scale", OPTION_COUNT, &scale_percent, "percent of the work (100)", NULL},
        {"rest", OPTION_REAL, &rest, "seconds before the end (1)", NULL},
        {NULL, OPTION_COUNT, NULL, NULL, NULL}};
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        list();
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "--touch") == 0) {
        touch(strtoull(argv[2], NULL, 10));
        return 0;
    }
    unsigned threads = 0;
    const struct workload* w = argc < 2 ? NULL : find(argv[1], &threads);
    if (!w) {
        line_out("weir-workload: NAME [--scale PERCENT] [--rest SECONDS], or --list, or --touch MIB\n");
        return 2;
    }
    options_read(argc - 1, argv + 1, options);
    malloc_tell();
    struct load load = w->load;
    load.threads = threads;
    load.work = load.work * scale_percent / 100 + 1;
    operations = load.work;
    load_run(w, &load);
    if (w->time == TOLD) {
        char text[40];
        snprintf(text, sizeof text, "%.9f", time_s);
        result_text("time_s", text);
    }
    result_count("operations", operations);
    result_flush();
    rest_s(rest);
    if (w->time == TOLD) {
        result_count("resident_bytes", resident_all());
        result_flush();
    }
    return 0;
}
