// pressure_test.cc: word that memory is short, from a FIFO, a socket and files that stand for the kernel's,
// and from this machine's kernel. Called by ctest; knows no heap.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

namespace {

constexpr uint64_t second = 1000000000;

// A helper that opens the watch and waits again and again. What it found is counted.
struct Watcher {
    uint32_t opened = 2; // then 0 or 1
    uint32_t stop = 0;
    uint32_t some = 0, none = 0, lost = 0;
    uint64_t limit = 20 * second;

    static void body(void* argument) {
        Watcher* w = static_cast<Watcher*>(argument);
        store_release(&w->opened, os_pressure_open() ? 1u : 0u);
        os_futex_wake(&w->opened, 1);
        while (load_acquire(&w->stop) == 0) {
            enum os_pressure found =
                load_relaxed(&w->opened) == 0 ? OS_PRESSURE_LOST : os_pressure_wait(w->limit);
            add_relaxed(found == OS_PRESSURE_SOME   ? &w->some
                        : found == OS_PRESSURE_NONE ? &w->none
                                                    : &w->lost,
                        1u);
            if (found == OS_PRESSURE_LOST) return;
        }
    }
    bool start() {
        if (!os_helper_start(body, this, nullptr)) return false;
        while (load_acquire(&opened) == 2) os_futex_wait_for(&opened, 2, second);
        return load_relaxed(&opened) == 1;
    }
    void end() {
        store_release(&stop, 1u);
        os_pressure_wake();
        os_helper_join();
    }
    static bool comes(const uint32_t* counter, uint32_t least = 1) {
        for (int ms = 0; ms < 5000 && load_relaxed(counter) < least; ms++) usleep(1000);
        return load_relaxed(counter) >= least;
    }
};

struct Folder {
    char path[64] = "/tmp/weir-unit-XXXXXX";
    Folder() { EXPECT_NE(mkdtemp(path), nullptr); }
    ~Folder() {
        std::string command = std::string("rm -rf ") + path;
        EXPECT_EQ(system(command.c_str()), 0);
    }
    std::string operator/(const char* name) const { return std::string(path) + "/" + name; }
};

int descriptors_now() {
    DIR* all = opendir("/proc/self/fd");
    int count = -3;
    while (all != nullptr && readdir(all) != nullptr) count++;
    if (all != nullptr) closedir(all);
    return count;
}

// For tests that a sanitized build does not have: it allows no helper.
template <class Body>
void expect_in_child(Body body) {
    EXPECT_FINE(in_child(
        [&] {
            unsetenv("MEMORY_PRESSURE_WATCH");
            unsetenv("MEMORY_PRESSURE_WRITE");
            os_helper_enable();
            body();
        },
        30));
}

TEST_UNSANITIZED(Pressure, ComesThroughAFifo) {
    Folder folder;
    std::string path = folder / "fifo";
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    expect_in_child([&] {
        setenv("MEMORY_PRESSURE_WATCH", path.c_str(), 1);
        int files = descriptors_now();
        Watcher w;
        ASSERT_TRUE(w.start());
        EXPECT_EQ(descriptors_now(), files); // none of the program's
        usleep(10000);
        EXPECT_EQ(w.some + w.none, 0u);
        for (uint32_t i = 1; i <= 3; i++) {
            int fd = open(path.c_str(), O_WRONLY | O_NONBLOCK);
            ASSERT_GE(fd, 0);
            EXPECT_EQ(write(fd, "pressure", 8), 8);
            close(fd); // the last writer goes, the watch stays
            EXPECT_TRUE(Watcher::comes(&w.some, i));
        }
        usleep(10000);
        EXPECT_EQ(w.some, 3u);
        EXPECT_EQ(w.none, 0u);
        os_pressure_wake();
        EXPECT_TRUE(Watcher::comes(&w.none));
        w.end();
        EXPECT_FALSE(os_helper_runs());
        os_pressure_wake(); // nobody is there
        Watcher again;
        again.limit = second / 200;
        ASSERT_TRUE(again.start());
        EXPECT_TRUE(Watcher::comes(&again.none, 3)); // by time alone
        again.end();
    });
}

TEST_UNSANITIZED(Pressure, ComesThroughASocket) {
    Folder folder;
    std::string path = folder / "socket";
    expect_in_child([&] {
        struct sockaddr_un address = {};
        address.sun_family = AF_UNIX;
        strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
        int listener = socket(AF_UNIX, SOCK_STREAM, 0);
        ASSERT_EQ(bind(listener, reinterpret_cast<struct sockaddr*>(&address), sizeof address), 0);
        ASSERT_EQ(listen(listener, 1), 0);
        setenv("MEMORY_PRESSURE_WATCH", path.c_str(), 1);
        setenv("MEMORY_PRESSURE_WRITE", "aGVsbG8A", 1); // "hello" and its NUL
        Watcher w;
        ASSERT_TRUE(w.start());
        int peer = accept(listener, nullptr, nullptr);
        char said[16] = "";
        EXPECT_EQ(read(peer, said, sizeof said), 6);
        EXPECT_STREQ(said, "hello");
        EXPECT_EQ(write(peer, "x", 1), 1);
        EXPECT_TRUE(Watcher::comes(&w.some));
        close(peer);
        EXPECT_TRUE(Watcher::comes(&w.lost));
        EXPECT_EQ(w.some, 1u);
        w.end();
    });
}

TEST_UNSANITIZED(Pressure, WritesTheTriggerItIsGiven) {
    Folder folder;
    std::string path = folder / "psi";
    expect_in_child([&] {
        close(open(path.c_str(), O_CREAT | O_WRONLY, 0600));
        setenv("MEMORY_PRESSURE_WATCH", path.c_str(), 1);
        setenv("MEMORY_PRESSURE_WRITE", "c29tZSAyMDAwMDAgMjAwMDAwMAA=", 1);
        Watcher w;
        ASSERT_TRUE(w.start());
        char text[64] = "";
        EXPECT_EQ(os_read_file(path.c_str(), text, sizeof text), 20u);
        EXPECT_STREQ(text, "some 200000 2000000");
        os_pressure_wake(); // a plain file is always readable, which is no pressure
        EXPECT_TRUE(Watcher::comes(&w.none));
        EXPECT_EQ(w.some, 0u);
        w.end();
    });
}

TEST_UNSANITIZED(Pressure, IsNotWatchedWhereItIsNotWanted) {
    Folder folder;
    std::string absent = folder / "absent";
    std::string fifo = folder / "fifo";
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    for (const char* path :
         std::initializer_list<const char*>{"/dev/null", "relative", absent.c_str(), folder.path})
        expect_in_child([&] {
            setenv("MEMORY_PRESSURE_WATCH", path, 1);
            Watcher w;
            EXPECT_FALSE(w.start()) << path;
            w.end();
        });
    expect_in_child([&] {
        setenv("MEMORY_PRESSURE_WATCH", fifo.c_str(), 1);
        EXPECT_FALSE(os_pressure_open()); // this is not the helper
        EXPECT_EQ(os_pressure_wait(second), OS_PRESSURE_LOST);
        setenv("MEMORY_PRESSURE_WRITE", "no base64!", 1);
        Watcher w;
        EXPECT_FALSE(w.start());
        w.end();
    });
    expect_in_child([&] {
        setenv("MEMORY_PRESSURE_WATCH", fifo.c_str(), 1);
        os_sandbox_announced();
        os_sandbox_thread_seen();
        Watcher w;
        EXPECT_FALSE(w.start());
        w.end();
    });
}

TEST_UNSANITIZED(Pressure, IsTheSystemsWhereThereIsNoCgroups) {
    int psi = open("/proc/pressure/memory", O_RDWR | O_CLOEXEC);
    bool able = psi >= 0 && write(psi, "some 200000 2000000", 20) == 20;
    if (psi >= 0) close(psi);
    expect_in_child([&] {
        os_cgroup_root = "/nowhere";
        Watcher w;
        w.limit = second / 100;
        EXPECT_EQ(w.start(), able);
        EXPECT_EQ(Watcher::comes(&w.none, 2), able);
        EXPECT_EQ(w.lost, able ? 0u : 1u);
        w.end();
    });
}

// A group of the one hierarchy; empty where this user may make none.
std::string group_make(const char* name) {
    for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        std::string group = std::string(root) + name + std::to_string(getpid());
        if (access((std::string(root) + "/cgroup.procs").c_str(), W_OK) == 0 &&
            mkdir(group.c_str(), 0755) == 0)
            return group;
    }
    return "";
}

