/* foreign.c: memory that libc and the dynamic linker allocate on the program's behalf.
 *
 * Who may call it: tests/contract/run.py. Every function of libc that gives out a block, or keeps one that
 * it later resizes or frees, is called and its result compared; strings that the dynamic linker made
 * before the allocator was ready are replaced and freed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <argz.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <glob.h>
#include <iconv.h>
#include <langinfo.h>
#include <locale.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pwd.h>
#include <regex.h>
#include <search.h>
#include <wchar.h>
#include <execinfo.h>

extern char** environ;

static void test_environment(void) {
    char name[40];
    char value[400];
    for (int i = 0; i < 600; i++) {
        snprintf(name, sizeof name, "CONTRACT_VARIABLE_%d", i);
        memset(value, 'a' + i % 26, sizeof value);
        value[i % 399] = '\0';
        EXPECT_EQ(setenv(name, value, 1), 0);
        EXPECT(strcmp(getenv(name), value) == 0);
    }
    for (int i = 0; i < 600; i += 2) {
        snprintf(name, sizeof name, "CONTRACT_VARIABLE_%d", i);
        EXPECT_EQ(unsetenv(name), 0);
        EXPECT(getenv(name) == NULL);
    }
    char* own = strdup("CONTRACT_PUT=1");
    EXPECT_EQ(putenv(own), 0);
    EXPECT(getenv("CONTRACT_PUT") == own + 13);
    EXPECT_EQ(unsetenv("CONTRACT_PUT"), 0);
    free(own);
    char** all = malloc(3 * sizeof *all);
    all[0] = strdup("PATH=/bin:/usr/bin");
    all[1] = strdup("ONE=1");
    all[2] = NULL;
    EXPECT(strcmp(getenv("CONTRACT_VARIABLE_1"), "b") == 0);
    environ = all; /* for good: setenv may now resize away the array that it had made */
    EXPECT_EQ(setenv("TWO", "2", 1), 0);
    EXPECT(strcmp(getenv("ONE"), "1") == 0 && strcmp(getenv("TWO"), "2") == 0);
    EXPECT_EQ(clearenv(), 0);
    free(all[0]);
    free(all[1]);
    free(all);
    EXPECT_EQ(setenv("LC_ALL", "C.UTF-8", 1), 0);
}

/* dlerror's string is malloc'ed by one call and freed by a later one, also at thread exit. */
static void test_dlerror(void) {
    for (int i = 0; i < 200; i++) {
        EXPECT(dlopen("/nowhere/no-such-library-with-a-long-name.so", RTLD_NOW) == NULL);
        EXPECT(i % 3 == 0 || strstr(dlerror(), "no-such-library") != NULL);
        EXPECT(dlsym(RTLD_DEFAULT, "no_such_symbol_anywhere") == NULL);
        EXPECT(i % 5 == 0 || strstr(dlerror(), "no_such_symbol_anywhere") != NULL);
    }
}

static void test_strings(void) {
    char* s = strdup("0123456789");
    char* n = strndup("0123456789", 4);
    wchar_t* w = wcsdup(L"wide");
    char* text = NULL;
    EXPECT(strcmp(s, "0123456789") == 0 && strcmp(n, "0123") == 0 && wcscmp(w, L"wide") == 0);
    EXPECT_EQ(asprintf(&text, "%*d|%s", 100000, 7, s), 100000 + 1 + 10);
    EXPECT(strcmp(text + 99999, "7|0123456789") == 0);
    free(s);
    free(n);
    free(w);
    free(text);
    char* argz = NULL;
    size_t length = 0;
    for (int i = 0; i < 500; i++) EXPECT_EQ(argz_add(&argz, &length, "an element"), 0);
    EXPECT_EQ(argz_count(argz, length), 500);
    free(argz);
    /* glibc's printf of wide numbers of digits takes work space from the heap. */
    char* digits = NULL;
    EXPECT_EQ(asprintf(&digits, "%.5000f", 1.0 / 3), 5002);
    EXPECT(strncmp(digits, "0.3333", 6) == 0);
    free(digits);
}

static void test_stdio(void) {
    FILE* file = tmpfile();
    EXPECT(file != NULL);
    for (int i = 0; i < 3000; i++) fprintf(file, "%0*d\n", i, i);
    rewind(file);
    char* line = NULL;
    size_t room = 0;
    int lines = 0;
    ssize_t last = 0;
    for (ssize_t n; (n = getline(&line, &room, file)) > 0; lines++) last = n;
    EXPECT_EQ(lines, 3000);
    EXPECT_EQ(last, 3000);
    EXPECT_GE(malloc_usable_size(line), 3001);
    free(line);
    line = malloc(1);
    room = 1;
    rewind(file);
    EXPECT_EQ(getdelim(&line, &room, EOF, file) > 1000000, 1);
    free(line);
    EXPECT_EQ(setvbuf(file, NULL, _IOFBF, 1 << 20), 0);
    fclose(file);

    char* memory = NULL;
    size_t size = 0;
    file = open_memstream(&memory, &size);
    for (int i = 0; i < 100000; i++) fputs("0123456789", file);
    EXPECT_EQ(fclose(file), 0);
    EXPECT_EQ(size, 1000000);
    EXPECT(memory[999999] == '9' && memory[1000000] == '\0');
    free(memory);
    char* scanned = NULL;
    EXPECT_EQ(sscanf("  word rest", "%ms", &scanned), 1);
    EXPECT(strcmp(scanned, "word") == 0);
    free(scanned);
}

