/* handler_first.c: a handler that is the first to call what changes handlers, while another thread is in
 * dlopen and waits for it: these calls are safe in handlers, and may not need the dynamic linker there.
 *
 * Who may call it: tests/contract/run.py, which hands it the path of its plugin and the call that installs.
 *
 * contract: name=sigaction plugin=plugin_waits.c args=sigaction
 * contract: name=signal plugin=plugin_waits.c args=signal
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>

static int waits[2];

static void handler(int number) {
    (void)number;
    struct sigaction ignored = {.sa_handler = SIG_IGN};
    EXPECT_EQ(sigaction(SIGUSR2, &ignored, NULL), 0);
    EXPECT(signal(SIGUSR2, SIG_DFL) == SIG_IGN);
    EXPECT(sysv_signal(SIGUSR2, SIG_IGN) == SIG_DFL);
    EXPECT(sigset(SIGUSR2, SIG_DFL) == SIG_IGN);
    EXPECT_EQ(sigignore(SIGUSR2), 0);
    EXPECT_EQ(siginterrupt(SIGUSR2, 1), 0);
    EXPECT_EQ(write(waits[1], "x", 1), 1);
}

static void* opener(void* path) { return dlopen(path, RTLD_NOW); }

int main(int argc, char** argv) {
    contract_begin();
    if (!EXPECT_EQ(argc, 3) || !EXPECT_EQ(pipe(waits), 0)) return contract_end();
    char number[16];
    snprintf(number, sizeof number, "%d", waits[0]);
    setenv("PLUGIN_WAITS", number, 1);
    if (strcmp(argv[2], "signal") == 0) {
        EXPECT(signal(SIGUSR1, handler) != SIG_ERR);
    } else {
        struct sigaction action = {.sa_handler = handler};
        EXPECT_EQ(sigaction(SIGUSR1, &action, NULL), 0);
    }
    alarm(20); /* where it waits for ever, this process hangs */
    pthread_t thread;
    void* plugin;
    EXPECT_EQ(pthread_create(&thread, NULL, opener, argv[1]), 0);
    usleep(300000); /* until the thread is in the constructor */
    EXPECT_EQ(raise(SIGUSR1), 0);
    EXPECT_EQ(pthread_join(thread, &plugin), 0);
    EXPECT(plugin != NULL);
    return contract_end();
}