bool group_join(const std::string& group, pid_t process) {
    int fd = open((group + "/cgroup.procs").c_str(), O_WRONLY);
    std::string number = std::to_string(process);
    bool moved = write(fd, number.data(), number.size()) > 0;
    close(fd);
    return moved;
}

std::string group_of_process() {
    char groups[4096] = "";
    os_read_file("/proc/self/cgroup", groups, sizeof groups - 1);
    const char* own = strstr(groups, "0::");
    return std::string(own + 3, strcspn(own + 3, "\n"));
}

// cgroup.events of a group that is made for it stands for memory.events of the process's: the kernel
// announces changes of both in the same way. The group's first process changes it, and its last.
void events_come(const std::string& group) {
    Folder folder;
    std::string place = folder.path + group_of_process();
    ASSERT_EQ(system(("mkdir -p " + place).c_str()), 0);
    ASSERT_EQ(symlink((group + "/cgroup.events").c_str(), (place + "/memory.events").c_str()), 0);
    os_cgroup_root = folder.path;
    Watcher w;
    ASSERT_TRUE(w.start());
    usleep(10000);
    EXPECT_EQ(w.some + w.none, 0u);
    pid_t member = fork();
    if (member == 0) {
        pause();
        _exit(0);
    }
    bool moved = group_join(group, member);
    EXPECT_EQ(Watcher::comes(&w.some), moved);
    kill(member, SIGKILL);
    waitpid(member, nullptr, 0);
    EXPECT_EQ(Watcher::comes(&w.some, 2), moved);
    EXPECT_EQ(w.lost, 0u);
    w.end();
}

TEST_UNSANITIZED(Pressure, ComesFromTheCgroupsEvents) {
    std::string group = group_make("/weir-unit-");
    std::string own = group_make("/weir-unit-own-");
    ASSERT_FALSE(group.empty() || own.empty() || access((group + "/cgroup.events").c_str(), R_OK) != 0)
        << "needs a mounted cgroup2 in which this user may make groups: run as root";
    expect_in_child([&] { events_come(group); });
    expect_in_child([&] {
        if (!group_join(own, getpid())) return; // as above: the kernel says whether it may
        EXPECT_NE(group_of_process(), "/");
        events_come(group);
    });
    EXPECT_EQ(rmdir(group.c_str()), 0);
    EXPECT_EQ(rmdir(own.c_str()), 0);
}

} // namespace