static int any_entry(const struct dirent* entry) { return entry->d_name[0] != '.'; }

static void test_files(void) {
    DIR* directory = opendir("/proc/self");
    int entries = 0;
    EXPECT(directory != NULL);
    while (readdir(directory) != NULL) entries++;
    EXPECT_GE(entries, 20);
    EXPECT_EQ(closedir(directory), 0);
    struct dirent** list = NULL;
    int found = scandir("/proc/self", &list, any_entry, alphasort);
    EXPECT_GE(found, 20);
    for (int i = 0; i < found; i++) free(list[i]);
    free(list);
    glob_t globbed;
    EXPECT_EQ(glob("/proc/self/m*", 0, NULL, &globbed), 0);
    EXPECT_GE(globbed.gl_pathc, 2);
    globfree(&globbed);
    char* path = realpath("/proc/../proc/./uptime", NULL);
    EXPECT(path != NULL && strcmp(path, "/proc/uptime") == 0);
    free(path);
    path = getcwd(NULL, 0);
    EXPECT(path != NULL && path[0] == '/');
    free(path);
    path = get_current_dir_name();
    EXPECT(path != NULL);
    free(path);
}

static void test_names(void) {
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo* result = NULL;
    EXPECT_EQ(getaddrinfo("127.0.0.1", "80", &hints, &result), 0);
    EXPECT_EQ(((struct sockaddr_in*)result->ai_addr)->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    freeaddrinfo(result);
    EXPECT_EQ(getaddrinfo("::1", "80", &hints, &result), 0);
    freeaddrinfo(result);
    struct passwd* root = getpwuid(0);
    EXPECT(root == NULL || root->pw_uid == 0);
    endpwent();
}

static void test_regex(void) {
    for (int i = 0; i < 20; i++) {
        regex_t regex;
        regmatch_t match[3];
        EXPECT_EQ(regcomp(&regex, "^([a-z]+|[0-9]{2,5})-(x*y|z)+$", REG_EXTENDED), 0);
        EXPECT_EQ(regexec(&regex, "abc-xxyzz", 3, match, 0), 0);
        EXPECT_EQ(match[1].rm_eo, 3);
        EXPECT_EQ(regexec(&regex, "1-y", 3, match, 0), REG_NOMATCH);
        regfree(&regex);
    }
}

static void test_locale(void) {
    for (int i = 0; i < 20; i++) {
        EXPECT(setlocale(LC_ALL, "C.UTF-8") != NULL);
        EXPECT(strcmp(nl_langinfo(CODESET), "UTF-8") == 0);
        locale_t locale = newlocale(LC_ALL_MASK, "C.UTF-8", (locale_t)0);
        locale_t copy = duplocale(locale);
        EXPECT(locale != (locale_t)0 && copy != (locale_t)0);
        uselocale(copy);
        wchar_t wide[10];
        EXPECT_EQ(mbstowcs(wide, "\xc3\xa9t\xc3\xa9", 10), 3);
        uselocale(LC_GLOBAL_LOCALE);
        freelocale(locale);
        freelocale(copy);
        EXPECT(setlocale(LC_ALL, "C") != NULL);
        iconv_t convert = iconv_open("UTF-16LE", "ISO-8859-1");
        EXPECT(convert != (iconv_t)-1);
        char in[] = "\xe9";
        char out[8] = "";
        char* from = in;
        char* to = out;
        size_t left = 1;
        size_t room = sizeof out;
        EXPECT_EQ(iconv(convert, &from, &left, &to, &room), 0);
        EXPECT_EQ((unsigned char)out[0], 0xe9);
        EXPECT_EQ(iconv_close(convert), 0);
    }
}

static int order(const void* a, const void* b) {
    const int* x = a;
    const int* y = b;
    return *x < *y ? -1 : *x > *y;
}

static void test_search(void) {
    enum { COUNT = 300000 };
    int* numbers = malloc(COUNT * sizeof *numbers);
    uint64_t seed = 8;
    for (int i = 0; i < COUNT; i++) numbers[i] = (int)contract_random(&seed);
    qsort(numbers, COUNT, sizeof *numbers, order);
    int sorted = 1;
    for (int i = 1; i < COUNT; i++) sorted &= numbers[i - 1] <= numbers[i];
    EXPECT(sorted);
    void* root = NULL;
    for (int i = 0; i < 2000; i++) EXPECT(tsearch(&numbers[i], &root, order) != NULL);
    EXPECT(*(int**)tfind(&numbers[1000], &root, order) == &numbers[1000]);
    while (root != NULL) EXPECT(tdelete(*(int**)root, &root, order) != NULL);
    EXPECT(hcreate(1000) != 0);
    EXPECT(hsearch((ENTRY){.key = "key", .data = numbers}, ENTER) != NULL);
    EXPECT(hsearch((ENTRY){.key = "key"}, FIND)->data == numbers);
    hdestroy();
    free(numbers);
    void* frames[10];
    int depth = backtrace(frames, 10);
    char** symbols = backtrace_symbols(frames, depth);
    EXPECT(depth >= 1 && symbols != NULL && symbols[0] != NULL);
    free(symbols);
}

int main(void) {
    contract_begin();
    test_dlerror();
    test_strings();
    test_stdio();
    test_files();
    test_names();
    test_regex();
    test_locale();
    test_search();
    test_environment();
    return contract_end();
}
